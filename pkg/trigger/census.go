package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// recountEvery is the shortest time between two counts of a caller that is at its limit.
const recountEvery = time.Minute

// Census estimates how many triggers of each caller are waiting. The estimate is the result of the
// last count in the store, plus the triggers that this process has created since then, minus the
// triggers that have ended in this process. Changes by other processes become visible only with the
// next count.
//
// Census counts in the store before it refuses a caller. If the store is shared, it also counts
// each time this process has created limit/10 triggers of the caller. So each process may exceed
// the limit by a tenth. The limit is not an exact quota: it protects against callers that create
// triggers without end. Census is safe for concurrent use.
type Census struct {
	triggers engine.Triggers
	// True if other processes use the store too. This process does not see which triggers they create
	// and end.
	shared bool

	mu      sync.Mutex
	callers map[string]*callerCount
}

type callerCount struct {
	waiting  int
	created  int         // triggers created by this process since the last count
	counted  time.Time   // when the store was last counted
	counting *storeCount // the count in progress; nil: no count is running
}

type storeCount struct {
	done chan struct{} // closed after err is set
	err  error
}

// NewCensus returns a Census that has not counted any caller. The parameter shared says whether
// other processes create and end triggers in the same store.
func NewCensus(t engine.Triggers, shared bool) *Census {
	return &Census{triggers: t, shared: shared, callers: map[string]*callerCount{}}
}

// add records that n triggers of a caller began to wait. If n is negative, -n triggers stopped
// waiting.
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

// Waiting returns the estimated number of waiting triggers of a caller.
func (c *Census) Waiting(caller string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.callers[caller]; t != nil {
		return t.waiting
	}
	return 0
}

// Set replaces the estimates of all callers by a count of the whole store.
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

// wouldExceed reports whether n more triggers would exceed the limit. Before it returns true, it
// counts in the store, at most once per recountEvery for each caller. Other requests of the same
// caller wait for that count.
func (c *Census) wouldExceed(ctx context.Context, caller string, n, limit int) (bool, error) {
	for {
		c.mu.Lock()
		t := c.ofLocked(caller)
		over := t.waiting+n > limit
		stale := t.counted.IsZero() || time.Since(t.counted) >= recountEvery
		if !(over && stale) && !(c.shared && t.created >= max(limit/10, 1)) {
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
			c.recount(ctx, r, caller, limit)
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
			return c.Waiting(caller)+n > limit, nil
		}
	}
}

// recount counts in the store. The result may or may not include triggers that this process created
// during the count. So recount adds these triggers to the result.
func (c *Census) recount(ctx context.Context, r *storeCount, caller string, limit int) {
	defer close(r.done)
	c.mu.Lock()
	before := c.ofLocked(caller).created
	c.mu.Unlock()
	// A cancelled request must not stop the count, because other requests wait for it.
	waiting, err := c.triggers.CountOpen(context.WithoutCancel(ctx), caller, limit)
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.ofLocked(caller)
	t.counting, r.err = nil, err
	if err == nil {
		t.created = max(t.created-before, 0) // Set may have been called in the meantime
		t.waiting, t.counted = waiting+t.created, time.Now()
	}
}
