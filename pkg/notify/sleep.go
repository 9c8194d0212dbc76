package notify

import (
	"cmp"
	"context"
	"time"
)

// Sleep waits for d and returns true. If ctx ends first, it returns false.
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

// Pause waits between the attempts of an operation that is repeated until it succeeds. The first wait
// is 50 ms. Each later wait is twice as long as the wait before, up to Most.
type Pause struct {
	Most time.Duration // longest wait; 0: 2 s
	last time.Duration // the previous wait
}

// Wait waits for the next, longer pause. It returns false if ctx ends first.
func (p *Pause) Wait(ctx context.Context) bool {
	p.last = min(max(2*p.last, 50*time.Millisecond), cmp.Or(p.Most, 2*time.Second))
	return Sleep(ctx, p.last)
}
