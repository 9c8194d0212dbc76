package worker

import (
	"context"
	"sync"
	"time"
)

// Gate stops a lane before its claims. While the gate is shut, nothing is claimed or called. Calls
// in flight continue until they end. Records that were polled already wait in memory, and later
// records stay in the log. The zero value is open. A Gate is safe for concurrent use.
type Gate struct {
	mu   sync.Mutex
	open chan struct{} // nil: the gate is open; otherwise the channel is closed when the gate opens
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

// IsShut reports whether the gate is shut. A nil gate is open.
func (g *Gate) IsShut() bool { return g.openCh() != nil }

// openCh returns nil if the gate is open. Otherwise it returns a channel that is closed when the
// gate opens.
func (g *Gate) openCh() <-chan struct{} {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// wait waits until the gate is open, and then returns true. It also returns true at the time in the
// parameter expires (ms since 1970; 0: never), so that expired envelopes are dropped while the lane
// is paused. It returns false if ctx has ended.
func (g *Gate) wait(ctx context.Context, expires int64) bool {
	var over <-chan time.Time
	for {
		open := g.openCh()
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
