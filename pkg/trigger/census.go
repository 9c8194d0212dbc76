package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// recountEvery is the shortest time between two counts of a caller that is at its limit.
const recountEvery = time.Minute

// Census estimates how many triggers each caller has waiting: the last count, plus what this
// process has created and ended since. It sees other processes' changes by counting in the store:
// when this process believes a caller to be at its limit, and, if the store is shared, each time it
// has created a tenth of the limit. So no caller is refused before the store itself shows too many
// triggers, and each process may admit a tenth of the limit beyond it. It is a limit against
// runaway callers, not an exact quota. It is safe for concurrent use.
type Census struct {
	triggers engine.Triggers
	shared   bool // other processes use the store too, and this one does not see what they create and end

	mu      sync.Mutex
	callers map[string]*callerCount
}

type callerCount struct {
	waiting  int
	created  int         // by this process since the last count
	counted  time.Time   // when the store was last asked
	counting *storeCount // the count in progress; nil: none
}

type storeCount struct {
	done chan struct{} // closed once err is set
	err  error
}

// NewCensus returns a census that has counted no caller yet. shared: other processes create and end
// triggers in the same store.
func NewCensus(t engine.Triggers, shared bool) *Census {
	return &Census{triggers: t, shared: shared, callers: map[string]*callerCount{}}
}

// add notes that n triggers of a caller began to wait or, below 0, stopped waiting.
func (c *Census) add(caller string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.ofLocked(caller)
	t.waiting, t.created = max(t.waiting+n, 0), t.created+max(n, 0)
}

func (c *Census) ofLocked(caller string) *callerCount {
	t := c.callers[caller]
	if t == nil {
		t = &callerCount{}
		c.callers[caller] = t
	}
	return t
}

// Waiting returns about how many triggers of a caller wait.
func (c *Census) Waiting(caller string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.callers[caller]; t != nil {
		return t.waiting
	}
	return 0
}

// Set stores a count of the store over all callers.
func (c *Census) Set(counts map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for caller, t := range c.callers {
		t.waiting, t.created, t.counted = counts[caller], 0, now
	}
	for caller, n := range counts {
		t := c.ofLocked(caller)
		t.waiting, t.created, t.counted = n, 0, now
	}
}

// wouldExceed reports whether n more triggers would exceed most. Before it returns true it counts
// in the store, at most once per recountEvery and caller. Other requests of the caller wait for
// that count.
func (c *Census) wouldExceed(ctx context.Context, caller string, n, most int) (bool, error) {
	for {
		c.mu.Lock()
		t := c.ofLocked(caller)
		over := t.waiting+n > most
		stale := t.counted.IsZero() || time.Since(t.counted) >= recountEvery
		if !(over && stale) && !(c.shared && t.created >= max(most/10, 1)) {
			c.mu.Unlock()
			return over, nil
		}
		r, mine := t.counting, t.counting == nil
		if mine {
			r = &storeCount{done: make(chan struct{})}
			t.counting = r
		}
		c.mu.Unlock()
		if mine {
			c.recount(ctx, r, caller, most)
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		switch {
		case r.err != nil:
			return false, r.err
		case mine:
			return c.Waiting(caller)+n > most, nil
		}
	}
}

// recount counts in the store. The result may or may not include what this process created in the
// meantime, so that is added to it.
func (c *Census) recount(ctx context.Context, r *storeCount, caller string, most int) {
	defer close(r.done)
	c.mu.Lock()
	before := c.ofLocked(caller).created
	c.mu.Unlock()
	waiting, err := c.triggers.CountOpen(context.WithoutCancel(ctx), caller, most) // other requests wait for it
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.ofLocked(caller)
	t.counting, r.err = nil, err
	if err == nil {
		t.created = max(t.created-before, 0) // Set may have been called in between
		t.waiting, t.counted = waiting+t.created, time.Now()
	}
}
