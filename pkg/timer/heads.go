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

// headVerdict says what to do with a timer whose schedule was cancelled or moved.
type headVerdict uint8

const (
	verdictOpen    headVerdict = iota // undecided: a move has stored the row and has not swapped the head yet
	verdictPublish                    // release the timer
	verdictDiscard                    // drop the timer: its schedule was cancelled or has another generation
)

// headDecision identifies one decision: whether to release the timers of this schedule and
// generation. All chunks of a fan-out share the decision.
type headDecision struct {
	base notify.Base
	gen  uint32
}

// headReader decides about timers whose schedules may have been cancelled or moved.
type headReader struct{ *Engine }

// hintsOf returns the schedules that have a hint in the partition p.
func (hs *headReader) hintsOf(ctx context.Context, p engine.TimerPartition) (map[notify.Base]struct{}, error) {
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

// questionOf returns what must be found out about a row before it is released. It returns
// needNothing for nearly all rows, so the release of an unchanged schedule reads no head.
func (hs *headReader) questionOf(row *engine.Timer, hints map[notify.Base]struct{}) headQuestion {
	if hs.cfg.Schedules == nil || row.Head.IsZero() {
		return needNothing
	}
	if _, hinted := hints[row.Head]; hinted || row.Gen > 0 {
		return needHead
	}
	return needNothing
}

// askHeads reads the heads of the entries in a batch, and publishes each entry, drops it, or passes
// it to Config.Cancelled. If it cannot decide about an entry now, it tries this entry again after
// Poll. Other entries do not wait for it.
func (r *releaser) askHeads(ctx context.Context, lane Lane, batch []*entry) {
	if len(batch) == 0 {
		return
	}
	batch = r.readHints(ctx, batch)
	asked := map[headDecision]*entry{}
	for _, x := range batch {
		if x.pending == needHead {
			asked[headDecision{x.timer.Head, x.timer.Gen}] = x
		}
	}
	var mu sync.Mutex
	verdicts := map[headDecision]headVerdict{}
	heads := map[headDecision]engine.ScheduleHead{}
	var g errgroup.Group
	g.SetLimit(16)
	for d, x := range asked {
		g.Go(func() error {
			v, h := r.decideEntry(ctx, d, x)
			mu.Lock()
			verdicts[d], heads[d] = v, h
			mu.Unlock()
			return nil
		})
	}
	_ = g.Wait() // no goroutine returns an error
	var out, ended []*entry
	for _, x := range batch {
		d := headDecision{x.timer.Head, x.timer.Gen}
		switch {
		case x.pending == needNothing || verdicts[d] == verdictPublish:
			out = append(out, x)
		case verdicts[d] == verdictDiscard && heads[d].State == engine.ScheduleCancelled && heads[d].Gen == d.gen && r.cfg.Cancelled != nil:
			ended = append(ended, x)
		case verdicts[d] == verdictDiscard:
			r.discardEntry(x, heads[d])
		default:
			r.putOff(x, r.cfg.Poll)
		}
	}
	r.publishTo(ctx, lane, ended, r.cfg.Cancelled, func(_ Lane, ts []engine.Timer, _ time.Time) {
		r.counters.dropped.Add(uint64(len(ts)))
		for i := range ts {
			r.cfg.Events.Dropped(ts[i], heads[headDecision{ts[i].Head, ts[i].Gen}])
		}
	})
	r.publishBatch(ctx, lane, out)
}

// readHints reads hints for entries that went into the wheel without a scan. If it cannot read the
// hints of an entry, it removes the entry from the batch, and the entry is tried again after Poll.
func (r *releaser) readHints(ctx context.Context, batch []*entry) (out []*entry) {
	read := map[engine.TimerPartition]map[notify.Base]struct{}{}
	for _, x := range batch {
		if x.pending == needHints {
			p := engine.TimerPartition{Bucket: x.minute.number, Shard: x.minute.t.shard}
			hints, ok := read[p]
			if !ok {
				var err error
				if hints, err = r.heads.hintsOf(ctx, p); err != nil {
					r.complaints.report("cannot read the hints of timers", err)
				}
				read[p] = hints
			}
			if hints == nil {
				r.putOff(x, r.cfg.Poll)
				continue
			}
			x.pending = r.heads.questionOf(&x.timer, hints)
		}
		out = append(out, x)
	}
	return out
}

// decideEntry calls decide for an entry. It remembers the verdict verdictPublish in the entry's
// minute, because this verdict is final.
func (r *releaser) decideEntry(ctx context.Context, d headDecision, x *entry) (headVerdict, engine.ScheduleHead) {
	r.mu.Lock()
	known, ok := x.minute.decided[d]
	alive := x.minute.t.aliveLocked()
	// Read Closed before the head. If the minute is closed already, a move that stores its row after
	// this read also finds the minute closed, and stores the row under the current minute.
	closed := x.minute.t.state.Closed >= x.minute.number
	r.mu.Unlock()
	if ok && known == verdictPublish {
		return known, engine.ScheduleHead{}
	}
	if !alive {
		return verdictOpen, engine.ScheduleHead{}
	}
	v, h, err := r.heads.decide(ctx, d, x.due, x.minute.t.ownsNow)
	if err != nil && ctx.Err() == nil {
		r.complaints.report("cannot find out whether to release cancelled or moved timers", err)
	}
	if v == verdictOpen && err == nil && closed {
		v = r.heads.fenceMove(ctx, d, h)
	}
	if v == verdictPublish {
		r.mu.Lock()
		if x.minute.decided == nil {
			x.minute.decided = map[headDecision]headVerdict{}
		}
		x.minute.decided[d] = v
		r.mu.Unlock()
	}
	return v, h
}

// fenceMove decides about a row that a move has stored, if the move has not swapped the head yet
// and the row's minute is already closed. fenceMove raises the version of the head, so that the
// move's own swap fails, however late it comes. Then the row can be dropped. Otherwise a late swap
// could leave a schedule without rows.
func (hs *headReader) fenceMove(ctx context.Context, d headDecision, h engine.ScheduleHead) headVerdict {
	next := h
	next.Base, next.At = d.base, hs.now()
	if h.Version == 0 {
		next.State = engine.SchedulePending
	}
	hs.counters.headSwaps.Add(1)
	ctx, stop := context.WithTimeout(ctx, hs.cfg.WriteTimeout)
	defer stop()
	if _, won, err := hs.cfg.Schedules.Swap(ctx, h.Version, next); err != nil || !won {
		return verdictOpen // the next try decides
	}
	return verdictDiscard
}

// decide finds out whether to release a timer whose schedule may have been cancelled or moved. If
// the head is still pending, decide swaps it to released. mayAct returns false if this engine must
// not swap the head any more. If decide returns an error, the timer must wait.
func (hs *headReader) decide(ctx context.Context, d headDecision, due int64, mayAct func() bool) (headVerdict, engine.ScheduleHead, error) {
	h, ok, err := hs.head(ctx, d.base)
	for tries := 0; err == nil; tries++ {
		switch {
		case ok && h.Gen > d.gen,
			ok && h.State == engine.ScheduleCancelled,
			ok && h.State == engine.ScheduleReleased && h.Gen < d.gen:
			return verdictDiscard, h, nil
		case ok && h.State == engine.ScheduleReleased:
			return verdictPublish, h, nil
		case ok && h.Gen < d.gen, !ok && d.gen > 0:
			return verdictOpen, h, nil
		case tries == 8:
			return verdictOpen, h, fmt.Errorf("the head of schedule %s changed %d times while its timer was being released", d.base, tries)
		case !mayAct():
			return verdictOpen, h, errExpired
		}
		next := h // a copy, so that it keeps when and by whom the schedule was moved
		next.Base, next.State, next.Gen, next.At = d.base, engine.ScheduleReleased, d.gen, hs.now()
		if !ok {
			next.FireAt = due
		}
		hs.counters.headSwaps.Add(1)
		call, stop := context.WithTimeout(ctx, hs.cfg.WriteTimeout)
		stored, won, swapErr := hs.cfg.Schedules.Swap(call, h.Version, next)
		stop()
		switch {
		case swapErr != nil:
			// After an error the swap may still have succeeded. Read the stored head to find out.
			if h, ok, err = hs.head(ctx, d.base); err != nil || ok && h.State == engine.SchedulePending || !ok {
				return verdictOpen, h, swapErr
			}
		case won:
			return verdictPublish, stored, nil
		default:
			h, ok = stored, stored.Version > 0
		}
	}
	return verdictOpen, h, err
}

func (hs *headReader) head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	hs.counters.headReads.Add(1)
	ctx, stop := context.WithTimeout(ctx, hs.cfg.WriteTimeout)
	defer stop()
	return hs.cfg.Schedules.Head(ctx, base)
}

// discardEntry drops an entry, because its schedule was cancelled or moved.
func (r *releaser) discardEntry(x *entry, h engine.ScheduleHead) {
	r.mu.Lock()
	over := x.minute.t.lost
	if !over {
		r.ackLocked(x)
	}
	r.mu.Unlock()
	if !over {
		r.counters.dropped.Add(1)
		r.cfg.Events.Dropped(x.timer, h)
	}
}
