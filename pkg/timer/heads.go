package timer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// verdict is what becomes of a timer whose schedule was touched.
type verdict uint8

const (
	undecided verdict = iota // a reschedule has stored it, and not decided yet
	publish                  // it is released at this generation
	discard                  // it was cancelled, or is of another generation
)

// decision names what a verdict is about: all chunks of a fan-out share one.
type decision struct {
	base notify.Base
	gen  uint32
}

// heads says what becomes of timers whose schedules may have been touched.
type heads struct{ *Engine }

// hints returns the schedules that were touched in a partition.
func (hs *heads) hints(ctx context.Context, p engine.TimerPartition) (map[notify.Base]struct{}, error) {
	bases, err := hs.cfg.Schedules.Hints(ctx, p)
	if err != nil {
		return nil, err
	}
	out := make(map[notify.Base]struct{}, len(bases))
	for _, b := range bases {
		out[b] = struct{}{}
	}
	return out, nil
}

// questionOf is what has to be found out about a row before it is released.
// Nothing, for nearly all: an untouched row costs no read.
func (hs *heads) questionOf(row *engine.Timer, hints map[notify.Base]struct{}) question {
	if hs.cfg.Schedules == nil || row.Head.IsZero() {
		return askNothing
	}
	if _, hinted := hints[row.Head]; hinted || row.Gen > 0 {
		return askHead
	}
	return askNothing
}

// ask releases the entries of a batch as the heads of their schedules say. One
// that cannot be decided now is put off; it holds up no other.
func (r *releaser) ask(ctx context.Context, lane Lane, batch []*entry) {
	if len(batch) == 0 {
		return
	}
	batch = r.narrow(ctx, batch)
	asked := map[decision]*entry{}
	for _, x := range batch {
		if x.ask == askHead {
			asked[decision{x.t.Head, x.t.Gen}] = x
		}
	}
	var mu sync.Mutex
	verdicts := map[decision]verdict{}
	heads := map[decision]engine.ScheduleHead{}
	var g errgroup.Group
	g.SetLimit(16)
	for d, x := range asked {
		g.Go(func() error {
			v, h := r.decideFor(ctx, d, x)
			mu.Lock()
			verdicts[d], heads[d] = v, h
			mu.Unlock()
			return nil
		})
	}
	_ = g.Wait() // none returns an error
	var out, ended []*entry
	for _, x := range batch {
		d := decision{x.t.Head, x.t.Gen}
		switch {
		case x.ask == askNothing || verdicts[d] == publish:
			out = append(out, x)
		case verdicts[d] == discard && heads[d].State == engine.ScheduleCancelled && heads[d].Gen == d.gen && r.cfg.Cancelled != nil:
			ended = append(ended, x)
		case verdicts[d] == discard:
			r.discard(x, heads[d])
		default:
			r.putOff(x, r.cfg.Poll)
		}
	}
	r.handTo(ctx, lane, ended, r.cfg.Cancelled, func(_ Lane, ts []engine.Timer, _ time.Time) {
		r.count.dropped.Add(uint64(len(ts)))
		for i := range ts {
			r.cfg.Events.Dropped(ts[i], heads[decision{ts[i].Head, ts[i].Gen}])
		}
	})
	r.hand(ctx, lane, out)
}

// narrow reads the hints of entries that went into the wheel without a scan, and
// puts off those whose hints cannot be read.
func (r *releaser) narrow(ctx context.Context, batch []*entry) (out []*entry) {
	read := map[engine.TimerPartition]map[notify.Base]struct{}{}
	for _, x := range batch {
		if x.ask == askHints {
			p := engine.TimerPartition{Bucket: x.m.at, Shard: x.m.t.n}
			hints, ok := read[p]
			if !ok {
				var err error
				if hints, err = r.heads.hints(ctx, p); err != nil {
					r.troubl.say("cannot read the hints of timers", err)
				}
				read[p] = hints
			}
			if hints == nil {
				r.putOff(x, r.cfg.Poll)
				continue
			}
			x.ask = r.heads.questionOf(&x.t, hints)
		}
		out = append(out, x)
	}
	return out
}

// decideFor is decide for an entry, with the verdicts of its minute remembered:
// those but wait are final.
func (r *releaser) decideFor(ctx context.Context, d decision, x *entry) (verdict, engine.ScheduleHead) {
	r.mu.Lock()
	known, ok := x.m.decided[d]
	alive := x.m.t.aliveLocked()
	// Read before the head: who moves the head behind this look finds the
	// minute closed, and writes the row elsewhere.
	closed := x.m.t.state.Closed >= x.m.at
	r.mu.Unlock()
	if ok && known == publish {
		return known, engine.ScheduleHead{}
	}
	if !alive {
		return undecided, engine.ScheduleHead{}
	}
	v, h, err := r.heads.decide(ctx, d, x.due, x.m.t.trusts)
	if err != nil && ctx.Err() == nil {
		r.troubl.say("cannot decide about touched timers", err)
	}
	if v == undecided && err == nil && closed {
		v = r.heads.fence(ctx, d, h)
	}
	if v == publish {
		r.mu.Lock()
		if x.m.decided == nil {
			x.m.decided = map[decision]verdict{}
		}
		x.m.decided[d] = v
		r.mu.Unlock()
	}
	return v, h
}

// fence settles a row whose generation is ahead of its head: a move that has
// stored it and not swapped the head, though the minute is closed. Raising the
// head's version makes that swap fail, whenever it comes, so that the row can go:
// without it a move that wins late would leave a schedule without rows.
func (hs *heads) fence(ctx context.Context, d decision, h engine.ScheduleHead) verdict {
	next := h
	next.Base, next.At = d.base, hs.now()
	if h.Version == 0 {
		next.State = engine.SchedulePending
	}
	hs.count.headSwaps.Add(1)
	ctx, stop := context.WithTimeout(ctx, hs.cfg.WriteTimeout)
	defer stop()
	if _, won, err := hs.cfg.Schedules.Swap(ctx, h.Version, next); err != nil || !won {
		return undecided // looked at again
	}
	return discard
}

// decide finds out whether a timer of a touched schedule is released, and makes
// it so if nobody has decided yet. An error means wait.
func (hs *heads) decide(ctx context.Context, d decision, due int64, may func() bool) (verdict, engine.ScheduleHead, error) {
	h, ok, err := hs.head(ctx, d.base)
	for tries := 0; err == nil; tries++ {
		switch {
		case ok && h.Gen > d.gen,
			ok && h.State == engine.ScheduleCancelled,
			ok && h.State == engine.ScheduleReleased && h.Gen < d.gen:
			return discard, h, nil
		case ok && h.State == engine.ScheduleReleased:
			return publish, h, nil
		case ok && h.Gen < d.gen, !ok && d.gen > 0:
			return undecided, h, nil
		case tries == 8:
			return undecided, h, fmt.Errorf("the head of %s changed %d times while it was released", d.base, tries)
		case !may():
			return undecided, h, errExpired
		}
		next := h // with who moved it
		next.Base, next.State, next.Gen, next.At = d.base, engine.ScheduleReleased, d.gen, hs.now()
		if !ok {
			next.FireAt = due
		}
		hs.count.headSwaps.Add(1)
		call, stop := context.WithTimeout(ctx, hs.cfg.WriteTimeout)
		stored, won, swapErr := hs.cfg.Schedules.Swap(call, h.Version, next)
		stop()
		switch {
		case swapErr != nil:
			// It may have won. What is stored says so.
			if h, ok, err = hs.head(ctx, d.base); err != nil || ok && h.State == engine.SchedulePending || !ok {
				return undecided, h, swapErr
			}
		case won:
			return publish, stored, nil
		default:
			h, ok = stored, stored.Version > 0
		}
	}
	return undecided, h, err
}

func (hs *heads) head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	hs.count.headReads.Add(1)
	ctx, stop := context.WithTimeout(ctx, hs.cfg.WriteTimeout)
	defer stop()
	return hs.cfg.Schedules.Head(ctx, base)
}

// discard drops an entry as its head says.
func (r *releaser) discard(x *entry, h engine.ScheduleHead) {
	r.mu.Lock()
	over := x.m.t.over
	if !over {
		r.ackLocked(x)
	}
	r.mu.Unlock()
	if !over {
		r.count.dropped.Add(1)
		r.cfg.Events.Dropped(x.t, h)
	}
}
