package worker

import (
	"context"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// quota is a weighted semaphore whose waiters are served by category first
// (otp, alert, transactional, then the rest), then in the order they came: when
// capacity returns after a block, codes go first.
//
// While it is shut nobody is served: all wait in their order, not in that in
// which their goroutines happen to wake when it opens.
type quota struct {
	size int
	// shut, if set, reports whether the quota is shut, until when at most, and
	// a channel that is closed when that may have changed.
	shut func() (shut bool, until time.Time, change <-chan struct{})
	// claims, if set, lets more than size be taken of this quota, see there. Who
	// waits asks again when this quota is given something back, not when another
	// is: somebody holds something of it whenever one waits.
	claims *claims

	mu       sync.Mutex
	free     int
	wait     limit.Queue[waiter]
	watching bool
	idle     chan struct{} // closed when nobody waits any more; while watching
}

func newQuota(size int) *quota { return &quota{size: size, free: size} }

// acquire takes n (at most the whole size) or returns ctx's error.
func (q *quota) acquire(ctx context.Context, cat notify.Category, n int) (int, error) {
	return q.acquireOr(ctx, cat, 0, n, nil)
}

// acquireOr is acquire that returns 0 once or is closed. Of the same category
// the lowest place is served first; 0 is the place behind all who wait.
func (q *quota) acquireOr(ctx context.Context, cat notify.Category, place uint64, n int, or <-chan struct{}) (int, error) {
	n = min(n, q.size)
	q.mu.Lock()
	if q.wait.Len() == 0 && !q.isShut() && q.take(n) {
		q.mu.Unlock()
		return n, nil
	}
	wants := waiter{want: n, ready: make(chan struct{})}
	var w *limit.Waiting[waiter]
	if place == 0 {
		w = q.wait.Add(cat, wants)
	} else {
		w = q.wait.AddAt(cat, place, wants)
	}
	q.serve()
	q.mu.Unlock()
	select {
	case <-wants.ready:
		return n, nil
	case <-or:
		q.quit(w)
		return 0, nil
	case <-ctx.Done():
		q.quit(w)
		return 0, ctx.Err()
	}
}

// try takes n (at most the whole size) if nobody waits and they are free.
func (q *quota) try(n int) (int, bool) {
	n = min(n, q.size)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.wait.Len() == 0 && !q.isShut() && q.take(n) {
		return n, true
	}
	return 0, false
}

// quit ends the waiting of w, which may have been served at the same moment.
func (q *quota) quit(w *limit.Waiting[waiter]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-w.Value.ready:
		q.giveBack(w.Value.want)
	default:
		q.wait.Remove(w)
	}
	q.serve()
	if q.watching && q.wait.Len() == 0 {
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

// watch serves the waiters once the quota opens; it ends then, or when nobody
// waits any more.
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

func (q *quota) release(n int) {
	if n == 0 {
		return
	}
	q.mu.Lock()
	q.giveBack(n)
	q.serve()
	q.mu.Unlock()
}

// take reports whether n could be taken; free is negative when more than size is.
func (q *quota) take(n int) bool {
	own := q.free >= n
	ok := own
	if q.claims != nil {
		ok = q.claims.take(n, own)
	}
	if ok {
		q.free -= n
	}
	return ok
}

func (q *quota) giveBack(n int) {
	q.free += n
	if q.claims != nil {
		q.claims.take(-n, true)
	}
}

func (q *quota) serve() {
	if q.wait.Len() > 0 && q.isShut() {
		if !q.watching {
			q.watching, q.idle = true, make(chan struct{})
			go q.watch(q.idle)
		}
		return
	}
	for w := q.wait.First(); w != nil && q.take(w.Value.want); w = q.wait.First() {
		q.wait.Remove(w)
		close(w.Value.ready)
	}
}

// claims counts the receivers in the open windows of all partitions of a worker.
// Where the provider is slow, windows enough to fill it may be opened: a partition
// then has more of them than its own quota, while all hold fewer receivers than
// the provider may.
type claims struct {
	most int // receivers at the provider at once

	mu   sync.Mutex
	held int
	mean time.Duration // of the calls, the latest counting most
}

// slowCall is the mean of calls from which a provider is slow.
const slowCall = time.Second

// take counts n receivers more, unless that needs a slow provider with room for
// them (own: it does not). Less than 0 gives back.
func (c *claims) take(n int, own bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !own && (c.mean < slowCall || c.held+n > c.most) {
		return false
	}
	c.held += n
	return true
}

// called is told how long a call took.
func (c *claims) called(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mean += (d - c.mean) / 8
}

// waiter is a request that waits for capacity.
type waiter struct {
	want  int
	ready chan struct{} // closed when it has what it wants
}
