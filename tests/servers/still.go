package main

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// stoodStill bounds how long the machine may stand still during a fault whose figures
	// count. It is shorter than every lease and session of notifyd.
	stoodStill = 2 * time.Second
	// tries is how often a fault is run at most if the machine stands still.
	tries = 3
)

// stalls measures how long this process did not run. If the machine is suspended, all processes
// miss the same time, and their leases and sessions have expired when they go on.
type stalls struct{ longest atomic.Int64 }

// watch measures until ctx ends.
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

// take returns the longest stall since the last call.
func (s *stalls) take() time.Duration { return time.Duration(s.longest.Swap(0)) }
