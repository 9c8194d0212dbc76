package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/tool/codes"
)

func TestTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	p := &program{now: func() time.Time { return now }}
	f := func(format string, d time.Duration, want string) {
		t.Helper()
		p.global.timeFormat = format
		if got := p.timeText(now.Add(d)); got != want {
			t.Errorf("%s %s: got %q, want %q", format, d, got, want)
		}
	}
	f("relative", 0, "now")
	f("relative", -999*time.Millisecond, "now")
	f("relative", -2500*time.Millisecond, "2.5s ago")
	f("relative", -59*time.Second, "59s ago")
	f("relative", 61*time.Second, "in 1m1s")
	f("relative", -2*time.Hour, "2h ago")
	f("relative", 49*time.Hour+time.Minute, "in 2d1h")
	f("iso", time.Millisecond, "2026-03-01T09:00:00.001Z")
	p.global.timeFormat = "local"
	if got, want := p.timeText(now), now.Local().Format("2006-01-02 15:04:05.000Z07:00"); got != want {
		t.Errorf("local: got %q, want %q", got, want)
	}
	if got := p.timeText(time.Time{}); got != "" {
		t.Errorf("no time: got %q", got)
	}
	for d, want := range map[time.Duration]string{0: "0ns", 1500: "1us", 2 * time.Millisecond: "2ms", 9900 * time.Millisecond: "9.9s", 24 * time.Hour: "1d"} {
		if got := span(d); got != want {
			t.Errorf("span %d: got %q, want %q", d, got, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	f := func(in, want string) {
		t.Helper()
		got := "refused"
		if at, err := parseTime(in, now); err == nil {
			got = at.UTC().Format("01-02 15:04:05")
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
	f("now", "03-01 09:00:00")
	f("+10m", "03-01 09:10:00")
	f("in 1d12h", "03-02 21:00:00")
	f("-2h", "03-01 07:00:00")
	f("3d ago", "02-26 09:00:00")
	f("2026-03-01T09:00:00+02:00", "03-01 07:00:00")
	day := func(in string, back int, h, m int) {
		t.Helper()
		local := now.Local()
		f(in, time.Date(local.Year(), local.Month(), local.Day()-back, h, m, 0, 0, time.Local).UTC().Format("01-02 15:04:05"))
	}
	day("yesterday", 1, 0, 0)
	day("Yesterday 18:30", 1, 18, 30)
	day("today 9am", 0, 9, 0)
	day("today", 0, 0, 0)
	f("2026-02-27", time.Date(2026, 2, 27, 0, 0, 0, 0, time.Local).UTC().Format("01-02 15:04:05"))
	f("2026-02-27 12:15", time.Date(2026, 2, 27, 12, 15, 0, 0, time.Local).UTC().Format("01-02 15:04:05"))
	for _, bad := range []string{"", "10m", "yesterday at noonish", "today 25:00", "tomorrow", "--2h", "+-2h", "+1.5d", "+d", "in", "ago", "+99999999d", "2h ago x"} {
		f(bad, "refused")
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 10_000_000: "10,000,000"} {
		if got := count(n); got != want {
			t.Errorf("%d: got %s", n, got)
		}
	}
}

// TestWait checks what a wait says and exits with, by the states it meets.
func TestWait(t *testing.T) {
	t.Parallel()
	f := func(timeout string, states []string, code int, says string) {
		t.Helper()
		var polls atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.WriteHeader(http.StatusCreated)
				fmt.Fprint(w, `{"notification_id":"ntf_1","status":"ACCEPTED"}`)
				return
			}
			i := min(int(polls.Add(1)), len(states)) - 1
			fmt.Fprintf(w, `{"notification_id":"ntf_1","status":%q}`, states[i])
		}))
		defer srv.Close()
		out, errs, got := newWorld(t, srv.URL).ctl(t.Context(), "send", "--channel", "push", "--user", "u", "--body", "x", "--wait", "--timeout", timeout)
		if got != code || !strings.Contains(errs, says) || !strings.Contains(out, states[len(states)-1]) {
			t.Errorf("%v: code %d, want %d; %s%s", states, got, code, out, errs)
		}
	}
	f("30s", []string{"ACCEPTED", "DEFERRED", "DELIVERED"}, 0, "")
	f("30s", []string{"SENT"}, 0, "")
	f("30s", []string{"ACCEPTED", "SUPPRESSED"}, 1, "the notification was not delivered: SUPPRESSED")
	f("150ms", []string{"ACCEPTED"}, 8, "still ACCEPTED after 150ms")
}

// TestShowFanout: pages add up, and what was accepted and is in no state is
// told, as a number and as what it means.
func TestShowFanout(t *testing.T) {
	t.Parallel()
	for total, want := range map[int]string{10: "", 12: "pending  2  (accepted, but without a row"} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("after") == "" {
				fmt.Fprintf(w, `{"notification_id":"ntf_1","accepted":%d,"counted":6,"counts":{"SENT":6},"complete":false,"pending":%d,"next":"0.6"}`, total, total-6)
				return
			}
			fmt.Fprintf(w, `{"notification_id":"ntf_1","accepted":%d,"counted":4,"counts":{"SENT":1,"FAILED":3},"complete":true}`, total)
		}))
		out, errs, code := newWorld(t, srv.URL).ctl(t.Context(), "show", "ntf_01M7YZJ429GFY1GKF974CNACT1")
		out = strings.Join(strings.Fields(out), " ")
		want = strings.Join(strings.Fields(want), " ")
		if code != 0 || !strings.Contains(out, fmt.Sprint("accepted ", total)) || !strings.Contains(out, want) || strings.Contains(out, "pending") != (want != "") {
			t.Errorf("accepted %d: code %d, %s%s", total, code, out, errs)
		}
		out, _, _ = newWorld(t, srv.URL).ctl(t.Context(), "show", "ntf_01M7YZJ429GFY1GKF974CNACT1", "-o", "json", "--jq", ".pending")
		if strings.TrimSpace(out) != fmt.Sprint(total-10) {
			t.Errorf("accepted %d: pending %q", total, out)
		}
		srv.Close()
	}
}

// TestVersion tells the server's version beside its own, and when they differ;
// a server that does not tell, or none, is no error.
func TestVersion(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`{"status":"ok","version":"v9.9.9"}`:          "v9.9.9",
		`{"status":"ok","version":"` + version + `"}`: version,
		`{"status":"ok"}`:                             "of unknown version",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				w.WriteHeader(http.StatusNotFound)
			}
			fmt.Fprint(w, answer)
		}))
		out, errs, code := newWorld(t, srv.URL).ctl(t.Context(), "version")
		if code != 0 || !strings.Contains(out, want+"  ("+srv.URL+")") || strings.Contains(errs, "the server has version") != (want == "v9.9.9") {
			t.Errorf("%s: code %d, %s%s", answer, code, out, errs)
		}
		srv.Close()
	}
	if out, errs, code := newWorld(t, "http://127.0.0.1:1").ctl(t.Context(), "version"); code != 0 || strings.Contains(out, "server") {
		t.Errorf("no server: code %d, %s%s", code, out, errs)
	}
}

// TestUnclearSend checks that an answer that never came names the key that
// makes a second try harmless.
func TestUnclearSend(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer srv.Close()
	_, errs, code := newWorld(t, srv.URL).ctl(t.Context(), "send", "--channel", "push", "--user", "u", "--body", "x", "--idempotency-key", "k 1")
	if code != 7 || !strings.Contains(errs, "--idempotency-key 'k 1'") {
		t.Errorf("code %d, %s", code, errs)
	}
}

// TestConfirm checks that a cancel of a campaign asks where somebody can answer.
func TestConfirm(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		fmt.Fprint(w, `{"scope":"cmp_1"}`)
	}))
	defer srv.Close()
	f := func(in string, code int, called int32, args ...string) {
		t.Helper()
		w := newWorld(t, srv.URL)
		w.in, w.terminal = in, true
		calls.Store(0)
		_, errs, got := w.ctl(t.Context(), append(args, "cancel", "cmp_1")...)
		if got != code || calls.Load() != called {
			t.Errorf("%q %v: code %d, %d calls: %s", in, args, got, calls.Load(), errs)
		}
	}
	f("y\n", 0, 1)
	f("n\n", 1, 0)
	f("", 1, 0)
	f("y\n", 2, 0, "--no-input")
	f("", 0, 1, "--yes")
}

func TestHowFar(t *testing.T) {
	t.Parallel()
	f := func(done, total int64, took time.Duration, want string) {
		t.Helper()
		if got := progressText(done, total, took); got != want {
			t.Errorf("%d of %d in %v: %q, want %q", done, total, took, got, want)
		}
	}
	f(0, 200_000, 20*time.Second, "0 of 200,000")
	f(50_000, 200_000, 10*time.Second, "50,000 of 200,000  5,000/s  30s left")
	f(200_000, 200_000, 10*time.Second, "200,000 of 200,000  20,000/s")
	f(200_000, 0, 2*time.Second, "200,000  100,000/s")
	f(5, 10, 0, "5 of 10")
}

// TestAdvice: a notification that has ended is not tried again, whatever is done about its
// code while it waits.
func TestAdvice(t *testing.T) {
	t.Parallel()
	e := &codes.Find("twilio_20429")[0]
	f := func(status, event, want string) {
		t.Helper()
		tl := api.Timeline{Status: api.Status{NotificationID: "ntf_1", Status: status}, Events: []api.TimelineEvent{{Type: event}}}
		if got := codeAdvice(e, &tl); got != want {
			t.Errorf("%s after %s: %q, want %q", status, event, got, want)
		}
	}
	f("DEFERRED", "attempt", e.Do)
	f("EXPIRED", "attempt", "It is not retried.")
	f("FAILED", "dead_letter", "It is not retried; once the cause is repaired: notifyctl dlq replay --id ntf_1")
}
