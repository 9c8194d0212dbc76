package trigger

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// backoff is the wait between tries of a store that is away: 50 ms, doubling to
// 2 s.
type backoff struct{ d time.Duration }

func (b *backoff) wait(ctx context.Context) {
	b.d = min(max(2*b.d, 50*time.Millisecond), 2*time.Second)
	notify.Sleep(ctx, b.d)
}

// until calls fn until it succeeds; false: ctx ended before.
func (d *Dispatcher) until(ctx context.Context, what string, fn func() error) bool {
	pause := backoff{}
	for ctx.Err() == nil {
		err := fn()
		if err == nil {
			return true
		}
		if ctx.Err() == nil {
			d.cfg.Logger.Warn("dispatcher waits for a store", slog.String("store", what), slog.Any("error", err))
		}
		pause.wait(ctx)
	}
	return false
}

// read reads the rows of messages and decides about each. While the store is
// away the messages stay held: giving them back would wear out their receives.
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
		for _, w := range ws {
			d.later(w, CauseClock, clockWait)
		}
		return
	}
	var dueNow []*work
	drops := map[string][]*work{}
	for i, w := range ws {
		w.row = rows[i]
		switch v, cause, at := d.terms.judge(&w.row, w.msg.gen, now.UnixMilli()); v {
		case drop:
			drops[cause] = append(drops[cause], w)
		case orphan:
			d.orphan(w, asked)
		case early, leased:
			d.later(w, cause, time.UnixMilli(at).Sub(now))
		case owed:
			d.letters.add(w)
		case over:
			d.giveUp(w, now)
		case due:
			dueNow = append(dueNow, w)
		}
	}
	for cause, list := range drops {
		d.cfg.Events.dropped(cause, len(list))
		d.acks.add(list...)
	}
	d.admit(ctx, dueNow)
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
	w.asIs = true
	d.later(w, CauseNewer, newerWait)
}

// clockWait is how long a message stays away from a process whose clock is off, and
// from all others.
const clockWait = time.Second

// newerWait is how long a message of a newer release stays away from this process, and
// from all others.
const newerWait = 30 * time.Second

// orphan waits for a row that is on its way, and drops the message when it must
// have come: its create was never answered, or the reschedule it was written
// for was lost to another.
func (d *Dispatcher) orphan(w *work, asked time.Time) {
	if age := asked.Sub(w.d.Enqueued); age > d.cfg.Orphan {
		d.cfg.Events.dropped(CauseOrphan, 1)
		d.acks.add(w)
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
	d.cfg.Events.deferred(CauseOrphan, 1)
	d.puts.add(w)
}

// later puts a message off until its row can be acted on: in the queue for a
// short while, as an index row for a longer one.
func (d *Dispatcher) later(w *work, cause string, wait time.Duration) {
	d.cfg.Events.deferred(cause, 1)
	if cause == CauseEarly && wait > d.cfg.Hold {
		d.index.add(w)
		return
	}
	// A lease has no index row of its own; it is short.
	w.delay = min(max(wait, 0), engine.MaxQueueDelay)
	d.puts.add(w)
}

// giveUp ends a trigger that no call may start for any more.
func (d *Dispatcher) giveUp(w *work, now time.Time) {
	w.next = d.terms.giveUp(w.row, ceilMillis(now))
	w.then = func() { d.ended(w) }
	d.swaps.add(w)
}

// ended does what a terminal row asks for: the dead letter of a FAILED one, and
// the end of the message.
func (d *Dispatcher) ended(w *work) {
	d.cfg.Census.add(w.row.Caller, -1)
	d.cfg.Events.ended(w.row.Caller, w.row.State, w.row.Reason)
	if w.row.State == engine.TriggerFailed {
		d.cfg.hit("trigger-failed-before-dlq")
		d.letters.add(w)
		return
	}
	d.cfg.hit("trigger-outcome-before-ack")
	d.acks.add(w)
}

// park writes the index rows of waiting triggers, then acknowledges.
func (d *Dispatcher) park(ctx context.Context, ws []*work) {
	d.unname(ws)
	ts := make([]engine.Timer, len(ws))
	for i, w := range ws {
		ts[i] = indexRow(w.msg.base, &w.row)
	}
	if !d.until(ctx, "timers", func() error { return d.cfg.Later.Put(ctx, ts) }) {
		return
	}
	d.cfg.hit("trigger-parked-before-ack")
	d.acks.add(ws...)
}

// freshAfter is how many receives a message may have before it is put off as a
// new one: a queue sets apart what was received too often.
const freshAfter = 3

// putOff gives messages back to the queue, to come again after their delay.
func (d *Dispatcher) putOff(ctx context.Context, ws []*work) {
	d.unname(ws)
	var fresh []*work
	for _, w := range ws {
		if !w.keep && (len(ws) > 1 || w.d.Receives >= freshAfter) {
			fresh = append(fresh, w)
			continue
		}
		// If it fails, the end of its visibility does the same.
		if err := d.cfg.Queue.Release(ctx, w.d.Receipt, w.delay); err != nil && ctx.Err() == nil {
			d.cfg.Logger.Warn("delay queue: release", slog.Any("error", err))
		}
		d.forget([]*work{w})
	}
	if len(fresh) == 0 {
		return
	}
	ms := make([]engine.Message, len(fresh))
	for i, w := range fresh {
		m := w.msg
		if w.why == CauseBulkhead || w.why == CauseBreaker {
			m.deferrals = short(int(m.deferrals) + 1)
		}
		ms[i] = engine.Message{Body: m.encode(), Delay: w.delay, Backlog: w.d.Backlog}
		if w.asIs {
			ms[i].Body = w.d.Body
		}
	}
	if !d.until(ctx, "queue", func() error { return d.cfg.Queue.Enqueue(ctx, ms) }) {
		return
	}
	d.cfg.hit("trigger-enqueued-before-ack")
	d.acks.add(fresh...)
}

// ack removes messages whose consequences are durable.
func (d *Dispatcher) ack(ctx context.Context, ws []*work) {
	receipts := make([]string, len(ws))
	for i, w := range ws {
		receipts[i] = w.d.Receipt
	}
	if d.until(ctx, "queue", func() error { return d.cfg.Queue.Ack(ctx, receipts) }) {
		d.forget(ws)
	}
}

// bury writes dead letters, then notes in the rows that they are written.
func (d *Dispatcher) bury(ctx context.Context, ws []*work) {
	rs := make([]DeadRecord, len(ws))
	for i, w := range ws {
		rs[i] = letterOf(&w.row)
	}
	if !d.until(ctx, "dead letters", func() error { return d.cfg.Dead.Append(ctx, rs) }) {
		return
	}
	d.cfg.Events.deadLettered(len(rs))
	d.cfg.hit("trigger-dlq-before-mark")
	for _, w := range ws {
		w.next = w.row
		w.next.NextAt = 0
		w.then = func() {
			d.cfg.hit("trigger-outcome-before-ack")
			d.acks.add(w)
		}
	}
	d.swaps.add(ws...)
}
