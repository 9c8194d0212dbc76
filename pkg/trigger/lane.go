package trigger

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// lane is a caller at work: its bulkhead, its breaker, and the messages that
// wait in memory for a place. The Dispatcher's lock guards it, but for the
// record, which has its own.
type lane struct {
	caller   string
	brk      *circuit
	limit    int // calls at a time
	inFlight int
	queue    []*work
	ready    []*work       // claimed ahead: they wait for a place, not for a claim
	claiming int           // being claimed ahead
	calls    int           // that ended, up to paceCalls
	bytes    int           // of the rows in queue
	each     time.Duration // between the ends of two calls while more wait, smoothed
	ended    time.Time     // when a call ended last, while more waited; zero: none waited
	next     time.Time     // when the last message that was put off comes again

	// The caller's record. Whoever has the token in refresh may read it anew.
	refresh chan struct{}
	record  *record
}

func (d *Dispatcher) laneLocked(caller string) *lane {
	l := d.lanes[caller]
	if l == nil {
		b, _ := newCircuit(time.Now(), d.cfg.Breaker) // NewDispatcher has checked it
		l = &lane{caller: caller, brk: b, limit: d.cfg.CallerInFlight, refresh: make(chan struct{}, 1)}
		d.lanes[caller] = l
		d.digests[callerDigest(caller)] = l
	}
	return l
}

// admit puts due messages into their callers' queues.
func (d *Dispatcher) admit(ctx context.Context, ws []*work) {
	if len(ws) == 0 {
		return
	}
	byCaller := map[string][]*work{}
	for _, w := range ws {
		byCaller[w.row.Caller] = append(byCaller[w.row.Caller], w)
	}
	var full []*work
	for caller, list := range byCaller {
		d.mu.Lock()
		l := d.laneLocked(caller)
		d.mu.Unlock()
		r, err := d.recordOf(ctx, l)
		if err != nil || r.Disabled || len(r.keys) == 0 {
			for _, w := range list {
				w.lane = l
				d.withhold(w, err)
			}
			continue
		}
		now := time.Now()
		d.mu.Lock()
		for _, w := range list {
			w.lane = l
			if !d.enqueueLocked(l, w, now) {
				full = append(full, w)
			}
		}
		d.pumpLocked(l, now)
		d.mu.Unlock()
	}
	d.putOffFull(full)
}

// enqueueLocked gives a message a place in its caller's queue, or a time to
// come again.
func (d *Dispatcher) enqueueLocked(l *lane, w *work, now time.Time) bool {
	if d.stopping {
		w.delay, w.why = 0, CauseShutdown
		return false
	}
	if d.fullLocked(l) {
		w.delay, w.why = l.waitLocked(w, now), CauseBulkhead
		return false
	}
	l.queue = append(l.queue, w)
	d.queuedLocked(l, w, 1)
	return true
}

// queuedLocked counts a message into the queues (1) or out of them (-1).
func (d *Dispatcher) queuedLocked(l *lane, w *work, n int) {
	size := n * (rowSize + len(w.row.Payload) + len(w.row.URL))
	l.bytes += size
	d.bytes += size
	d.queued += n
}

// rowSize is about what a message in memory takes beside its payload.
const rowSize = 600

func (d *Dispatcher) putOffFull(ws []*work) {
	if len(ws) > 0 {
		d.cfg.Events.deferred(ws[0].why, len(ws))
		d.puts.add(ws...)
	}
}

// skim takes out messages whose callers' queues are full, as it looks, before
// their rows are read: of a long backlog most messages end here.
func (d *Dispatcher) skim(ws []*work) (rest []*work) {
	now := time.Now()
	var full []*work
	d.mu.Lock()
	for _, w := range ws {
		if l := d.digests[w.msg.caller]; l != nil && d.fullLocked(l) {
			w.delay, w.why = l.waitLocked(w, now), CauseBulkhead
			full = append(full, w)
		} else {
			rest = append(rest, w)
		}
	}
	d.mu.Unlock()
	d.putOffFull(full)
	return rest
}

// withhold puts off a message whose caller may not be called for now.
func (d *Dispatcher) withhold(w *work, err error) {
	w.delay, w.why = time.Minute, CauseCaller
	if err != nil {
		w.delay = 2 * time.Second
	}
	d.cfg.Events.deferred(CauseCaller, 1)
	d.puts.add(w)
}

// fullLocked reports whether a caller's queue may grow no more: it may have half
// of what is free, in messages and bytes. A caller that hangs leaves the other
// half to the rest, a second one a quarter, and so on; everybody may have one.
func (d *Dispatcher) fullLocked(l *lane) bool {
	return len(l.queue) > 0 && (len(l.queue) >= (d.cfg.MaxQueued-d.queued)/2 || l.bytes >= (d.cfg.MaxQueuedBytes-d.bytes)/2)
}

// mayCallLocked is how many calls of a caller may run at a time, now.
func (d *Dispatcher) mayCallLocked(l *lane) int {
	return max(min(l.limit, l.brk.ramp, (d.cfg.MaxInFlight-d.inFlight)/2), 1)
}

// patience bounds a wait by how often the message has waited before: the first
// guess at a receiver's pace is a bad one.
var patience = [...]time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second, time.Minute}

// waitLocked is how long a message that found its caller's queue full should
// stay away: until those before it may have been called, as fast as calls went
// lately and a quarter faster, so that a receiver that speeds up is not kept
// waiting. Each such message takes a place of its own in time: what was put off
// together does not come back together.
func (l *lane) waitLocked(w *work, now time.Time) time.Duration {
	longest := patience[min(int(w.msg.deferrals), len(patience)-1)]
	each := l.each * 4 / 5
	// Half of the queue: it must not run dry before they come.
	if first := now.Add(each * time.Duration(len(l.queue)/2)); l.next.Before(first) {
		l.next = first
	}
	l.next = l.next.Add(each)
	wait := l.next.Sub(now)
	if wait > longest {
		l.next = now.Add(longest)
		wait = longest + spread(w.msg.base, uint32(w.msg.deferrals), longest/4)
	}
	return max(wait, 50*time.Millisecond)
}

// pumpLocked starts as many calls of a caller as may run. While its breaker is
// open, what waits in memory is put off.
func (d *Dispatcher) pumpLocked(l *lane, now time.Time) {
	var claim []*work
	started := false
	for len(l.ready)+len(l.queue) > 0 && l.inFlight < d.mayCallLocked(l) {
		ok, retryAt := l.brk.allow(now)
		if !ok {
			d.shutLocked(l, retryAt.Sub(now))
			break
		}
		started = true
		l.inFlight++
		d.inFlight++
		if w := pop(&l.ready); w != nil {
			w.slot = true
			d.launch(w)
			continue
		}
		w := pop(&l.queue)
		d.queuedLocked(l, w, -1)
		w.slot = true
		claim = append(claim, w)
	}
	// By half of them at a time: few large claims, not many small ones.
	if most, has := d.aheadLocked(l), len(l.ready)+l.claiming; has <= most/2 {
		for ; has < most && len(l.queue) > 0; has++ {
			w := pop(&l.queue)
			d.queuedLocked(l, w, -1)
			l.claiming++
			claim = append(claim, w)
		}
	}
	if s, moved := l.brk.moved(now); moved {
		d.cfg.Events.breaker(l.caller, s)
	}
	if started {
		d.cfg.Events.inFlight(l.caller, l.inFlight)
	}
	d.claims.add(claim...)
}

// pop takes the first of a list; nil when it is empty.
func pop(list *[]*work) (w *work) {
	if len(*list) == 0 {
		return nil
	}
	w, (*list)[0] = (*list)[0], nil
	if *list = (*list)[1:]; len(*list) == 0 {
		*list = nil
	}
	return w
}

// shutLocked puts off what waits for an open breaker, spread over a while so
// that it does not come back all at once.
func (d *Dispatcher) shutLocked(l *lane, wait time.Duration) {
	wait = max(wait, time.Second)
	for _, w := range l.queue {
		w.delay = min(wait+spread(w.msg.base, uint32(w.msg.deferrals), wait/2+time.Second), engine.MaxQueueDelay)
		w.why = CauseBreaker
		d.queuedLocked(l, w, -1)
	}
	d.cfg.Events.deferred(CauseBreaker, len(l.queue))
	d.puts.add(l.queue...)
	l.queue = nil
	d.returnLocked(l, CauseBreaker, min(wait, engine.MaxQueueDelay/2))
}

type called bool

const (
	wasCalled called = true
	notCalled called = false
)

// free gives a place back.
func (d *Dispatcher) free(w *work, did called) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !w.slot {
		return
	}
	w.slot = false
	l := w.lane
	l.inFlight--
	d.inFlight--
	if did == wasCalled {
		l.calls = min(l.calls+1, paceCalls)
		if !l.ended.IsZero() {
			l.each += (now.Sub(l.ended) - l.each) / 64
		}
		if l.ended = now; len(l.queue)+len(l.ready)+l.claiming == 0 {
			l.ended = time.Time{} // what follows is no pace of the receiver's
		}
	}
	d.cfg.Events.inFlight(l.caller, l.inFlight)
	d.pumpLocked(l, now)
}
