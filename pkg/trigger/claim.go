package trigger

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/trace"
)

// claim makes rows IN_FLIGHT, in one swap, and starts the calls of those that
// won, or lets them wait for a place. Of a row, an epoch and a cancel only one
// can win.
func (d *Dispatcher) claim(ctx context.Context, ws []*work) {
	select {
	case <-d.draining:
		d.claimedAhead(ws, nil)
		for _, w := range ws {
			d.free(w, notCalled)
			w.delay = 0
		}
		d.cfg.Events.deferred(CauseShutdown, len(ws))
		d.puts.add(ws...)
		return
	default:
	}
	now := time.Now()
	if d.cfg.Clock() != nil { // the lease would be too long, or over at once
		d.claimedAhead(ws, nil)
		for _, w := range ws {
			d.free(w, notCalled)
			d.later(w, CauseClock, clockWait)
		}
		return
	}
	ss := make([]engine.TriggerSwap, len(ws))
	for i, w := range ws {
		w.claimed = now
		w.next = d.terms.claim(w.row, now, int(w.msg.deferrals))
		ss[i] = engine.TriggerSwap{Old: w.row.Version, New: w.next}
	}
	won, err := d.cfg.Triggers.Swap(ctx, ss)
	if err != nil {
		d.claimedAhead(ws, nil)
		d.doubtful(ctx, ws)
		return
	}
	d.cfg.Events.swaps(len(ws))
	var start, lost []*work
	for i, w := range ws {
		if !won[i] {
			lost = append(lost, w)
			continue
		}
		old := w.row.Version
		w.row = w.next
		w.row.Version = old + 1
		w.msg.deferrals = 0 // the row has them
		if w.slot {
			start = append(start, w)
		}
	}
	d.claimedAhead(ws, won) // from here on the work is others'
	for _, w := range start {
		d.launch(w)
	}
	for _, w := range lost {
		d.again(w)
	}
	d.cfg.Events.claimLost(len(lost))
}

// doubtful deals with claims whose answer was lost. One that was written is
// this process's or another's, the row does not say: nobody calls, and the
// lease runs out. The next claim of the same row settles it.
func (d *Dispatcher) doubtful(ctx context.Context, ws []*work) {
	pause := backoff{}
	pause.wait(ctx)
	for _, w := range ws {
		d.again(w)
	}
}

// again lets a message start over: its row is another one now.
func (d *Dispatcher) again(w *work) {
	d.free(w, notCalled)
	d.look(w)
}

// launch begins the call of a claimed row.
func (d *Dispatcher) launch(w *work) {
	select {
	case d.jobs <- w:
	default:
		d.calls.Go(func() { d.caller(w) })
	}
}

// caller makes calls, one after the other, while there are any. Its stack has
// grown to what a call needs; a fresh goroutine's would have to each time.
func (d *Dispatcher) caller(w *work) {
	for {
		d.call(w)
		if d.idlers.Add(1) > maxIdlers {
			d.idlers.Add(-1)
			return
		}
		select {
		case w = <-d.jobs:
			d.idlers.Add(-1)
		case <-d.on.Done():
			d.idlers.Add(-1)
			return
		}
	}
}

// maxIdlers is how many goroutines wait for the next call to make.
const maxIdlers = 256

// call makes the call of a claimed row, unless it must not be made any more.
func (d *Dispatcher) call(w *work) {
	d.cfg.hit("trigger-claimed")
	select {
	case <-d.draining:
		d.back(w, CauseShutdown, 0)
		return
	default:
	}
	if d.cfg.Clock() != nil {
		d.back(w, CauseClock, clockWait)
		return
	}
	if now := time.Now().UnixMilli(); now < w.row.NextAt {
		d.back(w, CauseEarly, time.Duration(w.row.NextAt-now)*time.Millisecond) // the clock was set back
		return
	}
	rec, err := d.recordOf(d.on, w.lane)
	if err != nil || rec.Disabled || len(rec.keys) == 0 {
		wait := time.Minute
		if err != nil {
			wait = 2 * time.Second
		}
		d.back(w, CauseCaller, wait)
		return
	}
	// The claim is trusted on this process's clock from before it was written. A
	// process that was paused, or waited for the caller's record, must not call
	// after its lease: this is the last look before the call.
	if time.Since(w.claimed) > d.cfg.Lease-d.cfg.Egress.cfg.Timeout-time.Second {
		d.back(w, CauseLeased, 0)
		return
	}
	started := time.Now()
	if w.row.Attempts == 0 && w.row.Epoch == 1 {
		d.cfg.Events.late(w.row.Caller, max(started.Sub(time.UnixMilli(w.row.FireAt)), 0))
	}
	r := d.deliver(w, rec, started)
	if r.class != ClassOK && slices.Contains(rec.FinalStatuses, r.status) {
		r.class = ClassPermanent
	}
	d.cfg.hit("trigger-called-before-outcome")
	d.cfg.Events.attempt(w.row.Caller, r.class, r.took)
	d.mu.Lock()
	w.lane.brk.report(time.Now(), health(r.class))
	d.mu.Unlock()
	d.free(w, wasCalled)
	// A clock that is set during the call moves no retry.
	w.next = d.terms.settle(w.row, w.msg.base, &r, started, ceilMillis(started.Add(time.Since(started))))
	w.then = func() { d.settled(w) }
	d.swaps.add(w)
}

// deliver makes the exchange: the allow-list of now, the signature of now.
func (d *Dispatcher) deliver(w *work, rec *record, started time.Time) result {
	u := rec.callable(w.row.URL, d.cfg.Egress.plain())
	if u == nil {
		return result{class: ClassDenied, detail: "the URL is not under one of the caller's registered base URLs any more"}
	}
	b, at := body(&w.row), started.Unix()
	// One array for the values of all headers; of each call its own, for a
	// transport may still read it when the answer is there.
	v := [...]string{w.row.ID, strconv.Itoa(w.row.Attempts + 1), strconv.FormatInt(at, 10), rec.sign.sign(w.row.ID, at, b)}
	h := http.Header{
		"Content-Type":      jsonType,
		"User-Agent":        userAgent,
		"X-Trigger-Id":      v[0:1:1],
		"X-Trigger-Attempt": v[1:2:2],
		"Webhook-Id":        v[0:1:1],
		"Webhook-Timestamp": v[2:3:3],
		"Webhook-Signature": v[3:4:4],
	}
	span := d.span(w, started)
	defer span.End()
	if c := span.Context(); !c.None() {
		h[trace.HeaderParent] = []string{c.Parent}
		if c.State != "" {
			h[trace.HeaderState] = []string{c.State}
		}
	}
	// Not d.on: a call that was begun is not cut.
	r := d.cfg.post(context.Background(), u, h, b)
	if span.On() {
		span.Str("notifyd.class", r.class)
		span.Int("http.response.status_code", r.status)
		if r.class != ClassOK {
			span.Fail(r.class)
		}
	}
	return r
}

// span begins the span of one attempt, below the request that made the trigger.
func (d *Dispatcher) span(w *work, started time.Time) trace.Span {
	s := d.cfg.Tracer.Call("callback", trace.Context{Parent: w.row.Trace, State: w.row.TraceState})
	if s.On() {
		s.Str("notifyd.trigger.id", w.row.ID)
		s.Str("notifyd.caller", w.row.Caller)
		s.Int("notifyd.trigger.attempt", w.row.Attempts+1)
		s.Int("notifyd.late_ms", int(max(started.UnixMilli()-w.row.NextAt, 0)))
	}
	return s
}

// Values that are the same for every call; a transport does not write to them.
var (
	jsonType  = []string{"application/json"}
	userAgent = []string{"notifyd"}
)

// settled does what the row after a call asks for.
func (d *Dispatcher) settled(w *work) {
	if terminal(w.row.State) {
		d.ended(w)
		return
	}
	d.cfg.hit("trigger-retry-before-index")
	if wait := time.Until(time.UnixMilli(w.row.NextAt)); wait > d.cfg.Hold {
		d.index.add(w)
	} else {
		w.delay = max(wait, 0)
		d.puts.add(w)
	}
}

// back gives a claim back: no call was made, and none is counted.
func (d *Dispatcher) back(w *work, cause string, wait time.Duration) {
	d.free(w, notCalled)
	d.giveBack(w, cause, wait)
}

// giveBack is back for a message without a place.
func (d *Dispatcher) giveBack(w *work, cause string, wait time.Duration) {
	d.cfg.Events.deferred(cause, 1)
	w.next = giveBack(w.row, cause)
	w.then = func() {
		w.delay = min(wait, engine.MaxQueueDelay)
		d.puts.add(w)
	}
	d.swaps.add(w)
}

// swap writes rows that nobody but the holder of the claim (or, of one that is
// over, nobody in particular) should have changed, and goes on with those that
// were written.
func (d *Dispatcher) swap(ctx context.Context, ws []*work) {
	doubt := false // an earlier try may have been written
	pause := backoff{}
	for len(ws) > 0 && ctx.Err() == nil {
		if doubt {
			var ok bool
			if ws, ok = d.settleDoubt(ctx, ws); !ok || len(ws) == 0 {
				return
			}
		}
		ss := make([]engine.TriggerSwap, len(ws))
		for i, w := range ws {
			ss[i] = engine.TriggerSwap{Old: w.row.Version, New: w.next}
		}
		won, err := d.cfg.Triggers.Swap(ctx, ss)
		if err != nil {
			doubt = true
			pause.wait(ctx)
			continue
		}
		d.cfg.Events.swaps(len(ws))
		lost := 0
		for i, w := range ws {
			if won[i] {
				d.written(w)
				continue
			}
			// Somebody claimed it after the lease had run out, or it was
			// rescheduled or cancelled before its claim: the row decides.
			lost++
			d.look(w)
		}
		d.cfg.Events.claimLost(lost)
		return
	}
}

func (d *Dispatcher) written(w *work) {
	old := w.row.Version
	w.row = w.next
	w.row.Version = old + 1
	w.then()
}

// settleDoubt reads rows whose swap was answered with an error, and returns
// those that must be swapped still.
func (d *Dispatcher) settleDoubt(ctx context.Context, ws []*work) (left []*work, ok bool) {
	ids := make([]string, len(ws))
	for i, w := range ws {
		ids[i] = w.row.ID
	}
	var rows []engine.Trigger
	newer := false
	if !d.until(ctx, "triggers", func() (err error) {
		if rows, err = d.cfg.Triggers.Get(ctx, ids); errors.Is(err, notify.ErrNewer) {
			newer, err = true, nil
		}
		return err
	}) {
		return nil, false
	}
	lost := 0
	if newer { // the rows decide, each by itself: read knows which are of a newer release
		for _, w := range ws {
			d.look(w)
		}
		d.cfg.Events.claimLost(len(ws))
		return nil, true
	}
	for i, w := range ws {
		tried := w.next
		tried.Version = w.row.Version + 1
		switch {
		case rows[i].Version == w.row.Version:
			left = append(left, w)
		case sameChange(&rows[i], &tried):
			d.written(w)
		default:
			lost++
			d.look(w)
		}
	}
	d.cfg.Events.claimLost(lost)
	return left, true
}
