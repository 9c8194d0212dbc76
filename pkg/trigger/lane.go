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
	lines    [2]line       // of what is on time, and of the backlog
	turn     int           // calls of what is on time since one of the backlog, while both waited
	ready    []*work       // claimed ahead: they wait for a place, not for a claim
	claiming int           // being claimed ahead
	calls    int           // that ended, up to paceCalls
	each     time.Duration // between the ends of two calls while more wait, smoothed
	ended    time.Time     // when a call ended last, while more waited; zero: none waited

	// The caller's record. Whoever has the token in refresh may read it anew.
	refresh chan struct{}
	record  *record
}

// line is what waits for a place, of one lane of the delay queue.
type line struct {
	queue []*work
	bytes int       // of its rows
	next  time.Time // when the last message that was put off comes again
}

// lineOf is which of a caller's lines a message stands in.
type lineOf uint8

const (
	onTime lineOf = iota
	backlog
)

func (w *work) line() lineOf {
	if w.d.Backlog {
		return backlog
	}
	return onTime
}

// waiting is how many messages wait in both lines.
func (l *lane) waiting() int { return len(l.lines[onTime].queue) + len(l.lines[backlog].queue) }

// popLocked takes the message whose turn it is: of the backlog, while the other
// line has any, one of engine.BacklogShare.
func (l *lane) popLocked() *work {
	from := onTime
	switch prompt, late := len(l.lines[onTime].queue), len(l.lines[backlog].queue); {
	case prompt == 0:
		from = backlog
	case late > 0:
		if l.turn++; l.turn == engine.BacklogShare {
			l.turn, from = 0, backlog
		}
	}
	q := l.lines[from].queue
	w := q[0]
	q[0] = nil
	if q = q[1:]; len(q) == 0 {
		q = nil
	}
	l.lines[from].queue = q
	return w
}

// clearLocked takes all that waits.
func (l *lane) clearLocked() []*work {
	all := append(l.lines[onTime].queue, l.lines[backlog].queue...)
	l.lines[onTime].queue, l.lines[backlog].queue = nil, nil
	return all
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
	if d.fullLocked(l, w.line()) {
		w.delay, w.why = l.waitLocked(w, now), CauseBulkhead
		return false
	}
	q := &l.lines[w.line()].queue
	*q = append(*q, w)
	d.queuedLocked(l, w, 1)
	return true
}

// queuedLocked counts a message into the queues (1) or out of them (-1).
func (d *Dispatcher) queuedLocked(l *lane, w *work, n int) {
	size := n * (rowSize + len(w.row.Payload) + len(w.row.URL))
	l.lines[w.line()].bytes += size
	d.bytes[w.line()] += size
	d.queued[w.line()] += n
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
		if l := d.digests[w.msg.caller]; l != nil && d.fullLocked(l, w.line()) {
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

// fullLocked reports whether a line of a caller may grow no more: it may have
// half of what is free, in messages and bytes. A caller that hangs leaves the
// other half to the rest, a second one a quarter, and so on; everybody may have
// one. The backlog leaves half of everything to what is on time.
func (d *Dispatcher) fullLocked(l *lane, of lineOf) bool {
	q := &l.lines[of]
	free, bytes := d.cfg.MaxQueued-d.queued[onTime]-d.queued[backlog], d.cfg.MaxQueuedBytes-d.bytes[onTime]-d.bytes[backlog]
	if of == backlog {
		free, bytes = min(free, d.cfg.MaxQueued/2-d.queued[backlog]), min(bytes, d.cfg.MaxQueuedBytes/2-d.bytes[backlog])
	}
	return len(q.queue) > 0 && (len(q.queue) >= free/2 || q.bytes >= bytes/2)
}

// mayCallLocked is how many calls of a caller may run at a time, now.
func (d *Dispatcher) mayCallLocked(l *lane) int {
	return max(min(d.cfg.Share(l.limit), l.brk.ramp, (d.cfg.MaxInFlight-d.inFlight)/2), 1)
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
	each, q := l.each*4/5, &l.lines[w.line()]
	// Half of the queue: it must not run dry before they come.
	if first := now.Add(each * time.Duration(len(q.queue)/2)); q.next.Before(first) {
		q.next = first
	}
	q.next = q.next.Add(each)
	wait := q.next.Sub(now)
	if wait > longest {
		q.next = now.Add(longest)
		wait = longest + spread(w.msg.base, uint32(w.msg.deferrals), longest/4)
	}
	return max(wait, 50*time.Millisecond)
}

// pumpLocked starts as many calls of a caller as may run. While its breaker is
// open, what waits in memory is put off.
func (d *Dispatcher) pumpLocked(l *lane, now time.Time) {
	var claim []*work
	started := false
	for len(l.ready)+l.waiting() > 0 && l.inFlight < d.mayCallLocked(l) {
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
		w := l.popLocked()
		d.queuedLocked(l, w, -1)
		w.slot = true
		claim = append(claim, w)
	}
	// By half of them at a time: few large claims, not many small ones.
	if most, has := d.aheadLocked(l), len(l.ready)+l.claiming; has <= most/2 {
		for ; has < most && l.waiting() > 0; has++ {
			w := l.popLocked()
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
	all := l.clearLocked()
	for _, w := range all {
		w.delay = min(wait+spread(w.msg.base, uint32(w.msg.deferrals), wait/2+time.Second), engine.MaxQueueDelay)
		w.why = CauseBreaker
		d.queuedLocked(l, w, -1)
	}
	d.cfg.Events.deferred(CauseBreaker, len(all))
	d.puts.add(all...)
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
		if l.ended = now; l.waiting()+len(l.ready)+l.claiming == 0 {
			l.ended = time.Time{} // what follows is no pace of the receiver's
		}
	}
	d.cfg.Events.inFlight(l.caller, l.inFlight)
	d.pumpLocked(l, now)
}
