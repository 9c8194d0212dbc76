package trigger

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// This file has the steps after a call, and the steps after a decision that no call is made.

// swapRows does the steps stepSettle, stepReturn and stepBuried. Normally only the owner of a claim
// changes the claimed row. After the claim has expired, any process may change the row, and then
// the swap loses. swapRows sends each message whose row it wrote to its next step.
func (d *Dispatcher) swapRows(ctx context.Context, ws []*work) {
	var pause notify.Pause
	for len(ws) > 0 && ctx.Err() == nil {
		won, err := d.swapOnce(ctx, ws)
		if err != nil {
			pause.Wait(ctx)
			ws = d.checkUnknownSwaps(ctx, ws)
			continue
		}
		lost := 0
		for i, w := range ws {
			if won[i] {
				d.afterSwap(w)
				continue
			}
			// Another process claimed the row after the lease had expired. Or the row had no claim,
			// because the trigger is too late to be called, and a request rescheduled or cancelled
			// the trigger. Read the row again, because it decides.
			lost++
			d.send(stepRead, w)
		}
		d.cfg.Events.claimLost(lost)
		return
	}
}

// checkUnknownSwaps reads the rows of a swap that returned an error. A row that was swapped in
// spite of the error goes to its next step. checkUnknownSwaps returns the work whose rows must
// still be swapped.
func (d *Dispatcher) checkUnknownSwaps(ctx context.Context, ws []*work) (left []*work) {
	ids := make([]string, len(ws))
	for i, w := range ws {
		ids[i] = w.row.ID
	}
	var rows []engine.Trigger
	newer := false
	if !d.retryUntil(ctx, "triggers", func() (err error) {
		if rows, err = d.cfg.Triggers.Get(ctx, ids); errors.Is(err, notify.ErrNewer) {
			newer, err = true, nil
		}
		return err
	}) {
		return nil
	}
	lost := 0
	for i, w := range ws {
		tried := w.row
		tried.Version++
		switch {
		case newer: // readRows reads each row separately to find rows of a newer release
			lost++
			d.send(stepRead, w)
		case rows[i].Version == w.row.Version:
			left = append(left, w)
		case sameChange(&rows[i], &tried):
			d.afterSwap(w)
		default:
			lost++
			d.send(stepRead, w)
		}
	}
	d.cfg.Events.claimLost(lost)
	return left
}

// afterSwap continues with work whose row was swapped.
func (d *Dispatcher) afterSwap(w *work) {
	w.row.Version++
	switch {
	case w.step == stepReturn:
		d.send(stepPutOff, w)
	case w.step == stepBuried:
		d.cfg.hit("trigger-outcome-before-ack")
		d.send(stepAck, w)
	case !isTerminal(w.row.State): // a retry
		d.cfg.hit("trigger-retry-before-index")
		if wait := time.Until(time.UnixMilli(w.row.NextAt)); wait > d.cfg.Hold {
			d.send(stepPark, w)
		} else {
			w.delay = max(wait, 0)
			d.send(stepPutOff, w)
		}
	default:
		d.cfg.Census.add(w.row.Caller, -1)
		d.cfg.Events.ended(w.row.Caller, w.row.State, w.row.Reason)
		if w.row.State == engine.TriggerFailed {
			d.cfg.hit("trigger-failed-before-dlq")
			d.send(stepBury, w)
			return
		}
		d.cfg.hit("trigger-outcome-before-ack")
		d.send(stepAck, w)
	}
}

// writeDeadLetters does the step stepBury: it appends the dead letters of FAILED triggers.
func (d *Dispatcher) writeDeadLetters(ctx context.Context, ws []*work) {
	rs := make([]DeadRecord, len(ws))
	for i, w := range ws {
		rs[i] = deadRecordOf(&w.row)
	}
	if !d.retryUntil(ctx, "dead letters", func() error { return d.cfg.Dead.Append(ctx, rs) }) {
		return
	}
	d.cfg.Events.deadLettered(len(rs))
	d.cfg.hit("trigger-dlq-before-mark")
	for _, w := range ws {
		w.row.NextAt = 0
	}
	d.send(stepBuried, ws...)
}

// writeIndexRows does the step stepPark: it writes the index rows that will replace the messages.
// Only then are the messages acknowledged.
func (d *Dispatcher) writeIndexRows(ctx context.Context, ws []*work) {
	d.forgetInProgress(ws)
	ts := make([]engine.Timer, len(ws))
	for i, w := range ws {
		ts[i] = indexRow(w.msg.base, &w.row)
	}
	if !d.retryUntil(ctx, "timers", func() error { return d.cfg.Later.Put(ctx, ts) }) {
		return
	}
	d.cfg.hit("trigger-parked-before-ack")
	d.send(stepAck, ws...)
}

// freshAfter limits how often a message is received. From this number of receives on, the message
// is not returned to the queue. Instead a new message replaces it, because the queue would move a
// message with too many receives to the dead messages.
const freshAfter = 3

// putOffAndAck does the steps stepPutOff and stepAck.
func (d *Dispatcher) putOffAndAck(ctx context.Context, ws []*work) {
	var done, off []*work
	for _, w := range ws {
		if w.step == stepAck {
			done = append(done, w)
		} else {
			off = append(off, w)
		}
	}
	d.forgetInProgress(off)
	var fresh []engine.Message
	for _, w := range off {
		if w.keepReceives || len(off) == 1 && w.delivery.Receives < freshAfter {
			// If Release fails, the message is received again when its visibility timeout ends.
			if err := d.cfg.Queue.Release(ctx, w.delivery.Receipt, w.delay); err != nil && ctx.Err() == nil {
				d.cfg.Logger.Warn("cannot return a message to the delay queue", slog.Any("error", err))
			}
			d.releaseHeld([]*work{w})
			continue
		}
		m := engine.Message{Body: w.delivery.Body, Delay: w.delay, Backlog: w.delivery.Backlog}
		if !w.keepBody {
			if w.cause == CauseBulkhead || w.cause == CauseBreaker {
				w.msg.deferrals = clampUint16(int(w.msg.deferrals) + 1)
			}
			m.Body = w.msg.encode()
		}
		fresh, done = append(fresh, m), append(done, w)
	}
	if len(fresh) > 0 {
		if !d.retryUntil(ctx, "queue", func() error { return d.cfg.Queue.Enqueue(ctx, fresh) }) {
			return
		}
		d.cfg.hit("trigger-enqueued-before-ack")
	}
	if len(done) == 0 {
		return
	}
	receipts := make([]string, len(done))
	for i, w := range done {
		receipts[i] = w.delivery.Receipt
	}
	if d.retryUntil(ctx, "queue", func() error { return d.cfg.Queue.Ack(ctx, receipts) }) {
		d.releaseHeld(done)
	}
}
