package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// unread is a body that counts what is read of it.
type unread struct {
	io.Reader
	n int
}

func (u *unread) Read(b []byte) (int, error) {
	n, err := u.Reader.Read(b)
	u.n += n
	return n, err
}

// In an overload batches and fan-outs are refused before their bodies are read, unless they
// begin with a category that is not bulk, and single requests are taken.
func TestOverload(t *testing.T) {
	t.Parallel()
	w := newWorld()
	taken := map[string]string{}
	w.intake = func(_ context.Context, route string, _ request.Meta, body []byte) (request.Answer, error) {
		taken[route] = string(body)
		return request.Answer{Status: 201, Body: []byte(`{}`)}, nil
	}
	var refused []string
	var adm *limit.Admission
	s := w.start(t, Config{}, func(d *Deps) {
		d.Hooks.Refused = func(reason string) { refused = append(refused, reason) }
	})
	synctest.Test(t, func(t *testing.T) {
		s.deps.Now = time.Now
		adm = limit.NewAdmission(limit.AdmissionConfig{})
		s.deps.Admission = adm
		token := tokenAt(t, time.Now(), "shop", api.ScopeSend)
		post := func(path, body string, opts ...option) (reply, *unread) {
			u := &unread{Reader: strings.NewReader(body)}
			opts = append(opts, func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(u), int64(len(body)) })
			return ask(s, "POST", path, token, "", opts...), u
		}
		marketing := `{"channel":"push","category":"marketing","receivers":["u"]}`
		alert := `{"channel":"push", "category" : "alert","receivers":["u"]}`
		const fanouts, batches = "/v1/notifications:fanout", "/v1/notifications:batch"
		if r, _ := post(fanouts, marketing); r.status != 201 {
			t.Fatalf("before it: %d %s", r.status, r.body)
		}

		out, err := adm.Decode(t.Context(), notify.Marketing)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if out, err := adm.Decode(t.Context(), notify.Marketing); err == nil {
				out()
			}
		}()
		time.Sleep(1500 * time.Millisecond) // somebody has waited longer than may be
		clear(taken)
		for _, path := range []string{fanouts, batches} {
			r, u := post(path, strings.Repeat(" ", 2*peekBytes)+marketing)
			if p := r.problem(t); r.status != 503 || p.Code != "overloaded" || r.header.Get("Retry-After") != "2" || u.n > peekBytes {
				t.Errorf("%s: %d %s, Retry-After %q, %d bytes read", path, r.status, r.body, r.header.Get("Retry-After"), u.n)
			}
		}
		for name, o := range map[string]option{"gzip": header("Content-Encoding", "gzip"), "asks": header("Expect", "100-continue")} {
			if r, u := post(fanouts, alert, o); r.status != 503 || u.n > 0 {
				t.Errorf("%s: %d, %d bytes read", name, r.status, u.n)
			}
		}
		if r, _ := post(batches, `[`+marketing+`]`); r.status != 503 {
			t.Errorf("a batch that begins with marketing: %d", r.status)
		}
		if len(refused) != 5 || refused[0] != "overload" || len(taken) > 0 {
			t.Errorf("turned away: %v, taken: %v", refused, taken)
		}
		for path, body := range map[string]string{fanouts: alert, batches: `[` + alert + `]`, "/v1/notifications": marketing} {
			if r, _ := post(path, body); r.status != 201 {
				t.Errorf("%s of %s: %d %s", path, body, r.status, r.body)
			}
		}
		if taken["fanout"] != alert || taken["batch"] != `[`+alert+`]` {
			t.Errorf("taken: %q", taken)
		}
		out()
		synctest.Wait()
		if r, _ := post(fanouts, marketing); r.status != 201 {
			t.Errorf("after it: %d %s", r.status, r.body)
		}
	})
}
