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
	// A near timer that cannot be decided about is left to the sweeper after so
	// many looks: its row is stored.
	nearLooks = 5
)

// near is a message that was received.
type near struct {
	parked
	receipt  string
	receives int
}

// nearLine releases timers that writers hand over through the queue because a scan may
// have passed them.
type nearLine struct{ *Engine }

// consume releases near timers from the queue until ctx ends. Those of shards
// this engine owns go into its wheel, which knows what it has met; others are
// published here, and may be published again by their owner.
func (l *nearLine) consume(ctx context.Context) {
	for ctx.Err() == nil {
		if l.clockOff() {
			notify.Sleep(ctx, l.cfg.Poll)
			continue
		}
		ds, err := l.cfg.Queue.Receive(ctx, nearBatch, l.cfg.LeaseTTL)
		if err != nil && ctx.Err() == nil {
			l.troubl.say("cannot receive near timers", err)
			notify.Sleep(ctx, l.cfg.Poll)
		}
		if len(ds) > 0 {
			l.publishNear(ctx, ds)
		}
	}
}

// fate is what becomes of a near timer that was received.
type fate uint8

const (
	fateAgain   fate = iota // left alone: it comes again when its visibility ends
	fateForget              // acknowledged: its row is released in another way, or was
	fateWait                // put off until it is due
	fateRelease             // published here
)

// publishNear publishes deliveries and acknowledges them. What fails on the way
// is received again.
func (l *nearLine) publishNear(ctx context.Context, ds []engine.Delivery) {
	stop := l.extend(ctx, ds)
	defer stop()
	spread, err := l.cfg.Spread()
	if err != nil { // they are received again
		l.troubl.say("cannot tell the shards of near timers", err)
		return
	}
	now := l.now()
	var due []near
	var early []engine.Message
	var waiting, done []string
	for _, d := range ds {
		n := near{receipt: d.Receipt, receives: d.Receives}
		switch l.judge(ctx, d.Body, &n, now, spread) {
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
			l.troubl.say("cannot put near timers off", err)
		} else {
			done = append(done, waiting...)
		}
	}
	due, discarded := l.askNear(ctx, due, spread)
	done = append(done, discarded...)
	done = append(done, l.handNear(ctx, due)...)
	if len(done) == 0 {
		return
	}
	if err := l.cfg.Queue.Ack(ctx, done); err != nil && ctx.Err() == nil {
		l.troubl.say("cannot acknowledge near timers", err)
	}
}

// judge reads a message into n and says what becomes of it. A timer of a shard that
// this engine owns goes into its wheel.
func (l *nearLine) judge(ctx context.Context, body []byte, n *near, now int64, spread notify.Spread) fate {
	p, whole, err := readNear(body)
	n.parked = p
	switch {
	case err != nil:
		l.cfg.Logger.Error("a near timer's message is dropped; its row is released by the sweeper", "bytes", len(body), "err", err)
		return fateForget
	case p.due > now: // farther away than one hop, or a clock was set back
		return fateWait
	}
	if !whole {
		there, err := l.fill(ctx, n, spread)
		if err != nil {
			l.troubl.say("cannot read the rows of near timers", err)
			return fateAgain
		}
		if !there { // its minute was closed, and so it was released
			return fateForget
		}
	}
	if others := l.admit([]parked{n.parked}, spread); len(others) == 0 {
		return fateForget // the wheel has it, and its row is durable
	}
	return fateRelease
}

// extend keeps deliveries this consumer's until the returned function is called.
// They are held as a shard is: when a consumer dies, another has its near timers
// as soon as its shards.
func (l *nearLine) extend(ctx context.Context, ds []engine.Delivery) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	receipts := make([]string, len(ds))
	for i := range ds {
		receipts[i] = ds[i].Receipt
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for notify.Sleep(ctx, l.cfg.LeaseRenew) {
			if err := l.cfg.Queue.Extend(ctx, receipts, l.cfg.LeaseTTL); err != nil && ctx.Err() == nil {
				l.troubl.say("cannot extend the visibility of near timers", err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// fill reads the payload of a row that was too large for its message.
func (l *nearLine) fill(ctx context.Context, n *near, spread notify.Spread) (there bool, err error) {
	p := engine.TimerPartition{Bucket: n.FireAt / 60_000, Shard: engine.ShardOf(n.ID, spread)}
	cursor := engine.TimerCursor{FireAt: n.FireAt, ID: before(n.ID)}
	rows, err := l.cfg.Store.Scan(ctx, p, cursor, n.FireAt, 1)
	if err != nil || len(rows) == 0 || !bytes.Equal(rows[0].ID, n.ID) {
		return false, err
	}
	n.Payload = rows[0].Payload
	return true, nil
}

// before is the last id before id, of those of at most 64 bytes.
func before(id []byte) []byte {
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

// askNear asks the heads of touched schedules, and returns what is released and
// the receipts of what is not.
func (l *nearLine) askNear(ctx context.Context, ns []near, spread notify.Spread) (due []near, done []string) {
	read := map[engine.TimerPartition]map[notify.Base]struct{}{}
	for _, n := range ns {
		v, head, err := l.verdictNear(ctx, &n, spread, read)
		if err != nil && ctx.Err() == nil {
			l.troubl.say("cannot decide about touched timers", err)
		}
		switch {
		case v == publish:
			due = append(due, n)
		case v == discard:
			l.count.dropped.Add(1)
			l.cfg.Events.Dropped(n.Timer, head)
			done = append(done, n.receipt)
		case n.receives >= nearLooks:
			done = append(done, n.receipt)
		default:
			if err := l.cfg.Queue.Release(ctx, n.receipt, l.cfg.Poll); err != nil {
				l.troubl.say("cannot put near timers off", err)
			}
		}
	}
	return due, done
}

func (l *nearLine) verdictNear(ctx context.Context, n *near, spread notify.Spread, read map[engine.TimerPartition]map[notify.Base]struct{}) (verdict, engine.ScheduleHead, error) {
	if l.cfg.Schedules == nil || n.Head.IsZero() {
		return publish, engine.ScheduleHead{}, nil
	}
	p := engine.TimerPartition{Bucket: n.FireAt / 60_000, Shard: engine.ShardOf(n.ID, spread)}
	hints, ok := read[p]
	if !ok {
		var err error
		if hints, err = l.heads.hints(ctx, p); err != nil {
			return undecided, engine.ScheduleHead{}, err
		}
		read[p] = hints
	}
	if l.heads.questionOf(&n.Timer, hints) == askNothing {
		return publish, engine.ScheduleHead{}, nil
	}
	return l.heads.decide(ctx, decision{n.Head, n.Gen}, n.due, func() bool { return true })
}

// handNear publishes timers until that succeeds or ctx ends, and returns the
// receipts of those that are done with. What is refused for what is in it is
// left to the sweeper.
func (l *nearLine) handNear(ctx context.Context, ns []near) (done []string) {
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
			l.releaser.published(Near, ts, l.cfg.Wall())
			return receipts
		case refused(err) && len(ns) > 1:
			return append(l.handNear(ctx, ns[:len(ns)/2]), l.handNear(ctx, ns[len(ns)/2:])...)
		case refused(err):
			l.count.refused.Add(1)
			return receipts
		}
		l.count.failures.Add(1)
		if ctx.Err() == nil {
			l.troubl.say("cannot publish near timers", err)
		}
		if !pause.Wait(ctx) {
			return nil
		}
	}
}
