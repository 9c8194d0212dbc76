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

// consume releases near timers from the queue until ctx ends. Those of shards
// this engine owns go into its wheel, which knows what it has met; others are
// published here, and may be published again by their owner.
func (e *Engine) consume(ctx context.Context) {
	for ctx.Err() == nil {
		if e.clockOff() {
			notify.Sleep(ctx, e.cfg.Poll)
			continue
		}
		ds, err := e.cfg.Queue.Receive(ctx, nearBatch, e.cfg.LeaseTTL)
		if err != nil && ctx.Err() == nil {
			e.troubl.say("cannot receive near timers", err)
			notify.Sleep(ctx, e.cfg.Poll)
		}
		if len(ds) > 0 {
			e.publishNear(ctx, ds)
		}
	}
}

// publishNear publishes deliveries and acknowledges them. What fails on the way
// is received again.
func (e *Engine) publishNear(ctx context.Context, ds []engine.Delivery) {
	defer e.extend(ctx, ds)()
	now := e.now()
	var due []near
	var early []engine.Message
	var earlier, done []string
	// A message whose row the owner has is done with: the row is durable.
	ours := func(p *parked) bool { return len(e.admit([]parked{*p})) == 0 }
	for _, d := range ds {
		p, whole, err := readNear(d.Body)
		switch {
		case err != nil:
			e.cfg.Logger.Error("a near timer's message is dropped; its row is released by the sweeper", "bytes", len(d.Body), "err", err)
			done = append(done, d.Receipt)
		case p.due > now: // farther away than one hop, or a clock was set back
			early = append(early, engine.Message{Body: d.Body, Delay: nearDelay(p.due, now)})
			earlier = append(earlier, d.Receipt)
		default:
			n := near{p, d.Receipt, d.Receives}
			if !whole {
				there, err := e.fill(ctx, &n)
				if err != nil {
					e.troubl.say("cannot read the rows of near timers", err)
					continue
				}
				if !there { // its minute was closed, and so it was released
					done = append(done, d.Receipt)
					continue
				}
			}
			if ours(&n.parked) {
				done = append(done, d.Receipt)
			} else {
				due = append(due, n)
			}
		}
	}
	if len(early) > 0 {
		if err := e.cfg.Queue.Enqueue(ctx, early); err != nil {
			e.troubl.say("cannot put near timers off", err)
		} else {
			done = append(done, earlier...)
		}
	}
	due, discarded := e.askNear(ctx, due)
	done = append(done, discarded...)
	done = append(done, e.handNear(ctx, due)...)
	if len(done) == 0 {
		return
	}
	if err := e.cfg.Queue.Ack(ctx, done); err != nil && ctx.Err() == nil {
		e.troubl.say("cannot acknowledge near timers", err)
	}
}

// extend keeps deliveries this consumer's until the returned function is called.
// They are held as a shard is: when a consumer dies, another has its near timers
// as soon as its shards.
func (e *Engine) extend(ctx context.Context, ds []engine.Delivery) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	receipts := make([]string, len(ds))
	for i := range ds {
		receipts[i] = ds[i].Receipt
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for notify.Sleep(ctx, e.cfg.LeaseRenew) {
			if err := e.cfg.Queue.Extend(ctx, receipts, e.cfg.LeaseTTL); err != nil && ctx.Err() == nil {
				e.troubl.say("cannot extend the visibility of near timers", err)
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// fill reads the payload of a row that was too large for its message.
func (e *Engine) fill(ctx context.Context, n *near) (there bool, err error) {
	p := engine.TimerPartition{Bucket: n.FireAt / 60_000, Shard: engine.ShardOf(n.ID, e.cfg.Shards)}
	cursor := engine.TimerCursor{FireAt: n.FireAt, ID: before(n.ID)}
	rows, err := e.cfg.Store.Scan(ctx, p, cursor, n.FireAt, 1)
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
func (e *Engine) askNear(ctx context.Context, ns []near) (due []near, done []string) {
	read := map[engine.TimerPartition]map[notify.Base]struct{}{}
	for _, n := range ns {
		v, head, err := e.verdictNear(ctx, &n, read)
		if err != nil && ctx.Err() == nil {
			e.troubl.say("cannot decide about touched timers", err)
		}
		switch {
		case v == publish:
			due = append(due, n)
		case v == discard:
			e.count.dropped.Add(1)
			e.cfg.Events.Dropped(n.Timer, head)
			done = append(done, n.receipt)
		case n.receives >= nearLooks:
			done = append(done, n.receipt)
		default:
			if err := e.cfg.Queue.Release(ctx, n.receipt, e.cfg.Poll); err != nil {
				e.troubl.say("cannot put near timers off", err)
			}
		}
	}
	return due, done
}

func (e *Engine) verdictNear(ctx context.Context, n *near, read map[engine.TimerPartition]map[notify.Base]struct{}) (verdict, engine.ScheduleHead, error) {
	if e.cfg.Schedules == nil || n.Head.IsZero() {
		return publish, engine.ScheduleHead{}, nil
	}
	p := engine.TimerPartition{Bucket: n.FireAt / 60_000, Shard: engine.ShardOf(n.ID, e.cfg.Shards)}
	hints, ok := read[p]
	if !ok {
		var err error
		if hints, err = e.hints(ctx, p); err != nil {
			return undecided, engine.ScheduleHead{}, err
		}
		read[p] = hints
	}
	if e.questionOf(&n.Timer, hints) == askNothing {
		return publish, engine.ScheduleHead{}, nil
	}
	return e.decide(ctx, decision{n.Head, n.Gen}, n.due, func() bool { return true })
}

// handNear publishes timers until that succeeds or ctx ends, and returns the
// receipts of those that are done with. What is refused for what is in it is
// left to the sweeper.
func (e *Engine) handNear(ctx context.Context, ns []near) (done []string) {
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
		err := e.cfg.Publish(ctx, ts)
		switch {
		case err == nil:
			e.published(Near, ts, e.cfg.Wall())
			return receipts
		case refused(err) && len(ns) > 1:
			return append(e.handNear(ctx, ns[:len(ns)/2]), e.handNear(ctx, ns[len(ns)/2:])...)
		case refused(err):
			e.count.refused.Add(1)
			return receipts
		}
		e.count.failures.Add(1)
		if ctx.Err() == nil {
			e.troubl.say("cannot publish near timers", err)
		}
		if !pause.Wait(ctx) {
			return nil
		}
	}
}
