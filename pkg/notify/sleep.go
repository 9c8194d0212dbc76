package notify

import (
	"cmp"
	"context"
	"time"
)

// Sleep returns true after d, or false when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Pause waits between the tries of an operation that is repeated until it succeeds: first 50 ms,
// then twice as long each time, up to Most.
type Pause struct {
	Most time.Duration // 0: 2 s
	last time.Duration // the previous wait
}

// Wait waits for the next pause. It returns false if ctx ends first.
func (p *Pause) Wait(ctx context.Context) bool {
	p.last = min(max(2*p.last, 50*time.Millisecond), cmp.Or(p.Most, 2*time.Second))
	return Sleep(ctx, p.last)
}
