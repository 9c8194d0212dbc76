package users

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// follower keeps what this process holds of a store current: it reads the store's
// changes in order.
type follower struct {
	asOf atomic.Pointer[time.Time] // all changes before are applied; nil: nothing was read yet

	mu     sync.Mutex // is held while changes are read and applied
	cursor uint64     // changes up to here are applied
}

// gather is how long run waits after a wake, so that it looks 100 times a second at most.
const gather = 10 * time.Millisecond

// run calls look at once, every cfg.Poll and after each wake, until ctx ends. It returns
// nil. It logs the first failure of a row of them, with the message failed.
func (f *follower) run(ctx context.Context, cfg *Config, failed string, wake <-chan struct{}, look func(context.Context) error) error {
	failing := false
	tick := time.NewTicker(cfg.Poll)
	defer tick.Stop()
	for {
		err := look(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			cfg.Log.Error(failed, "err", err, "age", f.age(time.Now()))
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-wake:
			notify.Sleep(ctx, gather) // changes come in numbers: one look for all of them
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// follow reads all changes that were stored before the call and has apply apply them.
// apply moves the cursor.
func follow[T any](ctx context.Context, f *follower, batch int, read func(ctx context.Context, after uint64, n int) ([]T, error), apply func([]T)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		at := time.Now()
		changes, err := read(ctx, f.cursor, batch)
		if err != nil {
			return err
		}
		apply(changes)
		if len(changes) < batch {
			f.asOf.Store(&at)
			return nil
		}
	}
}

// age is how long ago all changes were known to be applied; very long before the first
// time.
func (f *follower) age(now time.Time) time.Duration {
	at := f.asOf.Load()
	if at == nil {
		return 1<<63 - 1
	}
	return max(now.Sub(*at), 0)
}
