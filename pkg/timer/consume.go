package timer

import (
	"bytes"
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	nearBatch = 64
	// nearLooks is how often the message of a near timer may be received while the engine cannot
	// decide whether to release the timer. After that the message is dropped. The row remains
	// stored, so the timer is released when its minute is closed and scanned.
	nearLooks = 5
)

// nearDelivery is the message of a near timer, as received from the queue.
type nearDelivery struct {
	parked
	receipt  string
	receives int
}

// nearLine releases near timers. A near timer is due very soon: when it is stored, the engine may
// already have loaded the stored timers of that time, and would miss this timer. So writers also
// send near timers through the queue.
type nearLine struct{ *Engine }

// consume releases near timers from the queue until ctx ends. It puts timers of this engine's
// shards into the wheel, except timers whose rows the engine has already loaded. It publishes
// timers of other shards itself. The owners of these shards may publish the same timers again.
func (l *nearLine) consume(ctx context.Context) {
	for ctx.Err() == nil {
		if l.clockOff() {
			notify.Sleep(ctx, l.cfg.Poll)
			continue
		}
		ds, err := l.cfg.Queue.Receive(ctx, nearBatch, l.cfg.LeaseTTL)
		if err != nil && ctx.Err() == nil {
			l.complaints.report("cannot receive near timers", err)
			notify.Sleep(ctx, l.cfg.Poll)
		}
		if len(ds) > 0 {
			l.publishNear(ctx, ds)
		}
	}
}

// nearFate says what publishNear must do with a received near timer.
type nearFate uint8

const (
	fateAgain nearFate = iota // do nothing: the message is received again when its visibility timeout ends
	// Acknowledge the message and do nothing more: the timer is or was released in another way.
	fateForget
	fateWait    // put the message into the queue again, until the timer is due
	fateRelease // publish in this process
)

// publishNear publishes near timers and acknowledges their messages. If one of these steps fails,
// the messages are received again.
func (l *nearLine) publishNear(ctx context.Context, ds []engine.Delivery) {
	stop := l.keepVisible(ctx, ds)
	defer stop()
	spread, err := l.cfg.Spread()
	if err != nil { // the messages are received again
		l.complaints.report("cannot read the number of timer shards", err)
		return
	}
	now := l.now()
	var due []nearDelivery
	var early []engine.Message
	var waiting, done []string
	for _, d := range ds {
		n := nearDelivery{receipt: d.Receipt, receives: d.Receives}
		switch l.judgeDelivery(ctx, d.Body, &n, now, spread) {
		case fateForget:
			done = append(done, d.Receipt)
		case fateWait:
			early = append(early, engine.Message{Body: d.Body, Delay: nearDelay(n.due, now)})
			waiting = append(waiting, d.Receipt)
		case fateRelease:
			due = append(due, n)
		case fateAgain:
		}
	}
	if len(early) > 0 {
		if err := l.cfg.Queue.Enqueue(ctx, early); err != nil {
			l.complaints.report("cannot delay near timers", err)
		} else {
			done = append(done, waiting...)
		}
	}
	due, discarded := l.askHeads(ctx, due, spread)
	done = append(done, discarded...)
	done = append(done, l.publishDue(ctx, due)...)
	if len(done) == 0 {
		return
	}
	if err := l.cfg.Queue.Ack(ctx, done); err != nil && ctx.Err() == nil {
		l.complaints.report("cannot acknowledge near timers", err)
	}
}

// judgeDelivery decodes the message of a near timer into n, and returns what to do with the timer.
// If this engine owns the timer's shard, judgeDelivery puts the timer into the wheel, unless a scan
// will load its row.
func (l *nearLine) judgeDelivery(ctx context.Context, body []byte, n *nearDelivery, now int64, spread notify.Spread) nearFate {
	p, whole, err := readNear(body)
	n.parked = p
	switch {
	case err != nil:
		l.cfg.Logger.Error("the message of a near timer cannot be read and is dropped; the timer is released when its minute is closed", "bytes", len(body), "err", err)
		return fateForget
	case p.due > now: // due later than one delay of the queue, or a clock was set back
		return fateWait
	}
	if !whole {
		found, err := l.readPayload(ctx, n, spread)
		if err != nil {
			l.complaints.report("cannot read the rows of near timers", err)
			return fateAgain
		}
		if !found { // its minute was closed, so the timer was released
			return fateForget
		}
	}
	if others := l.loadParked([]parked{n.parked}, spread); len(others) == 0 {
		return fateForget // this engine owns the shard: the timer is in the wheel, or a scan will load its durable row
	}
	return fateRelease
}

// keepVisible extends the visibility timeout of deliveries until the caller calls the returned
// function stop, so that other consumers do not receive the messages. It uses the same intervals as
// the leases of the shards. So if a consumer dies, another consumer gets its messages at about the
// time at which other engines get its shards.
func (l *nearLine) keepVisible(ctx context.Context, ds []engine.Delivery) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	receipts := make([]string, len(ds))
	for i := range ds {
		receipts[i] = ds[i].Receipt
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for notify.Sleep(ctx, l.cfg.LeaseRenew) {
			if err := l.cfg.Queue.Extend(ctx, receipts, l.cfg.LeaseTTL); err != nil && ctx.Err() == nil {
				l.complaints.report("cannot extend the visibility of near timers", err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// readPayload reads a payload that was too large for the message from the row of the timer. The
// result found is false if the row no longer exists.
func (l *nearLine) readPayload(ctx context.Context, n *nearDelivery, spread notify.Spread) (found bool, err error) {
	p := engine.TimerPartition{Bucket: n.FireAt / 60_000, Shard: engine.ShardOf(n.ID, spread)}
	cursor := engine.TimerCursor{FireAt: n.FireAt, ID: timerIDBefore(n.ID)}
	rows, err := l.cfg.Store.Scan(ctx, p, cursor, n.FireAt, 1)
	if err != nil || len(rows) == 0 || !bytes.Equal(rows[0].ID, n.ID) {
		return false, err
	}
	n.Payload = rows[0].Payload
	return true, nil
}

// timerIDBefore returns the greatest possible timer id that is less than id. An id has at most 64
// bytes.
func timerIDBefore(id []byte) []byte {
	last := len(id) - 1
	out := bytes.Clone(id)
	if id[last] == 0 {
		return out[:last]
	}
	out[last]--
	for len(out) < 64 {
		out = append(out, 0xff)
	}
	return out
}

// askHeads decides about timers whose schedules may have been cancelled or moved, by reading the
// heads of these schedules. The result toRelease contains the timers to release now. The result
// receipts contains the receipts of the messages to acknowledge: of timers that are dropped, and of
// timers that stay undecided and are left for the scan of their minute.
func (l *nearLine) askHeads(ctx context.Context, ns []nearDelivery, spread notify.Spread) (toRelease []nearDelivery, receipts []string) {
	read := map[engine.TimerPartition]map[notify.Base]struct{}{}
	for _, n := range ns {
		v, head, err := l.decideNear(ctx, &n, spread, read)
		if err != nil && ctx.Err() == nil {
			l.complaints.report("cannot find out whether to release cancelled or moved timers", err)
		}
		switch {
		case v == verdictPublish:
			toRelease = append(toRelease, n)
		case v == verdictDiscard:
			l.counters.dropped.Add(1)
			l.cfg.Events.Dropped(n.Timer, head)
			receipts = append(receipts, n.receipt)
		case n.receives >= nearLooks:
			receipts = append(receipts, n.receipt)
		default:
			if err := l.cfg.Queue.Release(ctx, n.receipt, l.cfg.Poll); err != nil {
				l.complaints.report("cannot delay near timers", err)
			}
		}
	}
	return toRelease, receipts
}

func (l *nearLine) decideNear(ctx context.Context, n *nearDelivery, spread notify.Spread, read map[engine.TimerPartition]map[notify.Base]struct{}) (headVerdict, engine.ScheduleHead, error) {
	if l.cfg.Schedules == nil || n.Head.IsZero() {
		return verdictPublish, engine.ScheduleHead{}, nil
	}
	p := engine.TimerPartition{Bucket: n.FireAt / 60_000, Shard: engine.ShardOf(n.ID, spread)}
	hints, ok := read[p]
	if !ok {
		var err error
		if hints, err = l.heads.hintsOf(ctx, p); err != nil {
			return verdictOpen, engine.ScheduleHead{}, err
		}
		read[p] = hints
	}
	if l.heads.questionOf(&n.Timer, hints) == needNothing {
		return verdictPublish, engine.ScheduleHead{}, nil
	}
	return l.heads.decide(ctx, headDecision{n.Head, n.Gen}, n.due, func() bool { return true })
}

// publishDue publishes timers until it succeeds or ctx ends. It returns the receipts to
// acknowledge. It also returns the receipt of a timer that Publish refuses because of its content;
// when its minute is closed, the timer is published again.
func (l *nearLine) publishDue(ctx context.Context, ns []nearDelivery) (done []string) {
	if len(ns) == 0 {
		return nil
	}
	ts := make([]engine.Timer, len(ns))
	receipts := make([]string, len(ns))
	for i := range ns {
		ts[i], receipts[i] = ns[i].Timer, ns[i].receipt
		ts[i].FireAt = ns[i].due
	}
	for pause := (notify.Pause{}); ; {
		err := l.cfg.Publish(ctx, ts)
		switch {
		case err == nil:
			l.releaser.notePublished(Near, ts, l.cfg.Wall())
			return receipts
		case isRefused(err) && len(ns) > 1:
			return append(l.publishDue(ctx, ns[:len(ns)/2]), l.publishDue(ctx, ns[len(ns)/2:])...)
		case isRefused(err):
			l.counters.refused.Add(1)
			return receipts
		}
		l.counters.failures.Add(1)
		if ctx.Err() == nil {
			l.complaints.report("cannot publish near timers", err)
		}
		if !pause.Wait(ctx) {
			return nil
		}
	}
}
