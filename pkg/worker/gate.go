package worker

import (
	"context"
	"sync"
	"time"
)

// Gate stands before the claims of a lane. Shut, nothing more is claimed or
// called: what is in flight ends, what was polled waits as far as its bounds
// allow, and the log buffers the rest. The zero value is open. Safe for
// concurrent use.
type Gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: it is open; else closed when it opens
}

// Set shuts or opens the gate.
func (g *Gate) Set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.open == nil:
		g.open = make(chan struct{})
	case !shut && g.open != nil:
		close(g.open)
		g.open = nil
	}
}

// IsShut reports whether nothing passes. A nil gate is open.
func (g *Gate) IsShut() bool { return g.opens() != nil }

func (g *Gate) opens() <-chan struct{} {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// wait returns when the gate is open, or at expires (ms since 1970; 0: never), so
// that what has expired is dropped while its lane is paused. False: ctx has ended.
func (g *Gate) wait(ctx context.Context, expires int64) bool {
	var over <-chan time.Time
	for {
		open := g.opens()
		if open == nil {
			return true
		}
		if expires != 0 && over == nil {
			over = time.After(time.Until(time.UnixMilli(expires)))
		}
		select {
		case <-open:
		case <-over:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
