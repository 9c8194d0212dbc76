package users

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// follower keeps this process's copy of a store current: it reads the store's changes in order.
type follower struct {
	asOf atomic.Pointer[time.Time] // all changes stored before it are applied; nil: nothing was read yet

	mu     sync.Mutex // held while changes are read and applied
	cursor uint64     // changes up to here are applied
}

// wakeDelay is how long run waits after a wake, so that it reads at most 100 times a second.
const wakeDelay = 10 * time.Millisecond

// run calls look at once, every cfg.Poll and after each wake, until ctx ends. It then returns nil.
// Of consecutive failures it logs only the first, with the message failed.
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
			notify.Sleep(ctx, wakeDelay) // changes come in groups: read them all at once
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// follow reads all changes stored before the call and passes them to apply, which must move the
// cursor.
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

// age returns how long ago all changes were known to be applied. Before the first time it returns
// the longest duration.
func (f *follower) age(now time.Time) time.Duration {
	at := f.asOf.Load()
	if at == nil {
		return 1<<63 - 1
	}
	return max(now.Sub(*at), 0)
}
