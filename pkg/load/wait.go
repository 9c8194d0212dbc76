package load

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// prepareRequest makes the body of request g and waits until the request is due. It makes the body
// before the due time, so that the time for this does not count as time of the server. The result
// ok is false if the request must not be sent. The result waited is true if the worker began to
// wait before the due time.
func (s *stepRun) prepareRequest(ctx context.Context, req *Request, body *[]byte, start time.Time, g int64) (due time.Duration, waited, ok bool) {
	begin := time.Duration(s.begin.Load())
	for {
		var changed <-chan struct{}
		if s.sched == nil {
			if !s.waitWhilePaused(ctx, start) {
				return 0, false, false
			}
			due = time.Since(start)
		} else if due, changed = s.dueOf(g); changed != nil && due >= s.length {
			if !waitOrChanged(ctx, start, s.length, changed) {
				return 0, false, false
			}
			continue
		}
		req.Intended = begin + due
		if s.Target != Kafka {
			*body = s.data.appendRequest((*body)[:0], uint64(req.N), req.Seq, req.Size, req.Intended)
		}
		req.Body = *body
		if s.sched == nil {
			s.asked.Add(int64(req.Size))
			return time.Since(start), false, true
		}
		waited = waited || time.Since(start) < due
		if changed == nil {
			return due, waited, s.run.waitUntil(ctx, start.Add(due))
		}
		if !waitOrChanged(ctx, start, due, changed) {
			return due, waited, ctx.Err() == nil
		}
	}
}

// waitWhilePaused waits while the run is paused. Only closed loops need it, because their requests
// have no due time. It returns false if the phase or ctx ends before the pause ends.
func (s *stepRun) waitWhilePaused(ctx context.Context, start time.Time) bool {
	for s.run.steer != nil {
		st, changed := s.run.steer.state()
		if !st.Paused {
			break
		}
		if !waitOrChanged(ctx, start, s.length, changed) {
			return false
		}
	}
	return true
}

// waitOrChanged returns true if the channel changed is closed before the time d has passed since
// start. It returns false when d has passed, or when ctx ends. If d is the constant never, only the
// channel and ctx end the wait.
func waitOrChanged(ctx context.Context, start time.Time, d time.Duration, changed <-chan struct{}) bool {
	var over <-chan time.Time
	if d != never {
		left := d - time.Since(start)
		if left <= 0 {
			return false
		}
		t := time.NewTimer(left)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-over:
	case <-ctx.Done():
	case <-changed:
		return true
	}
	return false
}

// waitUntil sleeps until the given moment. It returns false if ctx ends first. If the moment has
// already passed, it returns at once, because a late request is still sent.
func waitUntil(ctx context.Context, moment time.Time) bool {
	return notify.Sleep(ctx, time.Until(moment))
}

// probeEvery is how often the probe checks whether the generator wakes on time.
const probeEvery = 10 * time.Millisecond

// probe measures how late an idle goroutine wakes, until ctx ends. If all workers wait for answers,
// no worker waits for a due time. Then the wake-ups of workers cannot show whether the generator
// wakes on time, and the wake-ups of the probe are used.
func probe(ctx context.Context, r *Run, rec *recorder) {
	for {
		at := time.Now().Add(probeEvery)
		if !r.waitUntil(ctx, at) {
			return
		}
		woke := time.Since(at)
		rec.mu.Lock()
		recordValue(rec.win.wake, woke, 1)
		rec.mu.Unlock()
	}
}
