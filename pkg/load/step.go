package load

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// stepRun is one step of one phase during a run. The goroutines of its workers use it. The fields
// in the first block do not change while the step sends. The fields in the second block are safe
// for concurrent use. The fields in the third block belong to the coordinator.
type stepRun struct {
	*Step
	phase  *PhaseSpec
	run    *Run
	target Target
	data   *data
	sched  schedule // nil: the step is a closed loop
	// firstRequest is the number of the first request. It is greater than 0 if an earlier phase has
	// sent requests of this step.
	firstRequest    int64
	plannedRequests int64 // number of requests planned for this phase, of all segments together
	// mostRequests is how many requests the step may send if the run is steered. It is computed
	// like plannedRequests, but also counts the requests that are due only after the end of the
	// phase, because a higher pace makes them due earlier.
	mostRequests int64
	sized        *traceSizes // sizes of the requests of a trace; nil: each request has Size messages
	length       time.Duration
	sink         *sink // target of a null step; nil for other steps
	recs         []*recorder

	next     atomic.Int64  // number of the next request, counted in this phase and segment
	begin    atomic.Int64  // ns since the run's start; -1: not begun
	ended    atomic.Int64  // ns since the run's start; 0: not ended
	asked    atomic.Int64  // in a closed loop: messages of all requests that workers have started
	lapsed   atomic.Int64  // messages in requests that failed
	bulkTurn chan struct{} // a semaphore with one place, see bulkWorker

	// The fields below belong to the coordinator's goroutine.
	totalCounts *window
	lastSecond  *window
	row         SecondStep
	rates       Rates
}

const maxRecorders = 8

// newStepRun prepares a step for sending. The parameter first is the number of its first request.
// newStepRun returns an error of notify.KindInvalid if the arrival of the step is wrong, for
// example if a trace cannot be read.
func newStepRun(r *Run, p *PhaseSpec, st *Step, d *data, first int64) (*stepRun, error) {
	s := &stepRun{Step: st, phase: p, run: r, data: d, firstRequest: first, length: p.Duration.of() - st.Start.of(), plannedRequests: math.MaxInt64, mostRequests: math.MaxInt64}
	if p.Duration == 0 {
		s.length = never
	}
	s.bulkTurn = make(chan struct{}, 1)
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
		if t, ok := s.sched.(*trace); ok {
			s.plannedRequests = t.requests()
			s.mostRequests = s.plannedRequests
			if t.sizes != nil && st.Count > 0 {
				return nil, notify.Invalid(codeScenario, "arrival.file", "the file gives the number of messages of each request, so the step must not have a count")
			}
			if t.sizes != nil {
				s.sized = newSized(t, s.Size, s.local)
			}
		}
		if s.length != never { // count only requests that are due before the end of the phase
			s.plannedRequests = min(s.plannedRequests, s.sched.countDue(s.length-1))
		}
	}
	if st.Count > 0 {
		requests := (int64(st.Count) + int64(st.Size) - 1) / int64(st.Size)
		s.plannedRequests, s.mostRequests = min(s.plannedRequests, requests), min(s.mostRequests, requests)
	}
	for range min(st.Workers, maxRecorders) {
		s.recs = append(s.recs, newRecorder())
	}
	s.totalCounts, s.lastSecond = newWindow(), newWindow()
	return s, nil
}

// global returns the number that a request has in the whole phase. The parameter l is the number of
// the request in the segment. Both numbers start at 0.
func (s Segment) global(l int64) int64 { return l*int64(s.N) + int64(s.I-1) }

// local returns how many of the first g requests of the phase belong to the segment.
func (s Segment) local(g int64) int64 {
	n, i := int64(s.N), int64(s.I)
	return max((g-i+n)/n, 0)
}

func (s *stepRun) global(l int64) int64 { return s.run.cfg.Segment.global(l) }
func (s *stepRun) local(g int64) int64  { return s.run.cfg.Segment.local(g) }

// size returns the number of messages of request g. The last request may have fewer messages than
// Size.
func (s *stepRun) size(g int64) int {
	if s.sized != nil {
		return s.sized.sizeOf(s.sized.lineOf(g))
	}
	if s.Count > 0 {
		return int(min(int64(s.Size), int64(s.Count)-g*int64(s.Size)))
	}
	return s.Size
}

// seq returns the number of the first message of request g. The number of a message decides its
// user, so the numbers must have no gaps, even if requests have different sizes.
func (s *stepRun) seq(g int64) uint64 {
	if s.sized != nil {
		return uint64(s.firstRequest)*uint64(s.Size) + uint64(s.sized.seq(g))
	}
	return uint64(s.firstRequest+g) * uint64(s.Size)
}

// messagesOf returns how many messages a segment has among the first g requests of the phase. For a
// trace that gives the sizes of requests, it always counts the messages of this run's own segment.
// That is enough, because agents do not accept traces.
func (s *stepRun) messagesOf(seg Segment, g int64) int64 {
	if s.sized != nil {
		return s.sized.messages(g, s.local)
	}
	l := seg.local(g)
	n := l * int64(s.Size)
	if s.Count > 0 && l > 0 {
		if top := seg.global(l - 1); (top+1)*int64(s.Size) > int64(s.Count) {
			n -= (top+1)*int64(s.Size) - int64(s.Count)
		}
	}
	return n
}

// intended returns how many messages are due at the given run time.
func (s *stepRun) intended(now time.Duration) int64 {
	begin := s.begin.Load()
	if begin < 0 {
		return 0
	}
	if s.sched == nil {
		return s.asked.Load()
	}
	return s.messagesOf(s.run.cfg.Segment, s.countDue(now-time.Duration(begin)))
}

// send runs the workers of the step until the step ends. Requests that are due before the end of
// the phase may be sent late, until the time that the method overrun returns. After that time they
// are not sent any more, and count as intended but not sent. If agents send the load, this process
// starts no workers: it only waits until the channel sent is closed. If this process sends the
// load, sent is nil.
func (s *stepRun) send(ctx context.Context, began time.Time, sent <-chan struct{}) {
	start := began.Add(s.Start.of())
	if !waitUntil(ctx, start) {
		return
	}
	s.begin.Store(int64(s.run.since(start)))
	defer func() {
		end := s.run.since(time.Now())
		if f := s.run.feeds; f != nil {
			end = f.stepEnd(s, end)
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
				s.bulkWorker(ctx, s.recs[w%len(s.recs)], start)
				return
			}
			s.worker(ctx, int64(w), s.recs[w%len(s.recs)], start)
		})
	}
	wg.Wait()
}

// overrun returns the time until which the step may send late requests. It counts from the start of
// the step.
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
		// In an ordered step, all messages of a user go through the same worker. This worker sends
		// the next message only after the answer to the previous message, because only then notifyd
		// promises to keep the order.
		l := turn*int64(s.Workers) + w
		if !s.Ordered {
			l = s.next.Add(1) - 1
		} else if s.run.steer != nil {
			for at := s.next.Load(); at <= l && !s.next.CompareAndSwap(at, l+1); at = s.next.Load() {
			}
		}
		g := s.global(l)
		now := time.Since(start)
		if g >= s.requestLimit() || now >= s.overrun() || s.sched == nil && now >= s.length {
			return
		}
		n := s.firstRequest + g
		req.N, req.Seq, req.Size = n, s.seq(g), s.size(g)
		req.kind = s.data.kindOf(uint64(n))
		if s.Keys || s.run.cfg.Keys != nil {
			req.Key = s.run.idempotencyKey(s, n)
		}
		due, waited, ok := s.prepareRequest(ctx, &req, &body, start, g)
		if !ok {
			return
		}
		s.sendRequest(ctx, rec, &req, start, &sample{taken: now, intended: due, waited: waited})
	}
}

// sendRequest sends a request and records the result in the sample smp. It repeats a failed request
// if Config.Keys is set. The caller has set the fields intended, taken and waited of the sample.
func (s *stepRun) sendRequest(ctx context.Context, rec *recorder, req *Request, start time.Time, smp *sample) {
	sent := time.Since(start)
	ack, err := s.run.sendAttempt(s.target, req)
	for wait := 50 * time.Millisecond; err != nil && s.run.cfg.Keys != nil && mayRepeat(err) && time.Since(start)-sent < s.run.cfg.Patience; wait = min(2*wait, time.Second) {
		if !waitUntil(ctx, time.Now().Add(max(wait, min(notify.RetryAfterOf(err), 2*time.Second)))) {
			break
		}
		ack, err = s.run.sendAttempt(s.target, req)
	}
	end := time.Now()
	smp.sent, smp.done, smp.messages, smp.ack, smp.err, smp.at = sent, end.Sub(start), req.Size, ack, err, end
	rec.record(smp)
	if err != nil {
		s.lapsed.Add(int64(req.Size))
	}
	if err == nil && s.sink == nil {
		ack.Request, ack.Step = req.N, s.Step
		s.run.promised.addAck(s, req, &ack)
		if s.run.cfg.Acked != nil {
			s.run.cfg.Acked(ack)
		}
	}
}

// maxBulk is the highest number of messages that a bulk worker reserves at once. It is more than
// the messages that become due in a slot at 5M/s.
const maxBulk = 8192

// bulkWorker is the worker for single messages to the null sink. It wakes once per slot of about a
// millisecond, which is the resolution of timers. Then it reserves all messages that are due, makes
// each body, and records the times of each message. It computes the due time of each message
// instead of sleeping until then.
//
// Only the worker that holds the semaphore bulkTurn waits for messages and reserves them. If it
// could reserve all due messages, it keeps bulkTurn for the next slot, so that the other workers
// sleep. Without this rule all 64 workers woke for every slot, but only one of them found messages;
// this cost 4% of a rate of 5M/s. If it could not reserve all due messages, it releases bulkTurn
// before it sends, so that another worker can reserve the rest.
func (s *stepRun) bulkWorker(ctx context.Context, rec *recorder, start time.Time) {
	body := make([]byte, 0, 4096)
	for mine := false; ; {
		if !mine {
			select {
			case s.bulkTurn <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
		from, to := s.takeDue(ctx, start)
		if mine = to > from && to < from+maxBulk; !mine {
			<-s.bulkTurn
		}
		if to == from {
			return
		}
		body = s.sendSlot(rec, body, start, from, to)
	}
}

// takeDue waits until messages of the segment are due, and reserves them. It returns the range of
// their numbers: the result from is the first number, and the result to is the number after the
// last. The range is empty if the step has no more messages or if ctx has ended. The caller holds
// the semaphore bulkTurn.
func (s *stepRun) takeDue(ctx context.Context, start time.Time) (from, to int64) {
	from = s.next.Load()
	limit := s.local(min(s.requestLimit(), math.MaxInt64/2))
	for ctx.Err() == nil {
		now := time.Since(start)
		if now >= s.overrun() || from >= limit {
			break
		}
		due := int64(math.MaxInt64)
		if s.sched == nil {
			if now >= s.length || !s.waitWhilePaused(ctx, start) {
				break
			}
		} else {
			first, changed := s.dueOf(s.global(from))
			if changed != nil && first >= s.length {
				if !waitOrChanged(ctx, start, s.length, changed) {
					break
				}
				continue
			}
			if wake := max(first, min(first, now)+bulkSlot); wake > now {
				if changed == nil {
					waitUntil(ctx, start.Add(wake))
				} else if waitOrChanged(ctx, start, wake, changed) {
					continue
				}
				if ctx.Err() != nil {
					break
				}
			}
			due = s.local(s.countDue(time.Since(start)))
		}
		if to = min(due, limit, from+maxBulk); to > from {
			s.next.Store(to)
			return from, to
		}
	}
	return from, from
}

// bulkSlot is the length of a slot. A bulk worker sleeps until the first message has been due for
// bulkSlot, and then reserves all due messages. At 5M/s a message is due every 200 ns. Without
// slots a worker would never sleep, and would reserve only a few messages at a time.
const bulkSlot = time.Millisecond

func (s *stepRun) sendSlot(rec *recorder, body []byte, start time.Time, from, to int64) []byte {
	sent := time.Since(start)
	begin := time.Duration(s.begin.Load())
	bodies := s.data.singles(body, uint64(s.firstRequest+s.global(from)), uint64(s.run.cfg.Segment.N))
	for l := from; l < to; l++ {
		g := s.global(l)
		bodies.next(uint64(s.firstRequest+g), begin+sent)
	}
	n := to - from
	s.sink.taken.Add(n)
	done := time.Since(start)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	w := rec.win
	if s.sched == nil {
		s.asked.Add(n)
		recordValue(w.lag, 0, n)
		recordValue(w.response, done-sent, n)
		w.heat[heatBucket(done-sent)] += n
	} else {
		lag, response := bucketRun{h: w.lag}, bucketRun{h: w.response, heat: &w.heat}
		for l := from; l < to; l++ {
			due := s.pastDueOf(s.global(l))
			lag.add(sent - due)
			response.add(done - due)
		}
		lag.flush()
		response.flush()
		// The null sink does not answer, so the generator causes all lateness.
		recordValue(w.wake, sent-s.pastDueOf(s.global(from))-bulkSlot, 1)
	}
	recordValue(w.service, done-sent, n)
	w.own += done - sent // no time was spent waiting for an answer
	w.requests += n
	w.sent += n
	w.acked += n
	return bodies.body
}

// mayRepeat reports whether a request that failed with this error may be repeated with its
// Idempotency-Key.
func mayRepeat(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindUnavailable, notify.KindThrottled, notify.KindInternal, notify.KindConflict:
		return true
	}
	return false
}
