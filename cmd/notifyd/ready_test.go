package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A dev server that is not ready says why, once for each reason, and goes on;
// one that is in time says nothing.
func TestAwaitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		refused := errors.New("503 not ready")
		full := &notify.Error{Kind: notify.KindUnavailable, Code: "disk_full", Msg: "the log's volume is full"}
		run := func(readyAfter time.Duration, why func(at time.Duration) error) (said string, ok bool) {
			began = time.Now()
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var out output
			ok = awaitReady(ctx, &out, func(context.Context) error {
				if time.Since(began) >= readyAfter {
					return nil
				}
				return why(time.Since(began))
			})
			return out.String(), ok
		}
		if said, ok := run(4*time.Second, func(time.Duration) error { return full }); !ok || said != "" {
			t.Errorf("ready in time: %v, %q", ok, said)
		}
		said, ok := run(30*time.Second, func(at time.Duration) error {
			switch {
			case at < 10*time.Second:
				return refused // it begins
			case at < 20*time.Second:
				return full
			}
			return notify.Unavailable("preferences", 0, errors.New("snapshot is "+at.String()+" old"))
		})
		want := []string{"after 5s: 503 not ready\n", "after 10s: the log's volume is full (disk_full)\n", "after 20s: preferences is unavailable (preferences)\n"}
		if !ok || strings.Count(said, "not ready after") != len(want) {
			t.Errorf("%v, %q", ok, said)
		}
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("%q lacks %q", said, w)
			}
		}
		if said, ok := run(time.Hour, func(time.Duration) error { return full }); ok || strings.Count(said, "disk_full") != 1 {
			t.Errorf("never ready: %v, %q", ok, said)
		}
	})
}
