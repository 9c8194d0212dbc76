package main

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// stoodStill is the longest time for which the machine may stop during a fault. If it stopped
	// for longer and the fault failed, the fault is run again. stoodStill is shorter than every
	// lease and session of notifyd.
	stoodStill = 2 * time.Second
	// tries is the largest number of runs of one fault.
	tries = 3
)

// stalls measures how long this process did not run. If the machine is suspended, no process runs
// in that time. When the processes continue, their leases and sessions may have expired.
type stalls struct{ longest atomic.Int64 }

// watch measures the stalls until ctx ends.
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

// note records a stall. Only the method watch may call it: with two callers, the longer stall could
// be lost.
func (s *stalls) note(d time.Duration) {
	if int64(d) > s.longest.Load() {
		s.longest.Store(int64(d))
	}
}

// take returns the longest stall since the last call of take.
func (s *stalls) take() time.Duration { return time.Duration(s.longest.Swap(0)) }
