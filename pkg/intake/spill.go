package intake

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Spill is the bounded buffer of critical records while the log is away.
type Spill interface {
	// Push stores records in order; notify.KindUnavailable when limit bytes
	// would be passed, and nothing is stored.
	Push(ctx context.Context, recs []engine.Spilled, limit int64) error
	// Peek returns the oldest max records.
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
	// Drop removes the records up to seq, which are in the log now.
	Drop(ctx context.Context, seq uint64) error
	// Stats returns how many records and bytes wait, and since when (ms since
	// 1970; 0 when empty).
	Stats(ctx context.Context) (records, bytes, oldest int64, err error)
}

// sharedLooks lets requests share looks at the spill buffer, which is a round trip to Redis.
// Each request gets the answer of a look that began after it asked. So a request never
// overtakes what was spilled before it came. Safe for concurrent use.
type sharedLooks struct {
	mu   sync.Mutex
	busy bool  // a look is under way
	next *look // what requests wait for that asked since; nil: there are none
}

type look struct {
	done  chan struct{}
	holds bool // may be read once done is closed
}

// do returns the answer of a look. A request that finds none under way looks itself; all
// that ask meanwhile share the next one. ok is false if ctx ended before.
func (l *sharedLooks) do(ctx context.Context, at func(ctx context.Context) bool) (holds, ok bool) {
	l.mu.Lock()
	if !l.busy {
		l.busy = true
		l.mu.Unlock()
		defer l.handOver(at)
		return at(ctx), true
	}
	if l.next == nil {
		l.next = &look{done: make(chan struct{})}
	}
	next := l.next
	l.mu.Unlock()
	select {
	case <-next.done:
		return next.holds, true
	case <-ctx.Done():
		return false, false
	}
}

// handOver begins the look that requests wait for after the look before it.
func (l *sharedLooks) handOver(at func(ctx context.Context) bool) {
	if next := l.takeNext(); next != nil {
		go func() {
			for ; next != nil; next = l.takeNext() {
				next.holds = at(context.Background())
				close(next.done)
			}
		}()
	}
}

// takeNext returns the look that requests wait for; nil: none do.
func (l *sharedLooks) takeNext() *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.next
	l.next, l.busy = nil, next != nil
	return next
}
