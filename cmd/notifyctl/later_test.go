package main

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/term"
)

func TestLater(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 9, 0, 0, 123_456_789, time.UTC)
	f := func(o laterOptions, want string) {
		t.Helper()
		got, err := o.resolve(now)
		switch {
		case err != nil:
			if code := term.ExitCode(err); code != term.ExitUsage {
				t.Errorf("%+v: exit %d", o, code)
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", o, err, want)
			}
		case got == nil:
			if want != "" {
				t.Errorf("%+v: nothing, want %s", o, want)
			}
		default:
			if s := got.Format(time.RFC3339Nano); s != want {
				t.Errorf("%+v: %s, want %s", o, s, want)
			}
		}
	}
	f(laterOptions{}, "")
	f(laterOptions{in: "10m"}, "2026-03-01T09:10:00.124Z") // never earlier
	f(laterOptions{in: "+10m"}, "2026-03-01T09:10:00.124Z")
	f(laterOptions{at: "+10m"}, "2026-03-01T09:10:00.124Z")
	f(laterOptions{at: "in 1 day", zone: "Europe/Berlin"}, "2026-03-02T09:00:00.124Z")
	f(laterOptions{at: "tomorrow 09:00", zone: "Europe/Berlin"}, "2026-03-02T08:00:00Z")
	f(laterOptions{at: "2026-03-02T08:00:00+01:00", zone: "Asia/Tokyo"}, "2026-03-02T07:00:00Z")
	f(laterOptions{at: "now", in: "1m"}, "use one of them")
	f(laterOptions{at: "soon"}, "--at")
	f(laterOptions{in: "tomorrow"}, "--in")
	f(laterOptions{in: "1m", zone: "Mars/Base"}, "--tz")
	f(laterOptions{at: "2026-03-29 02:30", zone: "Europe/Berlin"}, "the local time 2026-03-29 02:30:00 does not exist")
}
