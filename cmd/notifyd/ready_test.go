package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// A dev server that is not ready says why, once for each reason, and goes on;
// one that is in time says nothing.
func TestAwaitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		refused := errors.New("503 not ready")
		full := &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", Msg: "the log's volume is full"}
		run := func(limit, readyAfter time.Duration, why func(at time.Duration) error) (said string, err error) {
			began = time.Now()
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var out output
			err = awaitReady(ctx, &out, limit, func(context.Context) error {
				if time.Since(began) >= readyAfter {
					return nil
				}
				return why(time.Since(began))
			})
			return out.String(), err
		}
		if said, err := run(0, 4*time.Second, func(time.Duration) error { return full }); err != nil || said != "" {
			t.Errorf("ready in time: %v, %q", err, said)
		}
		said, err := run(0, 30*time.Second, func(at time.Duration) error {
			switch {
			case at < 10*time.Second:
				return refused // it begins
			case at < 20*time.Second:
				return full
			}
			return notify.Unavailable("preferences", 0, errors.New("snapshot is "+at.String()+" old"))
		})
		want := []string{"after 5s: 503 not ready\n", "after 10s: the log's volume is full (disk_full)\n", "after 20s: preferences is unavailable (preferences)\n"}
		if err != nil || strings.Count(said, "not ready after") != len(want) {
			t.Errorf("%v, %q", err, said)
		}
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("%q lacks %q", said, w)
			}
		}
		if said, err := run(0, time.Hour, func(time.Duration) error { return full }); !errors.Is(err, context.DeadlineExceeded) || strings.Count(said, "disk_full") != 1 {
			t.Errorf("never ready: %v, %q", err, said)
		}
		_, err = run(20*time.Second, time.Hour, func(time.Duration) error { return full })
		if term.ExitCode(err) != term.ExitUnavailable || !strings.Contains(err.Error(), "not ready after 20s: the log's volume is full") || time.Since(began) != 20*time.Second {
			t.Errorf("the limit: %v after %v", err, time.Since(began))
		}
	})
}

func TestBannerPaths(t *testing.T) {
	t.Parallel()
	f := func(home, path, want string) {
		t.Helper()
		if got := (&banner{home: home}).shortPath(path); got != want {
			t.Errorf("%q below %q: %q, want %q", path, home, got, want)
		}
	}
	f("/home/ann", "/home/ann/.local/share/notifyd/dev", "~/.local/share/notifyd/dev")
	f("/home/ann/", "/home/ann/x", "~/x")
	f("/home/ann", "/home/anna/x", "/home/anna/x")
	f("/home/ann", "/tmp/notifyd-dev-1", "/tmp/notifyd-dev-1")
	f("", "/x", "/x")
	f("/", "/x", "/x")
}
