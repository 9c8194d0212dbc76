package simulator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// caller calls the control API.
func caller(t testing.TB, s *Simulator) func(method, path, body string) response {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr}
	return func(method, path, body string) response {
		t.Helper()
		return do(t, c, request(t, method, s.URLs().Control+path, []byte(body), "Content-Type", "application/json"))
	}
}

func TestControlRules(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}})
	call := caller(t, s)
	twilio := senders(t, s)[2]
	c := client(t, s, "h1")
	send := func() response { return do(t, c, twilio.send(newID().String())) }

	r := call("POST", "/control/rules", `{"provider":"twilio","do":"throttle","for":"1h"}`)
	if r.status != 201 {
		t.Fatalf("%+v", r)
	}
	number := fmt.Sprint(field(t, r.body, "number"))
	if got := send(); got.status != 429 || got.header.Get("Retry-After") != "3600" {
		t.Errorf("%+v", got)
	}
	if r := call("GET", "/control/rules", ""); field(t, r.body, "0.picked") != 1.0 || field(t, r.body, "0.do") != "error" {
		t.Errorf("%s", r.body)
	}
	if r := call("DELETE", "/control/rules/"+number, ""); r.status != 204 {
		t.Errorf("%+v", r)
	}
	if r := call("DELETE", "/control/rules/"+number, ""); r.status != 404 {
		t.Errorf("%+v", r)
	}
	if got := send(); got.status != 201 {
		t.Errorf("%+v", got)
	}
	for body, code := range map[string]string{`{"do":"explode"}`: "bad_action", `{"dp":1}`: "bad_json", `{"provider":"fax"}`: "bad_provider", `{`: "bad_json"} {
		if r := call("POST", "/control/rules", body); r.status != 400 || field(t, r.body, "code") != code {
			t.Errorf("%s: %+v", body, r)
		}
	}

	call("PUT", "/control/optouts/"+Phone(1), "")
	if got := send(); field(t, got.body, "code") != 21610.0 {
		t.Errorf("%+v", got)
	}
	call("DELETE", "/control/optouts/"+Phone(1), "")
	call("PUT", "/control/latency/twilio", `{"median":"5ms","p99":"9ms"}`)
	if s.Latency(Twilio) != Lognormal(5*time.Millisecond, 9*time.Millisecond) || s.Latency(FCM) != (Latency{}) {
		t.Error("latency")
	}
	call("PUT", "/control/latency/all", `{"median":"1ms"}`)
	if r := call("GET", "/control/latency", ""); field(t, r.body, "fcm.median") != "1ms" {
		t.Errorf("%s", r.body)
	}
	if r := call("PUT", "/control/latency/fax", `{}`); r.status != 400 {
		t.Errorf("%+v", r)
	}
	if r := call("PUT", "/control/receipts", `{"undelivered":0.5,"delay":{"median":"3ms"}}`); r.status != 204 || s.Receipts().Undelivered != 0.5 || s.Receipts().Off {
		t.Errorf("%+v %+v", r, s.Receipts())
	}
	if r := call("PUT", "/control/receipts", `{"undelivered":5}`); r.status != 400 {
		t.Errorf("%+v", r)
	}
	if r := call("GET", "/control/receipts", ""); field(t, r.body, "undelivered") != 0.5 || field(t, r.body, "stats.pending") != 0.0 {
		t.Errorf("%s", r.body)
	}

	s.OptOut(Phone(1))
	rule(t, s, Rule{Do: Outage})
	if r := call("POST", "/control/reset", ""); r.status != 204 || len(s.Rules()) != 0 || !s.Receipts().Off || s.Latency(Twilio) != (Latency{}) {
		t.Errorf("%+v", r)
	}
	if got := send(); got.status != 201 {
		t.Errorf("after the reset: %+v", got)
	}
}

func TestControlLedger(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Receipts: Receipts{Off: true}, APNs: APNsConfig{TokenFloor: -1}, LedgerFile: filepath.Join(t.TempDir(), "l")})
	call := caller(t, s)
	apns := senders(t, s)[0]
	c := client(t, s, "h2")
	b := notify.NewBase(time.Now())
	id := func(i uint32) string { return notify.ID{Base: b, Index: i, FanOut: true}.String() }
	for _, i := range []uint32{0, 1, 1, 4} {
		if got := do(t, c, apns.send(id(i))); got.status != 200 {
			t.Fatalf("%+v", got)
		}
	}
	for path, want := range map[string]map[string]any{
		"/ledger/totals":                             {"deliveries": 3.0, "duplicates": 1.0, "providers.apns.accepted": 4.0, "status.200": 4.0, "order.reordered": 0.0},
		"/ledger?id=" + id(1):                        {"0.deliveries": 2.0, "0.provider": "apns", "0.status": 200.0},
		"/ledger/duplicates":                         {"total": 1.0, "pairs.0.id": id(1), "recent.0.id": id(1), "recent.0.deliveries": 2.0},
		"/ledger/bases":                              {"0.base": b.String(), "0.ids": 3.0},
		"/ledger/base?expected=5&base=" + b.String(): {"missing_count": 2.0, "missing.0.from": 2.0, "missing.0.to": 4.0, "ids": 3.0},
		"/ledger/order":                              {"users": 1.0, "reordered": 0.0},
		"/inbox.json?q=" + id(4):                     {"0.title": "T", "0.body": "B", "0.status": 200.0, "0.channel": "push", "1": nil},
		"/healthz":                                   {"status": "ok"},
		"/urls.json":                                 {"apns": s.URLs().APNs},
		"/credentials.json":                          {"apns.key_id": s.Credentials().APNs.KeyID, "fcm.service_account.type": "service_account"},
	} {
		r := call("GET", path, "")
		if r.status != 200 {
			t.Errorf("%s: %+v", path, r)
			continue
		}
		for p, v := range want {
			if p == "1" {
				if !strings.HasPrefix(r.body, "[{") || strings.Contains(r.body, "},{") {
					t.Errorf("%s: %s", path, r.body)
				}
			} else if got := field(t, r.body, p); got != v {
				t.Errorf("%s: %s is %v, want %v", path, p, got, v)
			}
		}
	}
	for path, status := range map[string]int{
		"/ledger?id=ntf_none": 404, "/ledger/base?base=x": 400, "/ledger/base?expected=-1&base=" + b.String(): 400, "/ledger/duplicates?limit=x": 400, "/nothing": 404,
	} {
		if r := call("GET", path, ""); r.status != status {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if r := call("GET", "/ca.pem", ""); r.body != string(s.CAPEM()) {
		t.Error("ca.pem")
	}
	lines := strings.Split(strings.TrimSpace(call("GET", "/ledger/dump", "").body), "\n")
	var d Delivery
	if len(lines) != 3 || json.Unmarshal([]byte(lines[2]), &d) != nil || d.ID != id(4) {
		t.Errorf("%q", lines)
	}
	if r := call("POST", "/ledger/check", id(0)+"\n"+id(2)+"\n"+id(1)); field(t, r.body, "checked") != 3.0 || field(t, r.body, "missing_count") != 1.0 || field(t, r.body, "missing.0") != id(2) {
		t.Errorf("%s", r.body)
	}
	waitFor(t, func() bool {
		b, _ := os.ReadFile(s.cfg.LedgerFile)
		return strings.Count(string(b), "\n") == 4
	})
	if r := call("DELETE", "/ledger", ""); r.status != 204 || s.Ledger().Summary().Deliveries != 0 {
		t.Errorf("%+v", r)
	}
}

// TestInboxPage: the page shows what came, and nothing of it runs in the browser.
func TestInboxPage(t *testing.T) {
	t.Parallel()
	s := start(t, Config{InboxSize: 3, Receipts: Receipts{Off: true}})
	call := caller(t, s)
	if r := call("GET", "/inbox", ""); !strings.Contains(r.body, "Nothing yet") {
		t.Errorf("%+v", r)
	}
	a := s.Credentials().Twilio[0]
	c := client(t, s, "h1")
	for i, text := range []string{"oldest", "first", "<script>alert(1)</script>", "last"} {
		do(t, c, smsSend(t, s, a, smsForm(a, Phone(uint64(i)), "", "Body", text)))
	}
	r := call("GET", "/inbox", "")
	if r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") || !strings.Contains(r.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("%d %v", r.status, r.header)
	}
	if strings.Contains(r.body, "<script>") || strings.Contains(r.body, "oldest") || !strings.Contains(r.body, "&lt;script&gt;") ||
		strings.Index(r.body, "last") > strings.Index(r.body, "first") || !strings.Contains(r.body, "prefers-color-scheme: dark") {
		t.Errorf("%s", r.body)
	}
	if r := call("GET", "/inbox?q=FIRST&channel=sms", ""); !strings.Contains(r.body, ">first<") || strings.Contains(r.body, ">last<") {
		t.Errorf("%s", r.body)
	}
	if r := call("GET", "/inbox?channel=email", ""); !strings.Contains(r.body, "Nothing matches") {
		t.Errorf("%s", r.body)
	}
}

// A page from elsewhere cannot script faults through a browser on this machine.
func TestControlCrossOrigin(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	r := request(t, "POST", s.URLs().Control+"/control/reset", nil, "Sec-Fetch-Site", "cross-site", "Origin", "https://example.com")
	if got := do(t, &http.Client{Transport: tr}, r); got.status != http.StatusForbidden {
		t.Errorf("%+v", got)
	}
}

// TestControlHost: a page can point a name of its own at 127.0.0.1, and the browser
// then sends its requests here with that name as Host.
func TestControlHost(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	for _, c := range []struct {
		method, path, host string
		status             int
	}{
		{"GET", "/credentials.json", "evil.test", 400},
		{"GET", "/inbox.json", "evil.test:7423", 400},
		{"DELETE", "/ledger", "evil.test:7423", 400},
		{"GET", "/credentials.json", "localhost:7423", 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.URLs().Control+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		req.Header.Set("Origin", "http://"+c.host)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s %s of %s: %d", c.method, c.path, c.host, resp.StatusCode)
		}
	}
}
