package intake

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Spill is the bounded buffer for critical records (otp and alert) while the log is down.
type Spill interface {
	// Push stores records in order. If the buffer would exceed limit bytes, Push returns
	// notify.KindUnavailable and stores nothing.
	Push(ctx context.Context, recs []engine.Spilled, limit int64) error
	// Peek returns the oldest records, at most max.
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
	// Drop removes the records up to and including the sequence number seq. The caller drops
	// records after they are in the log.
	Drop(ctx context.Context, seq uint64) error
	// Stats returns the number of records and bytes in the buffer, and the accept time of the
	// oldest record in ms since 1970 (0 if the buffer is empty).
	Stats(ctx context.Context) (records, bytes, oldest int64, err error)
}

// sharedLooks lets several requests share one read of the spill buffer, because each read is a
// round trip to Redis. Every request gets the result of a read that began after the request called
// await. So a request never overtakes records that were spilled before it arrived. sharedLooks is
// safe for concurrent use.
type sharedLooks struct {
	mu      sync.Mutex
	looking bool        // a read is in progress
	next    *sharedLook // the next read, for which requests wait; nil: no request waits
}

type sharedLook struct {
	done   chan struct{}
	result bool // may be read after done is closed
}

// await returns the result of a call of the function read, which reads the buffer. If no such
// call is in progress, await calls the function itself. Requests that arrive during a call share
// the next call. The result ok is false if ctx ended first.
func (l *sharedLooks) await(ctx context.Context, read func(ctx context.Context) bool) (holds, ok bool) {
	l.mu.Lock()
	if !l.looking {
		l.looking = true
		l.mu.Unlock()
		defer l.runNext(read)
		return read(ctx), true
	}
	if l.next == nil {
		l.next = &sharedLook{done: make(chan struct{})}
	}
	next := l.next
	l.mu.Unlock()
	select {
	case <-next.done:
		return next.result, true
	case <-ctx.Done():
		return false, false
	}
}

// runNext starts a goroutine that reads the buffer as long as requests wait for a read.
func (l *sharedLooks) runNext(read func(ctx context.Context) bool) {
	if next := l.takeNext(); next != nil {
		go func() {
			for ; next != nil; next = l.takeNext() {
				next.result = read(context.Background())
				close(next.done)
			}
		}()
	}
}

// takeNext returns the next read, for which requests already wait. It returns nil if no request
// waits.
func (l *sharedLooks) takeNext() *sharedLook {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.next
	l.next, l.looking = nil, next != nil
	return next
}
