package trigger

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// step is what is done next about a message. A message passes them from above to
// below; it is read again whenever its row turns out to be another one.
//
//	stepRead ─> stepWait ─> stepClaim ─> stepCall ─> stepSettle ─> stepAck
//	   │                       │            │            ├─ FAILED ──> stepBury ─> stepBuried ─> stepAck
//	   │                       │            │            └─ a retry ─> stepPark ─> stepAck, or stepPutOff
//	   │                       └────────────┴─ no call ─> stepReturn ─> stepPutOff
//	   └─ nothing to do ─> stepAck; not now ─> stepPutOff or stepPark; too late ─> stepSettle; letter owed ─> stepBury
//
// Those up to the call stand here, the others in outcomes.go.
type step uint8

const (
	stepRead   step = iota // read the row, and judge what it asks for
	stepWait               // wait in the caller's lane, for a place or to be claimed ahead
	stepClaim              // swap the row for its claim
	stepCall               // make the call
	stepSettle             // swap the row: it says what came of the call, or that it ended without one
	stepReturn             // swap the row: it was claimed and is not called
	stepBury               // append the dead letter
	stepBuried             // swap the row: its letter is written
	stepPark               // write the index row that leads back to it
	stepPutOff             // give the message back to the queue, to come again after work.delay
	stepAck                // remove the message from the queue
)

// work is a message in memory and what is being done about it. One goroutine at
// a time has it: the one that does its step. While it waits, its lane has it.
type work struct {
	d     engine.Delivery
	msg   message
	batch uint64 // of take
	named bool   // ids has its trigger
	step  step
	// row is the row as it was read or written last. Before stepSettle, stepReturn and
	// stepBuried it is what the row is to be swapped for. Its Version is always the stored
	// one.
	row  engine.Trigger
	lane *lane

	claimed time.Time     // before the claim was written: the lease is trusted from here
	slot    bool          // it has a place among the calls under way
	toRead  *lane         // its line keeps room for it until its row was read
	delay   time.Duration // how long to put the message off
	cause   string        // of that, where it is a deferral
	keep    bool          // it is put off as the message it is, with the receives it has
	asIs    bool          // it is put off with the body it has: a newer release wrote it or its row
}

// send hands works on to their next step.
func (d *Dispatcher) send(to step, ws ...*work) {
	for _, w := range ws {
		w.step = to
	}
	switch to {
	case stepRead:
		var by [2][]*work
		for _, w := range ws {
			by[w.line()] = append(by[w.line()], w)
		}
		d.reads[onTime].add(by[onTime]...)
		d.reads[backlog].add(by[backlog]...)
	case stepClaim:
		d.claims.add(ws...)
	case stepSettle, stepReturn, stepBuried:
		d.outcomes.add(ws...)
	case stepBury:
		d.letters.add(ws...)
	case stepPark:
		d.timers.add(ws...)
	case stepPutOff, stepAck:
		d.messages.add(ws...)
	case stepWait, stepCall: // see lanes.admit and launch
	}
}

// putOff puts messages off by their delays.
func (d *Dispatcher) putOff(cause string, ws ...*work) {
	d.cfg.Events.deferred(cause, len(ws))
	for _, w := range ws {
		w.cause = cause
	}
	d.send(stepPutOff, ws...)
}

// drop removes messages that are of no use any more.
func (d *Dispatcher) drop(cause string, ws ...*work) {
	d.cfg.Events.dropped(cause, len(ws))
	d.send(stepAck, ws...)
}

// later puts a message off until its row can be acted on: in the queue for a
// short while, as an index row for a longer one.
func (d *Dispatcher) later(w *work, cause string, wait time.Duration) {
	if cause == CauseEarly && wait > d.cfg.Hold {
		d.cfg.Events.deferred(cause, 1)
		d.send(stepPark, w)
		return
	}
	// A lease has no index row of its own; it is short.
	w.delay = min(max(wait, 0), engine.MaxQueueDelay)
	d.putOff(cause, w)
}

// until calls fn until it succeeds; false: ctx ended before.
func (d *Dispatcher) until(ctx context.Context, what string, fn func() error) bool {
	var pause notify.Pause
	for ctx.Err() == nil {
		err := fn()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			d.cfg.Logger.Warn("dispatcher waits for a store", slog.String("store", what), slog.Any("error", err))
		}
		pause.Wait(ctx)
	}
	return false
}

// clockWait is how long a message stays away from a process whose clock is off, and
// from all others.
const clockWait = time.Second

// callsNothing says why no call may start now, and how long to put messages off
// then; "": calls may start.
func (d *Dispatcher) callsNothing() (cause string, wait time.Duration) {
	select {
	case <-d.draining:
		return CauseShutdown, 0
	default:
	}
	if d.cfg.Clock() != nil { // a lease would be too long, or over at once
		return CauseClock, clockWait
	}
	return "", 0
}

// read does stepRead. While the store is away the messages stay held: giving them
// back would wear out their receives.
func (d *Dispatcher) read(ctx context.Context, ws []*work) {
	ids := make([]string, len(ws))
	for i, w := range ws {
		ids[i] = idOf(w.msg.base)
	}
	var rows []engine.Trigger
	var asked time.Time // before the rows were read: a row that is missing was then
	var newer error
	if !d.until(ctx, "triggers", func() (err error) {
		asked = time.Now()
		rows, err = d.cfg.Triggers.Get(ctx, ids)
		if errors.Is(err, notify.ErrNewer) {
			newer, err = err, nil
		}
		return err
	}) {
		return
	}
	if newer != nil {
		d.leaveNewer(ctx, ws, newer)
		return
	}
	now := time.Now()
	if d.cfg.Clock() != nil {
		d.lanes.readInVain(ws...)
		for _, w := range ws {
			d.later(w, CauseClock, clockWait)
		}
		return
	}
	drops, callable := map[string][]*work{}, map[string][]*work{} // by cause, by caller
	for i, w := range ws {
		w.row = rows[i]
		v, cause, at := d.terms.judge(&w.row, w.msg.gen, now.UnixMilli())
		if v != due {
			d.lanes.readInVain(w)
		}
		switch v {
		case drop:
			drops[cause] = append(drops[cause], w)
		case orphan:
			d.orphan(w, asked)
		case early, leased:
			d.later(w, cause, time.UnixMilli(at).Sub(now))
		case owed:
			d.send(stepBury, w)
		case over:
			w.row = d.terms.giveUp(w.row, ceilMillis(now))
			d.send(stepSettle, w)
		case due:
			callable[w.row.Caller] = append(callable[w.row.Caller], w)
		}
	}
	for cause, list := range drops {
		d.drop(cause, list...)
	}
	for caller, list := range callable {
		l := d.lanes.of(caller)
		if _, wait, ok := d.lanes.recordOf(ctx, l); !ok {
			d.lanes.readInVain(list...)
			for _, w := range list {
				w.delay = wait
			}
			d.putOff(CauseCaller, list...)
			continue
		}
		d.lanes.admit(l, list)
	}
}

// leaveNewer finds the messages whose rows a newer release wrote, and puts them off: a
// process of that release may receive them next. It is called where a read of all rows
// returned cause, which is notify.ErrNewer.
func (d *Dispatcher) leaveNewer(ctx context.Context, ws []*work, cause error) {
	if len(ws) > 1 {
		for i := range ws {
			d.read(ctx, ws[i:i+1])
		}
		return
	}
	w := ws[0]
	if d.toldNewer.CompareAndSwap(false, true) {
		d.cfg.Logger.Error("a trigger is left to a process of a newer release; told once", slog.String("trigger", idOf(w.msg.base)), slog.Any("error", cause))
	}
	d.lanes.readInVain(w)
	w.asIs = true
	d.later(w, CauseNewer, newerWait)
}

// orphan waits for a row that is on its way, and drops the message when it must
// have come: its create was never answered, or the reschedule it was written
// for was lost to another.
func (d *Dispatcher) orphan(w *work, asked time.Time) {
	if asked.Sub(w.d.Enqueued) > d.cfg.Orphan {
		d.drop(CauseOrphan, w)
		return
	}
	// Few receives for the whole of it, and none early.
	w.delay, w.keep = d.cfg.Orphan+time.Second, true
	switch w.d.Receives {
	case 1:
		w.delay = 250 * time.Millisecond
	case 2:
		w.delay = d.cfg.Orphan / 20
	case 3:
		w.delay = d.cfg.Orphan / 4
	}
	d.putOff(CauseOrphan, w)
}

// claim does stepClaim: it makes rows IN_FLIGHT, in one swap, and starts the calls of
// those that won, or lets them wait for a place. Of a row, an epoch and a cancel only
// one can win.
func (d *Dispatcher) claim(ctx context.Context, ws []*work) {
	if cause, wait := d.callsNothing(); cause != "" {
		d.lanes.claimedAhead(ws, nil)
		for _, w := range ws {
			d.launch(d.lanes.free(w))
			w.delay = wait
		}
		d.putOff(cause, ws...)
		return
	}
	now := time.Now()
	for _, w := range ws {
		w.claimed = now
		w.row = d.terms.claim(w.row, now, int(w.msg.deferrals))
	}
	won, err := d.swapOnce(ctx, ws)
	if err != nil {
		// A claim that was written is this process's or another's, the row does not
		// say: nobody calls, and the lease runs out. The next claim of the same row
		// settles it.
		d.lanes.claimedAhead(ws, nil)
		new(notify.Pause).Wait(ctx)
		for _, w := range ws {
			d.again(w)
		}
		return
	}
	var start, lost []*work
	for i, w := range ws {
		if !won[i] {
			lost = append(lost, w)
			continue
		}
		w.row.Version++
		w.msg.deferrals = 0 // the row has them
		if w.slot {
			start = append(start, w)
		}
	}
	d.lanes.claimedAhead(ws, won) // from here on the work is others'
	for _, w := range start {
		d.launch(w)
	}
	for _, w := range lost {
		d.again(w)
	}
	d.cfg.Events.claimLost(len(lost))
}

// swapOnce swaps the rows of works.
func (d *Dispatcher) swapOnce(ctx context.Context, ws []*work) (won []bool, err error) {
	ss := make([]engine.TriggerSwap, len(ws))
	for i, w := range ws {
		ss[i] = engine.TriggerSwap{Old: w.row.Version, New: w.row}
	}
	if won, err = d.cfg.Triggers.Swap(ctx, ss); err == nil {
		d.cfg.Events.swaps(len(ws))
	}
	return won, err
}

// again lets a message start over: its row is another one now.
func (d *Dispatcher) again(w *work) {
	d.launch(d.lanes.free(w))
	d.send(stepRead, w)
}

// launch begins the call of a claimed row. It does nothing with nil.
func (d *Dispatcher) launch(w *work) {
	if w == nil {
		return
	}
	select {
	case d.jobs <- w:
	default:
		d.calls.Go(func() { d.caller(w) })
	}
}

// maxIdlers is how many goroutines wait for the next call to make.
const maxIdlers = 256

// caller makes calls, one after the other, while there are any. Its stack has
// grown to what a call needs; a fresh goroutine's would have to each time.
func (d *Dispatcher) caller(w *work) {
	for {
		for w != nil {
			w.step = stepCall
			w = d.call(w)
		}
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

// call does stepCall, unless the call must not be made any more. It returns the work whose
// call begins now that this one has ended, or nil: the goroutine makes that call next.
func (d *Dispatcher) call(w *work) (next *work) {
	d.cfg.hit("trigger-claimed")
	if cause, wait := d.callsNothing(); cause != "" {
		return d.back(w, cause, wait)
	}
	if now := time.Now().UnixMilli(); now < w.row.NextAt {
		return d.back(w, CauseEarly, time.Duration(w.row.NextAt-now)*time.Millisecond) // the clock was set back
	}
	rec, wait, ok := d.lanes.recordOf(d.on, w.lane)
	if !ok {
		return d.back(w, CauseCaller, wait)
	}
	// The claim is trusted on this process's clock from before it was written. A
	// process that was paused, or waited for the caller's record, must not call
	// after its lease: this is the last look before the call.
	if time.Since(w.claimed) > d.cfg.Lease-d.cfg.Egress.cfg.Timeout-time.Second {
		return d.back(w, CauseLeased, 0)
	}
	started := time.Now()
	if w.row.Attempts == 0 && w.row.Epoch == 1 {
		d.cfg.Events.late(w.row.Caller, max(started.Sub(time.UnixMilli(w.row.FireAt)), 0))
	}
	r := d.cfg.postRow(&w.row, rec, started)
	if r.class != ClassOK && slices.Contains(rec.FinalStatuses, r.status) {
		r.class = ClassPermanent
	}
	d.cfg.hit("trigger-called-before-outcome")
	d.cfg.Events.attempt(w.row.Caller, r.class, r.took)
	next = d.lanes.called(w, health(r.class))
	// A clock that is set during the call moves no retry.
	w.row = d.terms.settle(w.row, w.msg.base, &r, started, ceilMillis(started.Add(time.Since(started))))
	d.send(stepSettle, w)
	return next
}

// back gives a place and a claim back: no call was made, and none is counted. It returns
// the work that has the place now, or nil.
func (d *Dispatcher) back(w *work, cause string, wait time.Duration) (next *work) {
	next = d.lanes.free(w)
	d.giveBack(w, cause, wait)
	return next
}

// giveBack gives a claim back.
func (d *Dispatcher) giveBack(w *work, cause string, wait time.Duration) {
	d.cfg.Events.deferred(cause, 1)
	w.row, w.delay = giveBack(w.row, cause), min(wait, engine.MaxQueueDelay)
	d.send(stepReturn, w)
}
