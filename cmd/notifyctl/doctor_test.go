package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/cli"
)

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
			_, _ = w.Write([]byte(`[{"check":"disk","level":"` + level + `","detail":"d","repair":"make room"}]`))
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
	f("dev", 0, "ok", 0, "version  ok", "clock    ok")
	f("9.9", 0, "ok", cli.ExitFindings, "version  warn   notifyctl dev, notifyd 9.9", "install the notifyctl that came with notifyd 9.9")
	f("dev", time.Hour, "ok", cli.ExitFindings, "clock    warn", "behind the server's", "synchronise both clocks")
	f("dev", -time.Hour, "ok", cli.ExitFindings, "ahead of the server's")
	f("dev", 0, "fail", cli.ExitFindings, "disk     fail   d", "make room")
}
