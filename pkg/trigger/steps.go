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

// workStep is the next step of a message. A message passes the steps from top to bottom. If its row
// has changed in the meantime, the message returns to stepRead.
//
//	stepRead ─> stepWait ─> stepClaim ─> stepCall ─> stepSettle ─> stepAck
//	   │                       │            │            ├─ FAILED ──> stepBury ─> stepBuried ─> stepAck
//	   │                       │            │            └─ a retry ─> stepPark ─> stepAck, or stepPutOff
//	   │                       └────────────┴─ no call ─> stepReturn ─> stepPutOff
//	   └─ nothing to do ─> stepAck; not now ─> stepPutOff or stepPark; too late ─> stepSettle; dead letter missing ─> stepBury
//
// This file has the steps up to the call. outcomes.go has the others.
type workStep uint8

const (
	stepRead   workStep = iota // read the row, and decide what to do
	stepWait                   // wait in the caller's lane for a place, or for a claim ahead
	stepClaim                  // swap the row for the row with a claim
	stepCall                   // make the call
	stepSettle                 // swap the row for the row with the outcome or the final state
	stepReturn                 // swap the row back: it was claimed and will not be called
	stepBury                   // append the dead letter
	stepBuried                 // swap the row, to record that its dead letter is written
	stepPark                   // write the index row that leads back to the row
	stepPutOff                 // return the message to the queue, visible again after work.delay
	stepAck                    // remove the message from the queue
)

// work is a message in memory and its progress. It always has exactly one owner: the goroutine that
// does its step or, while it waits, its batcher or its lane.
type work struct {
	delivery   engine.Delivery
	msg        message
	batch      uint64 // number of its batch in acceptDeliveries
	registered bool   // Dispatcher.inProgress has this work for its trigger
	step       workStep
	// row is the row that was last read or written. Before stepSettle, stepReturn and stepBuried it
	// is the row that will be written. Its Version is always the version in the store.
	row  engine.Trigger
	lane *lane

	claimedAt    time.Time     // time before the claim was written, from which the lease is counted
	hasPlace     bool          // it has one of the places for calls
	toRead       *lane         // the lane that reserves room until the row is read
	delay        time.Duration // how long the message is put off
	cause        string        // cause of a deferral
	keepReceives bool          // return the same message to the queue, so that it keeps its count of receives
	keepBody     bool          // keep the body unchanged: a newer release wrote the message or its row
}

// send passes work to its next step. After send, that step owns the work.
func (d *Dispatcher) send(to workStep, ws ...*work) {
	for _, w := range ws {
		w.step = to
	}
	switch to {
	case stepRead:
		var by [2][]*work
		for _, w := range ws {
			by[w.line()] = append(by[w.line()], w)
		}
		d.reads[lineOnTime].add(by[lineOnTime]...)
		d.reads[lineBacklog].add(by[lineBacklog]...)
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
	case stepWait, stepCall: // see lanes.enqueue and launch
	}
}

// putOff returns messages to the queue. Each message is visible again after its delay.
func (d *Dispatcher) putOff(cause string, ws ...*work) {
	d.cfg.Events.deferred(cause, len(ws))
	for _, w := range ws {
		w.cause = cause
	}
	d.send(stepPutOff, ws...)
}

// drop acknowledges messages that are no longer needed.
func (d *Dispatcher) drop(cause string, ws ...*work) {
	d.cfg.Events.dropped(cause, len(ws))
	d.send(stepAck, ws...)
}

// putOffUntil puts a message off until its row can be processed. Normally the message returns to
// the queue. If the trigger is due only after more than the time Hold, an index row is written
// instead.
func (d *Dispatcher) putOffUntil(w *work, cause string, wait time.Duration) {
	if cause == CauseEarly && wait > d.cfg.Hold {
		d.cfg.Events.deferred(cause, 1)
		d.send(stepPark, w)
		return
	}
	// No index row is written for a lease, because leases are short.
	w.delay = min(max(wait, 0), engine.MaxQueueDelay)
	d.putOff(cause, w)
}

// retryUntil calls fn until it succeeds. It returns false if ctx ends first.
func (d *Dispatcher) retryUntil(ctx context.Context, what string, fn func() error) bool {
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

// clockWait is how long a message is put off after a process with a wrong clock received it.
const clockWait = time.Second

// noCallCause returns the reason why no call may start now, and how long messages must be put off.
// The cause is "" if calls may start.
func (d *Dispatcher) noCallCause() (cause string, wait time.Duration) {
	select {
	case <-d.draining:
		return CauseShutdown, 0
	default:
	}
	if d.cfg.Clock() != nil { // with a wrong clock a lease would be too long, or would expire at once
		return CauseClock, clockWait
	}
	return "", 0
}

// readRows does the step stepRead: it reads the rows and decides what to do. While the store is
// down, the messages stay in memory. If they returned to the queue, they would be received again
// too often: the queue limits the receives of a message.
func (d *Dispatcher) readRows(ctx context.Context, ws []*work) {
	ids := make([]string, len(ws))
	for i, w := range ws {
		ids[i] = idOf(w.msg.base)
	}
	var rows []engine.Trigger
	var asked time.Time // time before the read: a missing row was missing at this time
	var newer error
	if !d.retryUntil(ctx, "triggers", func() (err error) {
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
		d.lanes.readWithoutCall(ws...)
		for _, w := range ws {
			d.putOffUntil(w, CauseClock, clockWait)
		}
		return
	}
	drops, callable := map[string][]*work{}, map[string][]*work{} // drops by cause, callable by caller
	for i, w := range ws {
		w.row = rows[i]
		v, cause, at := d.rules.judge(&w.row, w.msg.gen, now.UnixMilli())
		if v != verdictDue {
			d.lanes.readWithoutCall(w)
		}
		switch v {
		case verdictDrop:
			drops[cause] = append(drops[cause], w)
		case verdictOrphan:
			d.awaitStateRow(w, asked)
		case verdictEarly, verdictLeased:
			d.putOffUntil(w, cause, time.UnixMilli(at).Sub(now))
		case verdictOwed:
			d.send(stepBury, w)
		case verdictOver:
			w.row = d.rules.giveUpRow(w.row, ceilMillis(now))
			d.send(stepSettle, w)
		case verdictDue:
			callable[w.row.Caller] = append(callable[w.row.Caller], w)
		}
	}
	for cause, list := range drops {
		d.drop(cause, list...)
	}
	for caller, list := range callable {
		l := d.lanes.laneOf(caller)
		if _, wait, ok := d.lanes.recordOf(ctx, l); !ok {
			d.lanes.readWithoutCall(list...)
			for _, w := range list {
				w.delay = wait
			}
			d.putOff(CauseCaller, list...)
			continue
		}
		d.lanes.enqueue(l, list)
	}
}

// leaveNewer finds the messages whose rows a newer release wrote, and puts them off, so that a
// process of that release may receive them. The parameter cause is the error with notify.ErrNewer
// that a read of all these rows together returned. To find the messages, leaveNewer reads each row
// separately.
func (d *Dispatcher) leaveNewer(ctx context.Context, ws []*work, cause error) {
	if len(ws) > 1 {
		for i := range ws {
			d.readRows(ctx, ws[i:i+1])
		}
		return
	}
	w := ws[0]
	if d.newerLogged.CompareAndSwap(false, true) {
		d.cfg.Logger.Error("a newer release wrote a trigger; its message is put off so that a process of that release receives it (logged only once)", slog.String("trigger", idOf(w.msg.base)), slog.Any("error", cause))
	}
	d.lanes.readWithoutCall(w)
	w.keepBody = true
	d.putOffUntil(w, CauseNewer, newerWait)
}

// awaitStateRow puts a message off until its row is stored. After the time Orphan it drops the
// message. A row is missing for so long only if the request that created the trigger was never
// answered, or if the request that rescheduled it lost against another change.
func (d *Dispatcher) awaitStateRow(w *work, asked time.Time) {
	if asked.Sub(w.delivery.Enqueued) > d.cfg.Orphan {
		d.drop(CauseOrphan, w)
		return
	}
	// Normally each wait is longer than the wait before it. So a row that is stored soon is found
	// soon, and the message is not received often.
	w.delay, w.keepReceives = d.cfg.Orphan+time.Second, true
	switch w.delivery.Receives {
	case 1:
		w.delay = 250 * time.Millisecond
	case 2:
		w.delay = d.cfg.Orphan / 20
	case 3:
		w.delay = d.cfg.Orphan / 4
	}
	d.putOff(CauseOrphan, w)
}

// claimRows does the step stepClaim: it makes rows IN_FLIGHT in one swap. For the rows whose swap
// won, it starts the calls or lets them wait for a place. For each row, only one claim or cancel
// can win.
func (d *Dispatcher) claimRows(ctx context.Context, ws []*work) {
	if cause, wait := d.noCallCause(); cause != "" {
		d.lanes.afterClaimAhead(ws, nil)
		for _, w := range ws {
			d.launch(d.lanes.freePlace(w))
			w.delay = wait
		}
		d.putOff(cause, ws...)
		return
	}
	now := time.Now()
	for _, w := range ws {
		w.claimedAt = now
		w.row = d.rules.claimRow(w.row, now, int(w.msg.deferrals))
	}
	won, err := d.swapOnce(ctx, ws)
	if err != nil {
		// The claim may have been written. The row does not show which process wrote it. So no
		// process makes the call before the lease has expired. After that, the row can be claimed
		// again.
		d.lanes.afterClaimAhead(ws, nil)
		new(notify.Pause).Wait(ctx)
		for _, w := range ws {
			d.readAgain(w)
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
		w.msg.deferrals = 0 // the row now contains the deferrals
		if w.hasPlace {
			start = append(start, w)
		}
	}
	d.lanes.afterClaimAhead(ws, won) // from here on other goroutines own the work
	for _, w := range start {
		d.launch(w)
	}
	for _, w := range lost {
		d.readAgain(w)
	}
	d.cfg.Events.claimLost(len(lost))
}

// swapOnce swaps the rows of ws once. It returns which of the swaps won.
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

// readAgain returns a message to stepRead, because its row has changed.
func (d *Dispatcher) readAgain(w *work) {
	d.launch(d.lanes.freePlace(w))
	d.send(stepRead, w)
}

// launch starts the call of a claimed row, in an idle or a new goroutine. It does nothing if w is
// nil.
func (d *Dispatcher) launch(w *work) {
	if w == nil {
		return
	}
	select {
	case d.jobs <- w:
	default:
		d.calls.Go(func() { d.runCalls(w) })
	}
}

// maxIdlers is how many goroutines may wait for the next call.
const maxIdlers = 256

// runCalls makes one call after the other, while there are calls. It reuses the stack of its
// goroutine, which has grown to the size that a call needs. The stack of a new goroutine would have
// to grow each time.
func (d *Dispatcher) runCalls(w *work) {
	for {
		for w != nil {
			w.step = stepCall
			w = d.doCall(w)
		}
		if d.idlers.Add(1) > maxIdlers {
			d.idlers.Add(-1)
			return
		}
		select {
		case w = <-d.jobs:
			d.idlers.Add(-1)
		case <-d.runCtx.Done():
			d.idlers.Add(-1)
			return
		}
	}
}

// doCall does the step stepCall, unless the call must not be made any more. It returns the next
// message for the freed place, or nil. The goroutine that called doCall makes the call of that
// message next.
func (d *Dispatcher) doCall(w *work) (next *work) {
	d.cfg.hit("trigger-claimed")
	if cause, wait := d.noCallCause(); cause != "" {
		return d.returnUncalled(w, cause, wait)
	}
	if now := time.Now().UnixMilli(); now < w.row.NextAt {
		return d.returnUncalled(w, CauseEarly, time.Duration(w.row.NextAt-now)*time.Millisecond) // the clock was set back
	}
	rec, wait, ok := d.lanes.recordOf(d.runCtx, w.lane)
	if !ok {
		return d.returnUncalled(w, CauseCaller, wait)
	}
	// The lease of the claim is counted with this process's clock, from before the claim was
	// written. A process that was paused, or that waited for the caller's record, must not call
	// after its lease. This is the last check before the call.
	if time.Since(w.claimedAt) > d.cfg.Lease-d.cfg.Egress.cfg.Timeout-time.Second {
		return d.returnUncalled(w, CauseLeased, 0)
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
	next = d.lanes.callEnded(w, healthOf(r.class))
	// Use the monotonic clock: if the wall clock is set during the call, the time of the retry must
	// not move.
	w.row = d.rules.settleRow(w.row, w.msg.base, &r, started, ceilMillis(started.Add(time.Since(started))))
	d.send(stepSettle, w)
	return next
}

// returnUncalled frees the place of a message and gives its claim back. No call was made, and no
// attempt is counted. It returns the next message for the place, or nil.
func (d *Dispatcher) returnUncalled(w *work, cause string, wait time.Duration) (next *work) {
	next = d.lanes.freePlace(w)
	d.returnClaim(w, cause, wait)
	return next
}

// returnClaim gives back the claim of a trigger that was not called.
func (d *Dispatcher) returnClaim(w *work, cause string, wait time.Duration) {
	d.cfg.Events.deferred(cause, 1)
	w.row, w.delay = unclaimRow(w.row, cause), min(wait, engine.MaxQueueDelay)
	d.send(stepReturn, w)
}
