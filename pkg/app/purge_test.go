package app

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// endless is a store whose purge never ends.
type endless struct {
	engine.Triggers
	calls int
}

func (e *endless) Purge(ctx context.Context, _ int64, max int) (int, error) {
	e.calls++
	notify.Sleep(ctx, time.Second)
	return max, ctx.Err()
}

type countedKeys struct {
	request.Idem
	purged int
}

func (c *countedKeys) Purge(context.Context, int64) (int, error) {
	c.purged++
	return 0, nil
}

// If the purge of triggers cannot keep up, idempotency keys must be purged all the same. Otherwise
// Redis would fill up.
func TestPurgesDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind, keys := &endless{}, &countedKeys{}
		n := &Node{log: slog.New(slog.DiscardHandler)}
		n.st.triggers, n.st.idem, n.st.meta = behind, keys, memory.New().Meta()
		ctx, stop := context.WithTimeout(t.Context(), time.Hour+time.Second)
		defer stop()
		ps, ended := runner{n}.purges(), make(chan error)
		for _, name := range []string{"purge of triggers", "purge of idempotency keys"} {
			go func() { ended <- ps[name](ctx) }()
		}
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if keys.purged != 6 {
			t.Errorf("keys were purged %d times in an hour", keys.purged)
		}
		// The purge continues at the next tick, with a new limit.
		if behind.calls < 2500 {
			t.Errorf("triggers were purged %d times in an hour", behind.calls)
		}
	})
}
