package users

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// follower reads the changes of a store in order, so that this process's copy of the store stays
// current.
type follower struct {
	// All changes stored before this time are applied. nil: no changes were read yet.
	asOf atomic.Pointer[time.Time]

	mu     sync.Mutex // held while changes are read and applied
	cursor uint64     // changes with versions up to cursor are applied
}

// wakeDelay is how long run waits after a wake, so that it reads the store at most 100 times a
// second.
const wakeDelay = 10 * time.Millisecond

// run calls the function refresh at once, then at intervals of cfg.Poll and after each message on
// the channel wake, until ctx ends. It then returns nil. If several calls of refresh in a row fail,
// run logs only the first failure, with the message in the parameter failed.
func (f *follower) run(ctx context.Context, cfg *Config, failed string, wake <-chan struct{}, refresh func(context.Context) error) error {
	failing := false
	tick := time.NewTicker(cfg.Poll)
	defer tick.Stop()
	for {
		err := refresh(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			cfg.Log.Error(failed, "err", err, "age", f.age(time.Now()))
		}
		failing = err != nil
		select {
		case <-tick.C:
		case <-wake:
			notify.Sleep(ctx, wakeDelay) // changes arrive in groups: read the whole group at once
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// follow reads all changes stored before the call and passes them to the function apply, which must
// set f.cursor to the version of the last change.
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

// age returns the time since all changes of the store were last certainly applied. Before the first
// follow it returns the longest duration.
func (f *follower) age(now time.Time) time.Duration {
	at := f.asOf.Load()
	if at == nil {
		return 1<<63 - 1
	}
	return max(now.Sub(*at), 0)
}
