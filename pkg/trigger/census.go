package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// recountEvery is how often a caller at its limit is counted anew.
const recountEvery = time.Minute

// Census knows about how many triggers each caller has waiting: what this process
// created and ended since the last count. Other processes' changes are seen by
// counting in the store: when this process believes a caller to be at its limit
// and, where the store is shared, each time it has created a tenth of the limit. So
// no caller is refused before the store itself says that there are too many, and each
// process may admit a tenth of the limit beyond it. A limit against runaway callers, not a quota to
// the last trigger. Safe for concurrent use.
type Census struct {
	triggers engine.Triggers
	shared   bool // other processes use the store too; this one is not told what they create and end

	mu      sync.Mutex
	callers map[string]*tally
}

type tally struct {
	waiting int
	created int         // by this process since the last count
	counted time.Time   // when the store was last asked
	under   *recounting // the count that is under way; nil: none is
}

type recounting struct {
	done chan struct{} // closed when err is set
	err  error
}

// NewCensus returns a census that has counted no caller yet. shared: other processes
// create and end triggers in the same store.
func NewCensus(t engine.Triggers, shared bool) *Census {
	return &Census{triggers: t, shared: shared, callers: map[string]*tally{}}
}

// add notes that n triggers of a caller began (or, below 0, ended) to wait.
func (c *Census) add(caller string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.ofLocked(caller)
	t.waiting, t.created = max(t.waiting+n, 0), t.created+max(n, 0)
}

func (c *Census) ofLocked(caller string) *tally {
	t := c.callers[caller]
	if t == nil {
		t = &tally{}
		c.callers[caller] = t
	}
	return t
}

// Waiting is about how many triggers of a caller wait.
func (c *Census) Waiting(caller string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.callers[caller]; t != nil {
		return t.waiting
	}
	return 0
}

// Set takes a count of the store over all callers.
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

// full reports whether n more would be more than most. Before it says so it
// counts, at most once per recountEvery and caller. Those who ask meanwhile wait
// for the count.
func (c *Census) full(ctx context.Context, caller string, n, most int) (bool, error) {
	for {
		c.mu.Lock()
		t := c.ofLocked(caller)
		over := t.waiting+n > most
		stale := t.counted.IsZero() || time.Since(t.counted) >= recountEvery
		if !(over && stale) && !(c.shared && t.created >= max(most/10, 1)) {
			c.mu.Unlock()
			return over, nil
		}
		r, mine := t.under, t.under == nil
		if mine {
			r = &recounting{done: make(chan struct{})}
			t.under = r
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

// recount asks the store. What this process created meanwhile may or may not be in
// its answer, and is added to it.
func (c *Census) recount(ctx context.Context, r *recounting, caller string, most int) {
	defer close(r.done)
	c.mu.Lock()
	before := c.ofLocked(caller).created
	c.mu.Unlock()
	waiting, err := c.triggers.CountOpen(context.WithoutCancel(ctx), caller, most) // others wait for it
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.ofLocked(caller)
	t.under, r.err = nil, err
	if err == nil {
		t.created = max(t.created-before, 0) // Set may have come between
		t.waiting, t.counted = waiting+t.created, time.Now()
	}
}
