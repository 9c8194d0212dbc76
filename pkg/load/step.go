package load

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// stepRun is one step of one phase while it runs.
type stepRun struct {
	*Step
	phase  *PhaseSpec
	run    *Run
	target Target
	data   *data
	sched  schedule // nil: closed loop
	first  int64    // number of its first request; a step goes on counting in the next phase
	last   int64    // requests at most, of this phase, all segments together
	most   int64    // likewise, were there no end of the phase
	length time.Duration
	sink   *sink // of a null step
	recs   []*recorder

	next   atomic.Int64  // of this phase and segment
	begin  atomic.Int64  // ns since the run's start; -1: not begun
	ended  atomic.Int64  // ns since the run's start; 0: not ended
	asked  atomic.Int64  // closed loop: messages handed out
	lapsed atomic.Int64  // messages of requests that failed
	taking chan struct{} // held by the bulk worker that takes

	// The coordinator's.
	total  *window
	second *window
	row    SecondStep
	rates  Rates
}

const maxRecorders = 8

// newStepRun compiles a step; first is the number of its first request.
func newStepRun(r *Run, p *PhaseSpec, st *Step, d *data, first int64) (*stepRun, error) {
	s := &stepRun{Step: st, phase: p, run: r, data: d, first: first, length: p.Duration.of() - st.Start.of(), last: math.MaxInt64, most: math.MaxInt64}
	if p.Duration == 0 {
		s.length = never
	}
	s.taking = make(chan struct{}, 1)
	s.begin.Store(-1)
	s.target = r.cfg.Target
	if st.Target == Null {
		s.sink = &sink{}
		s.target = s.sink
	} else if t := r.cfg.Targets[st.Target]; t != nil {
		s.target = t
	}
	if !st.closed() {
		length := s.length
		if length == never {
			length = 0
		}
		var err error
		if s.sched, err = newSchedule(&st.Arrival, st.Size, length, notify.Mix(d.seed^uint64(first))); err != nil {
			return nil, notify.Invalid(codeScenario, "arrival", err.Error())
		}
		if t, ok := s.sched.(trace); ok {
			s.last = int64(len(t))
			s.most = s.last
		}
		if s.length != never { // due before the phase ends
			s.last = min(s.last, s.sched.by(s.length-1))
		}
	}
	if st.Count > 0 {
		requests := (int64(st.Count) + int64(st.Size) - 1) / int64(st.Size)
		s.last, s.most = min(s.last, requests), min(s.most, requests)
	}
	for range min(st.Workers, maxRecorders) {
		s.recs = append(s.recs, newRecorder())
	}
	s.total, s.second = newWindow(), newWindow()
	return s, nil
}

// global is the number, in its phase, of the l-th request of the segment.
func (s Segment) global(l int64) int64 { return l*int64(s.N) + int64(s.I-1) }

// local is how many of the first g requests are the segment's.
func (s Segment) local(g int64) int64 {
	n, i := int64(s.N), int64(s.I)
	return max((g-i+n)/n, 0)
}

func (s *stepRun) global(l int64) int64 { return s.run.cfg.Segment.global(l) }
func (s *stepRun) local(g int64) int64  { return s.run.cfg.Segment.local(g) }

// size is how many messages request g has: the last one may have fewer.
func (s *stepRun) size(g int64) int {
	if s.Count > 0 {
		return int(min(int64(s.Size), int64(s.Count)-g*int64(s.Size)))
	}
	return s.Size
}

// messagesOf is how many the first g requests of the phase have that are a segment's.
func (s *stepRun) messagesOf(seg Segment, g int64) int64 {
	l := seg.local(g)
	n := l * int64(s.Size)
	if s.Count > 0 && l > 0 {
		if top := seg.global(l - 1); (top+1)*int64(s.Size) > int64(s.Count) {
			n -= (top+1)*int64(s.Size) - int64(s.Count)
		}
	}
	return n
}

// intended is how many messages were due by now, since the run's start.
func (s *stepRun) intended(now time.Duration) int64 {
	begin := s.begin.Load()
	if begin < 0 {
		return 0
	}
	if s.sched == nil {
		return s.asked.Load()
	}
	return s.messagesOf(s.run.cfg.Segment, s.by(now-time.Duration(begin)))
}

// send runs the step's workers to its end. What is due before the end of the
// phase and was not sent in time is sent late, until overrun after the end; what
// is left then was intended, and not sent. Where agents send, they say by closing sent
// that they have.
func (s *stepRun) send(ctx context.Context, began time.Time, sent <-chan struct{}) {
	start := began.Add(s.Start.of())
	if !waitUntil(ctx, start) {
		return
	}
	s.begin.Store(int64(s.run.since(start)))
	defer func() {
		end := s.run.since(time.Now())
		if f := s.run.feeds; f != nil {
			end = f.ended(s, end)
		}
		s.ended.Store(int64(end))
	}()
	if sent != nil {
		<-sent
		return
	}
	var wg sync.WaitGroup
	for w := range s.Workers {
		wg.Go(func() {
			if s.sink != nil && s.Size == 1 {
				s.bulk(ctx, s.recs[w%len(s.recs)], start)
				return
			}
			s.worker(ctx, int64(w), s.recs[w%len(s.recs)], start)
		})
	}
	wg.Wait()
}

// overrun is how long after its phase a step may go on with what is late.
func (s *stepRun) overrun() time.Duration {
	if s.length == never {
		return never
	}
	return s.length + min(max(s.length/2, 2*time.Second), 30*time.Second)
}

func (s *stepRun) worker(ctx context.Context, w int64, rec *recorder, start time.Time) {
	req := Request{Step: s.Step, data: s.data, WantIDs: s.run.wantIDs()}
	body := make([]byte, 0, 512+s.Size*24)
	for turn := int64(0); ctx.Err() == nil; turn++ {
		// Ordered, a user always has the same worker, which sends the next message
		// only after the answer to the one before: the order notifyd promises to keep.
		l := turn*int64(s.Workers) + w
		if !s.Ordered {
			l = s.next.Add(1) - 1
		} else if s.run.steer != nil {
			for at := s.next.Load(); at <= l && !s.next.CompareAndSwap(at, l+1); at = s.next.Load() {
			}
		}
		g := s.global(l)
		now := time.Since(start)
		if g >= s.until() || now >= s.overrun() || s.sched == nil && now >= s.length {
			return
		}
		n := s.first + g
		req.N, req.Seq, req.Size = n, uint64(n)*uint64(s.Size), s.size(g)
		req.kind = s.data.kind(uint64(n))
		if s.Keys || s.run.cfg.Keys != nil {
			req.Key = s.run.key(s, n)
		}
		due, waited, ok := s.ready(ctx, &req, &body, start, g)
		if !ok {
			return
		}
		s.one(ctx, rec, &req, start, &sample{taken: now, intended: due, waited: waited})
	}
}

// one sends a request and records how it went in the sample, of which the caller has
// filled in intended, taken and waited.
func (s *stepRun) one(ctx context.Context, rec *recorder, req *Request, start time.Time, smp *sample) {
	sent := time.Since(start)
	ack, err := s.run.attempt(s.target, req)
	for wait := 50 * time.Millisecond; err != nil && s.run.cfg.Keys != nil && again(err) && time.Since(start)-sent < s.run.cfg.Patience; wait = min(2*wait, time.Second) {
		if !waitUntil(ctx, time.Now().Add(max(wait, min(notify.RetryAfterOf(err), 2*time.Second)))) {
			break
		}
		ack, err = s.run.attempt(s.target, req)
	}
	end := time.Now()
	smp.sent, smp.done, smp.messages, smp.ack, smp.err, smp.at = sent, end.Sub(start), req.Size, ack, err, end
	rec.record(smp)
	if err != nil {
		s.lapsed.Add(int64(req.Size))
	}
	if err == nil && s.sink == nil {
		ack.Request, ack.Step = req.N, s.Step
		s.run.promised.add(s, req, &ack)
		if s.run.cfg.Acked != nil {
			s.run.cfg.Acked(ack)
		}
	}
}

// bulkMost bounds how many messages a worker takes at once: more than are due in a slot
// at 5M/s.
const bulkMost = 8192

// bulk is worker for single messages into the null sink: it takes all that are
// due, makes each body and records each message's own times. It wakes for slots of a millisecond or so, which is as fine as timers
// are; the intended time of each message is computed, not slept.
//
// One worker takes, and waits, at a time, and goes on with it: of 64 each woke for every
// slot, and one found something to do (4% of 5M/s). Who could not take all that was due
// lets another one take before it sends.
func (s *stepRun) bulk(ctx context.Context, rec *recorder, start time.Time) {
	body := make([]byte, 0, 4096)
	for mine := false; ; {
		if !mine {
			select {
			case s.taking <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		from, to := s.take(ctx, start)
		if mine = to > from && to < from+bulkMost; !mine {
			<-s.taking
		}
		if to == from {
			return
		}
		body = s.slot(rec, body, start, from, to)
	}
}

// take waits until messages are due and takes them; from == to: there are none any more.
// It is called by one worker at a time.
func (s *stepRun) take(ctx context.Context, start time.Time) (from, to int64) {
	from = s.next.Load()
	limit := s.local(min(s.until(), math.MaxInt64/2))
	for ctx.Err() == nil {
		now := time.Since(start)
		if now >= s.overrun() || from >= limit {
			break
		}
		due := int64(math.MaxInt64)
		if s.sched == nil {
			if now >= s.length || !s.resumed(ctx, start) {
				break
			}
		} else {
			first, changed := s.at(s.global(from))
			if changed != nil && first >= s.length {
				if !waitOr(ctx, start, s.length, changed) {
					break
				}
				continue
			}
			if wake := max(first, min(first, now)+slot); wake > now {
				if changed == nil {
					waitUntil(ctx, start.Add(wake))
				} else if waitOr(ctx, start, wake, changed) {
					continue
				}
				if ctx.Err() != nil {
					break
				}
			}
			due = s.local(s.by(time.Since(start)))
		}
		if to = min(due, limit, from+bulkMost); to > from {
			s.next.Store(to)
			return from, to
		}
	}
	return from, from
}

// slot is what a bulk worker takes at once: it sleeps until the first message has been
// due for so long, or until the first one is due where that is later than a slot from
// now. At 5M/s another one is due every 200 ns: a worker that took whatever was due
// would never sleep, and take a handful at a time.
const slot = time.Millisecond

func (s *stepRun) slot(rec *recorder, body []byte, start time.Time, from, to int64) []byte {
	sent := time.Since(start)
	begin := time.Duration(s.begin.Load())
	bodies := s.data.singles(body, uint64(s.first+s.global(from)), uint64(s.run.cfg.Segment.N))
	for l := from; l < to; l++ {
		g := s.global(l)
		bodies.next(uint64(s.first+g), begin+sent)
	}
	n := to - from
	s.sink.taken.Add(n)
	done := time.Since(start)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	w := rec.win
	if s.sched == nil {
		s.asked.Add(n)
		put(w.lag, 0, n)
		put(w.response, done-sent, n)
		w.heat[heatBucket(done-sent)] += n
	} else {
		lag, response := run{h: w.lag}, run{h: w.response, heat: &w.heat}
		for l := from; l < to; l++ {
			due := s.was(s.global(l))
			lag.add(sent - due)
			response.add(done - due)
		}
		lag.flush()
		response.flush()
		// Nothing answers here, so whatever is late is late by our own doing.
		put(w.wake, sent-s.was(s.global(from))-slot, 1)
	}
	put(w.service, done-sent, n)
	w.own += done - sent // nothing is waited for
	w.requests += n
	w.sent += n
	w.acked += n
	return bodies.body
}

// again reports whether a request whose outcome is unknown may be repeated
// under its key.
func again(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindThrottled, notify.KindInternal, notify.KindConflict:
		return true
	}
	return false
}
