package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

// worst is a server with a failure behind what is well.
func worst(t *testing.T) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			_, _ = w.Write([]byte(`{"version":"dev"}`))
			return
		}
		_, _ = w.Write([]byte(`{"items":[{"check":"log","level":"ok"},{"check":"lane sms","level":"warn"},{"check":"disk","level":"fail"}]}`))
	}))
	t.Cleanup(srv.Close)
	return srv
}

// What only this side can see: another version, another time.
func TestDoctorComparesVersionsAndClocks(t *testing.T) {
	t.Parallel()
	f := func(version string, off time.Duration, level string, exit int, want ...string) {
		t.Helper()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(off).UTC().Format(http.TimeFormat))
			if r.URL.Path == "/healthz" {
				_, _ = w.Write([]byte(`{"version":"` + version + `"}`))
				return
			}
			_, _ = w.Write([]byte(`{"items":[{"check":"disk","level":"` + level + `","detail":"d","repair":"make room"}]}`))
		}))
		defer srv.Close()
		out, errs, code := newWorld(t, srv.URL).ctl(t.Context(), "doctor", "--fail-on", "warn")
		if code != exit {
			t.Errorf("exit %d, want %d\n%s%s", code, exit, out, errs)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%q is not in\n%s", w, out)
			}
		}
	}
	out, _, _ := newWorld(t, worst(t).URL).ctl(t.Context(), "doctor")
	if disk, version := strings.Index(out, "\ndisk "), strings.Index(out, "\nversion "); disk < 0 || version < disk || strings.Index(out, "\nlane ") > version || strings.Index(out, "\nlane ") < disk {
		t.Errorf("what is wrong is not first:\n%s", out)
	}
	f("dev", 0, "ok", 0, "version  ok", "clock    ok")
	f("9.9", 0, "ok", term.ExitFindings, "version  warn   notifyctl dev, notifyd 9.9", "install the notifyctl that came with notifyd 9.9")
	f("dev", time.Hour, "ok", term.ExitFindings, "clock    warn", "behind the server's", "synchronise both clocks")
	f("dev", -time.Hour, "ok", term.ExitFindings, "ahead of the server's")
	f("dev", 0, "fail", term.ExitFindings, "disk     fail   d", "make room")
}

// TestLagShowsWhatIsDeferred: receivers that wait in the timer store are behind in
// no group, and are shown beside it with why, since when and when they go on.
func TestLagShowsWhatIsDeferred(t *testing.T) {
	t.Parallel()
	accepted, next := time.Now().Add(-41*time.Second-500*time.Millisecond), time.Now().Add(2*time.Minute+500*time.Millisecond)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"items": []map[string]any{
			{"group": "push-workers", "topic": "notifications-push", "deferred": []any{}},
			{"group": "push-retry-workers", "topic": "notifications-push-dlq", "deferred": []map[string]any{
				{"reason": "apns_circuit_open", "receivers": 2990, "oldest_accepted_at": accepted.Add(time.Second), "next_at": next},
				{"reason": "quiet_hours", "receivers": 7, "oldest_accepted_at": accepted, "next_at": next.Add(time.Hour)},
				{"reason": "a", "receivers": 2, "oldest_accepted_at": time.Now(), "next_at": next.Add(time.Hour)},
				{"reason": "b", "receivers": 1, "oldest_accepted_at": time.Now(), "next_at": next.Add(time.Hour)},
			}},
			{"group": "sms-workers", "topic": "notifications-sms", "deferred": nil},
		}})
	}))
	t.Cleanup(srv.Close)
	out, errs, code := newWorld(t, srv.URL).ctl(t.Context(), "lag")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	for group, want := range map[string]string{
		"push-workers":       `\s0\s*$`,
		"push-retry-workers": `\s3,000 +4\ds\S* +in 2m\S* .*apns_circuit_open 2,990, quiet_hours 7, a 2, and 1 more reasons`,
		"sms-workers":        `\s\?\s*$`,
	} {
		if !regexp.MustCompile(`(?m)^` + group + ` .*` + want).MatchString(out) {
			t.Errorf("%s: not %q in\n%s", group, want, out)
		}
	}
}
