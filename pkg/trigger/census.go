package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// recountEvery is how often a caller at its limit is counted anew.
const recountEvery = time.Minute

// Census knows about how many triggers each caller has waiting: what this
// process created and ended since the last count. Other processes' changes are
// seen by counting, so nobody is refused before the store itself says that
// there are too many. A limit against runaway callers, not a quota to the last
// trigger. Safe for concurrent use.
type Census struct {
	triggers engine.Triggers

	mu      sync.Mutex
	callers map[string]*tally
}

type tally struct {
	waiting int
	counted time.Time // when the store was last asked
}

// NewCensus returns a census that has counted nobody.
func NewCensus(t engine.Triggers) *Census {
	return &Census{triggers: t, callers: map[string]*tally{}}
}

// add notes that n triggers of a caller began (or, below 0, ended) to wait.
func (c *Census) add(caller string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.ofLocked(caller)
	t.waiting = max(t.waiting+n, 0)
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

// set takes a count of the store over all callers.
func (c *Census) set(counts map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for caller, t := range c.callers {
		t.waiting, t.counted = counts[caller], now
	}
	for caller, n := range counts {
		*c.ofLocked(caller) = tally{n, now}
	}
}

// full reports whether n more would be more than most. Before it says so it
// counts, at most once per recountEvery and caller.
func (c *Census) full(ctx context.Context, caller string, n, most int) (bool, error) {
	c.mu.Lock()
	t := c.ofLocked(caller)
	now := time.Now()
	over := t.waiting+n > most
	count := over && (t.counted.IsZero() || now.Sub(t.counted) >= recountEvery)
	if count {
		t.counted = now // others of this moment believe what is known
	}
	c.mu.Unlock()
	if !count {
		return over, nil
	}
	waiting, err := c.count(ctx, caller, most)
	c.mu.Lock()
	defer c.mu.Unlock()
	t = c.ofLocked(caller)
	if err != nil {
		t.counted = time.Time{}
		return false, err
	}
	t.waiting = waiting
	return waiting+n > most, nil
}

// count asks the store how many triggers of a caller wait, up to one more than
// most.
func (c *Census) count(ctx context.Context, caller string, most int) (int, error) {
	const page = 1000
	n := 0
	var after engine.TriggerCursor
	for n <= most {
		rows, err := c.triggers.List(ctx, caller, engine.TriggerPending, after, page)
		if err != nil {
			return 0, err
		}
		n += len(rows)
		if len(rows) < page {
			break
		}
		after.ID = rows[len(rows)-1].ID
	}
	return n, nil
}
