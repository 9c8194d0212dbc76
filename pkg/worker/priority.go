package worker

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// quota is a weighted semaphore. It serves waiting goroutines by category: first otp, then alert,
// then transactional, then all others. Within a category it serves them in the order of arrival, or
// by place (see acquireUntil). While the quota is shut, it serves no goroutine.
type quota struct {
	size int
	// shut, if set, returns whether the quota is shut. It also returns the time at which to check
	// again, and a channel that is closed if the state may have changed before that time.
	shut func() (shut bool, until time.Time, change <-chan struct{})
	// shared, if set, allows goroutines to acquire more than the quota's size while the provider is
	// slow; see openReceivers. A waiting goroutine is served when this quota gets capacity back, not
	// when the quota of another partition does. That is enough, because while a goroutine waits, some
	// capacity of this quota is in use and will return.
	shared *openReceivers

	mu       sync.Mutex // guards the fields below
	free     int
	waiters  limit.Queue[quotaWaiter]
	watching bool          // a goroutine runs the method watch
	idle     chan struct{} // closed to end that goroutine when no other goroutine waits any more
}

func newQuota(size int) *quota { return &quota{size: size, free: size} }

// acquire waits until it has acquired n units of capacity, or the whole capacity if n is larger. It
// returns the number of units that it acquired. If ctx ends first, it returns ctx's error.
func (q *quota) acquire(ctx context.Context, cat notify.Category, n int) (int, error) {
	return q.acquireUntil(ctx, cat, 0, n, nil)
}

// acquireUntil does the same as acquire, but if the channel stop is closed first, it returns 0 and
// no error. Within a category, the goroutine with the lowest value of place is served first. If
// place is 0, the goroutine is served after all goroutines of its category that wait now.
func (q *quota) acquireUntil(ctx context.Context, cat notify.Category, place uint64, n int, stop <-chan struct{}) (int, error) {
	n = min(n, q.size)
	q.mu.Lock()
	if q.waiters.Len() == 0 && !q.isShut() && q.take(n) {
		q.mu.Unlock()
		return n, nil
	}
	wants := quotaWaiter{want: n, ready: make(chan struct{})}
	var w *limit.Waiting[quotaWaiter]
	if place == 0 {
		w = q.waiters.Add(cat, wants)
	} else {
		w = q.waiters.AddAt(cat, place, wants)
	}
	q.serve()
	q.mu.Unlock()
	select {
	case <-wants.ready:
		return n, nil
	case <-stop:
		q.stopWaiting(w)
		return 0, nil
	case <-ctx.Done():
		q.stopWaiting(w)
		return 0, ctx.Err()
	}
}

// tryAcquire acquires n units, or the whole capacity if n is larger, but never waits. It returns
// false if another goroutine waits, the quota is shut, or too few units are free.
func (q *quota) tryAcquire(n int) (int, bool) {
	n = min(n, q.size)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters.Len() == 0 && !q.isShut() && q.take(n) {
		return n, true
	}
	return 0, false
}

// stopWaiting removes the waiter w. If w was served at the same moment, stopWaiting gives its
// capacity back.
func (q *quota) stopWaiting(w *limit.Waiting[quotaWaiter]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.Value.ready:
		q.giveBack(w.Value.want)
	default:
		q.waiters.Remove(w)
	}
	q.serve()
	if q.watching && q.waiters.Len() == 0 {
		close(q.idle)
		q.watching = false
	}
}

func (q *quota) isShut() bool {
	if q.shut == nil {
		return false
	}
	shut, _, _ := q.shut()
	return shut
}

// watch waits until the quota opens, and then serves the waiting goroutines. If the channel idle is
// closed first, it only returns.
func (q *quota) watch(idle <-chan struct{}) {
	for {
		shut, until, change := q.shut()
		if !shut {
			break
		}
		t := time.NewTimer(max(time.Until(until), time.Millisecond))
		select {
		case <-t.C:
		case <-change:
		case <-idle:
			t.Stop()
			return
		}
		t.Stop()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-idle:
	default:
		q.watching = false
		q.serve()
	}
}

// release gives n units back and serves the goroutines that wait.
func (q *quota) release(n int) {
	if n == 0 {
		return
	}
	q.mu.Lock()
	q.giveBack(n)
	q.serve()
	q.mu.Unlock()
}

// take acquires n units if it can, and returns whether it has done so. While more units are in use
// than the quota's size, the number of free units is negative. The caller holds mu.
func (q *quota) take(n int) bool {
	hasFree := q.free >= n
	ok := hasFree
	if q.shared != nil {
		ok = q.shared.take(n, hasFree)
	}
	if ok {
		q.free -= n
	}
	return ok
}

// giveBack makes n units free again. The caller holds mu, and must call serve afterwards, so that
// waiting goroutines get these units.
func (q *quota) giveBack(n int) {
	q.free += n
	if q.shared != nil {
		q.shared.take(-n, true)
	}
}

// serve gives free capacity to the waiting goroutines, in order, while there is enough for the next
// one. If the quota is shut, it instead starts a goroutine that runs the method watch, unless such
// a goroutine runs already. The caller holds mu.
func (q *quota) serve() {
	if q.waiters.Len() > 0 && q.isShut() {
		if !q.watching {
			q.watching, q.idle = true, make(chan struct{})
			go q.watch(q.idle)
		}
		return
	}
	for w := q.waiters.First(); w != nil && q.take(w.Value.want); w = q.waiters.First() {
		q.waiters.Remove(w)
		close(w.Value.ready)
	}
}

// openReceivers counts the receivers in the open windows of all partitions of a worker. Normally a
// partition may open only as many windows as its own quota allows. While the provider is slow, that
// would be too little work for the provider, so the partition may then open more windows, up to the
// number of receivers that the provider may have at once.
type openReceivers struct {
	limit int // receivers that may be at the provider at once

	mu       sync.Mutex // guards the fields below
	held     int
	meanCall time.Duration // moving average of the duration of calls
}

// slowCall is the average duration of calls at which a provider counts as slow.
const slowCall = time.Second

// take counts n more receivers. A negative n gives receivers back. quotaHasRoom means that the
// partition's own quota has room for the receivers. If quotaHasRoom is false, take succeeds only
// while the provider is slow and has room for n more receivers.
func (c *openReceivers) take(n int, quotaHasRoom bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !quotaHasRoom && (c.meanCall < slowCall || c.held+n > c.limit) {
		return false
	}
	c.held += n
	return true
}

// noteCall adds the duration of a call to the average.
func (c *openReceivers) noteCall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meanCall += (d - c.meanCall) / 8
}

// quotaWaiter is a goroutine that waits for capacity.
type quotaWaiter struct {
	want  int
	ready chan struct{} // closed when the goroutine has got what it wants
}
