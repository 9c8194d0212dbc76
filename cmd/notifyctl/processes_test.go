package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestProcessesAreNamed: where there are several processes, what is of one names it, and a
// process that did not answer is told of; where there is one, none is named.
func TestProcessesAreNamed(t *testing.T) {
	t.Parallel()
	missing := `{"name":"mails","state":"missing","age_seconds":27.2,"roles":["worker:email"],"host":"h2"}`
	one := `{"over_seconds":60,"rates":[{"what":"push","accepted":7,"reached":5}],"late":[],"series":[]`
	answers := map[string]string{
		"/v1/ops/rates": one + `,"processes":[{"name":"front","state":"ready","rates":[{"what":"push","accepted":7},{"what":"sms"}],"late":[]},` +
			missing + `,{"name":"idle","state":"draining","rates":[{"what":"push"}],"late":[]}]}`,
		"/v1/ops/circuits": `{"items":[{"name":"provider:apns","process":"front","state":"open"}],"missing":[` + missing + `]}`,
		"/v1/ops/doctor":   `{"items":[{"check":"log","level":"ok"},{"check":"clock","process":"front","level":"fail","detail":"off"}]}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(answers[r.URL.Path])) }))
	defer srv.Close()
	w := newWorld(t, srv.URL)
	asks := func(command string, remarks string, want ...string) {
		t.Helper()
		out, errs, _ := w.ctl(t.Context(), strings.Fields(command)...)
		var lines []string
		for line := range strings.Lines(out) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		for _, line := range want {
			if !strings.Contains(strings.Join(lines, "\n")+"\n", line+"\n") {
				t.Errorf("%s: no line %q in\n%s", command, line, out)
			}
		}
		if !strings.Contains(errs, remarks) || remarks == "" && strings.Contains(errs, "did not answer") {
			t.Errorf("%s: remarks %q, want %q", command, errs, remarks)
		}
	}
	gone := "mails did not answer for 27s (worker:email on h2)\n"
	asks("rates", gone, "PROCESS WHAT ACCEPTED/S REACHED/S FAILED/S OTHER/S", "all push 7.0 5.0 0.0 0.0", "front push 7.0 0.0 0.0 0.0", "mails missing", "idle draining")
	asks("circuit ls", gone, "PROCESS CIRCUIT STATE SINCE WHY NEXT TRY IN FLIGHT QUEUED", "front provider:apns open 0 0")
	asks("doctor", "", "PROCESS CHECK LEVEL DETAIL REPAIR", "front clock fail off")
	answers["/v1/ops/rates"], answers["/v1/ops/circuits"] = one+"}", `{"items":[{"name":"provider:apns","state":"open"}]}`
	asks("rates", "", "WHAT ACCEPTED/S REACHED/S FAILED/S OTHER/S", "push 7.0 5.0 0.0 0.0")
	asks("circuit ls", "", "CIRCUIT STATE SINCE WHY NEXT TRY IN FLIGHT QUEUED", "provider:apns open 0 0")
}

// TestListSaysWhatItOmits: a list that leaves fan-outs out says so, and another does not.
func TestListSaysWhatItOmits(t *testing.T) {
	t.Parallel()
	omits := map[string]string{"/v1/users/ann/notifications": `,"omits":["fanouts"]`}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"items":[]` + omits[r.URL.Path] + "}"))
	}))
	defer srv.Close()
	w := newWorld(t, srv.URL)
	for user, want := range map[string]bool{"ann": true, "bob": false} {
		if _, remarks, _ := w.ctl(t.Context(), "ls", user); strings.Contains(remarks, "fan-outs are not listed") != want {
			t.Errorf("ls %s says %q", user, remarks)
		}
	}
}
