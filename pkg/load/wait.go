package load

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// ready makes the body of request g and waits until it is due; false: it is not to be
// sent. The body is made before its time: making it is our cost.
func (s *stepRun) ready(ctx context.Context, req *Request, body *[]byte, start time.Time, g int64) (due time.Duration, waited, ok bool) {
	begin := time.Duration(s.begin.Load())
	for {
		var changed <-chan struct{}
		if s.sched == nil {
			if !s.resumed(ctx, start) {
				return 0, false, false
			}
			due = time.Since(start)
		} else if due, changed = s.at(g); changed != nil && due >= s.length {
			if !waitOr(ctx, start, s.length, changed) {
				return 0, false, false
			}
			continue
		}
		req.Intended = begin + due
		if s.Target != Kafka {
			*body = s.data.request((*body)[:0], uint64(req.N), req.Seq, req.Size, req.Intended)
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
		if !waitOr(ctx, start, due, changed) {
			return due, waited, ctx.Err() == nil
		}
	}
}

// resumed waits while a closed loop is paused; false: its time is over.
func (s *stepRun) resumed(ctx context.Context, start time.Time) bool {
	for s.run.steer != nil {
		st, changed := s.run.steer.state()
		if !st.Paused {
			break
		}
		if !waitOr(ctx, start, s.length, changed) {
			return false
		}
	}
	return true
}

// waitOr waits until after d from start, or the end of ctx: false; or until changed:
// true.
func waitOr(ctx context.Context, start time.Time, d time.Duration, changed <-chan struct{}) bool {
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

// waitUntil sleeps until a time; a time that has passed is late, not skipped.
func waitUntil(ctx context.Context, at time.Time) bool { return notify.Sleep(ctx, time.Until(at)) }

// probeEvery is how often the generator looks whether it wakes on time.
const probeEvery = 10 * time.Millisecond

// probe records how late a goroutine wakes that has nothing else to do, until ctx ends.
// Workers that are all waiting for answers do not wait for a time, so they cannot say
// whether the generator's scheduling is on time.
func probe(ctx context.Context, r *Run, rec *recorder) {
	for {
		at := time.Now().Add(probeEvery)
		if !r.waitUntil(ctx, at) {
			return
		}
		woke := time.Since(at)
		rec.mu.Lock()
		put(rec.win.wake, woke, 1)
		rec.mu.Unlock()
	}
}
