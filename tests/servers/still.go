package main

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// stoodStill is how long the machine may stand still during a fault whose figures
	// count: less than any of the product's leases and sessions.
	stoodStill = 2 * time.Second
	// tries are how often a fault is run where it does.
	tries = 3
)

// stalls watches whether this process runs. All processes of a machine that is
// suspended, or whose owner stops them, miss the same time, and their leases and
// sessions are over when they go on.
type stalls struct{ longest atomic.Int64 }

// watch looks until ctx ends.
func (s *stalls) watch(ctx context.Context) {
	const every = 100 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		s.note(now.Sub(last) - every)
		last = now
	}
}

// note is called by watch alone.
func (s *stalls) note(d time.Duration) {
	if int64(d) > s.longest.Load() {
		s.longest.Store(int64(d))
	}
}

// take returns the longest since the last call.
func (s *stalls) take() time.Duration { return time.Duration(s.longest.Swap(0)) }
