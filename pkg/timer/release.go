package timer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer/wheel"
)

const (
	// While timers wait, advance sleeps at most this long, so that it notices a wall clock that was
	// set ahead.
	longestSleep = 250 * time.Millisecond
	// If the wall clock goes back by less than this, the wheel just waits. Clocks are corrected by
	// milliseconds all the time, and Rewind touches every timer of the wheel.
	rewindFrom = 20 * time.Millisecond
	// Pause between two attempts to publish a timer that is refused each time.
	refusedPause = time.Minute
)

// releaser publishes loaded timers. It publishes timers of the wheel at their due time, and timers
// of the backlog at a limited rate.
type releaser struct {
	*Engine

	wheelFilled   chan struct{} // gets a token when an entry is added to the wheel
	backlogFilled chan struct{} // gets a token when an entry is added to the backlog
	onTime        *entryQueue   // due entries from the wheel
	toAsk         *entryQueue   // due entries whose head must be read first

	// Engine.mu guards the fields below.
	wheel   *wheel.Wheel[*entry]
	backlog backlog // entries to catch up, earliest due first
	// Entries with a due time up to askUntil (ms since 1970) were loaded before the clock was set
	// back. Read their heads before the release, because their schedules may have been cancelled or
	// moved since.
	askUntil    int64
	catchUpRate releaseRate // measured rate of catch-up releases
}

func newReleaser(e *Engine) *releaser {
	r := &releaser{Engine: e, wheelFilled: make(chan struct{}, 1), backlogFilled: make(chan struct{}, 1), wheel: wheel.New[*entry](e.now())}
	r.onTime, r.toAsk = newFifo(r.batchLen), newFifo(r.batchLen)
	return r
}

// run releases timers until ctx ends.
func (r *releaser) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { r.advance(ctx) })
	for range r.cfg.Publishers {
		wg.Go(func() { r.onTime.eachBatch(ctx, func(b []*entry) { r.publishBatch(ctx, OnTime, b) }) })
	}
	for range 2 {
		wg.Go(func() { r.toAsk.eachBatch(ctx, func(b []*entry) { r.askHeads(ctx, OnTime, b) }) })
	}
	paced := make(chan []*entry)
	wg.Go(func() { r.paceBacklog(ctx, paced) })
	for range r.cfg.CatchUpPublishers {
		wg.Go(func() { r.publishBacklog(ctx, paced) })
	}
	wg.Wait()
}

// advance moves due timers from the wheel to the queues, in due order, until ctx ends. It never
// waits for a publisher.
func (r *releaser) advance(ctx context.Context) {
	for ctx.Err() == nil {
		var plain, asked []*entry
		now := r.cfg.Wall()
		r.mu.Lock()
		if time.UnixMilli(r.wheel.Now()).Sub(now) > rewindFrom {
			r.wheel.Rewind(now.UnixMilli())
			for _, t := range r.tenures {
				if t != nil {
					r.askUntil = max(r.askUntil, t.loadedUntil)
				}
			}
		}
		r.wheel.Advance(now.UnixMilli(), func(x *entry) {
			if x.pending == needNothing && x.due <= r.askUntil && r.cfg.Schedules != nil && !x.timer.Head.IsZero() {
				x.pending = needHints
			}
			if x.pending == needNothing {
				plain = append(plain, x)
			} else {
				asked = append(asked, x)
			}
		})
		next, some := r.wheel.Next()
		r.mu.Unlock()
		r.onTime.push(byDue(plain))
		r.toAsk.push(byDue(asked))
		if !some {
			select {
			case <-r.wheelFilled:
			case <-ctx.Done():
			}
			continue
		}
		t := time.NewTimer(min(longestSleep, max(time.UnixMilli(next).Sub(now), time.Millisecond)))
		select {
		case <-t.C:
		case <-r.wheelFilled:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// byDue sorts due entries by due time. Entries that were due already when they were loaded are not
// in this order, because each shard is loaded separately.
func byDue(due []*entry) []*entry {
	slices.SortStableFunc(due, func(a, b *entry) int { return cmp.Compare(a.due, b.due) })
	return due
}

// batchLen returns how many entries, counted from the first, make one batch.
func (r *releaser) batchLen(batch []*entry) int {
	n, size := 0, 0
	for n < len(batch) && n < r.cfg.Batch {
		if size += len(batch[n].timer.Payload); n > 0 && size > r.cfg.BatchSize {
			break
		}
		n++
	}
	return n
}

// publishBatch publishes a batch. It retries until the publish succeeds, ctx ends or the shards are
// lost. If a batch is refused for its content, publishBatch halves it, so that other timers do not
// wait for a timer that is refused each time. Such a timer is tried again every minute.
func (r *releaser) publishBatch(ctx context.Context, lane Lane, batch []*entry) {
	to := r.cfg.Publish
	if lane == CatchUp {
		to = r.cfg.CaughtUp
	}
	r.publishTo(ctx, lane, batch, to, r.notePublished)
}

func (r *releaser) publishTo(ctx context.Context, lane Lane, batch []*entry, to func(context.Context, []engine.Timer) error, done func(Lane, []engine.Timer, time.Time)) {
	for pause := (notify.Pause{}); ; {
		if batch = r.beginPublish(lane, batch); len(batch) == 0 {
			return
		}
		ts := make([]engine.Timer, len(batch))
		for i, x := range batch {
			ts[i] = x.timer
			ts[i].FireAt = x.due
		}
		err := to(ctx, ts)
		at := r.cfg.Wall()
		if err == nil {
			killpoint.Hit("timers-published")
		}
		r.endPublish(batch, err)
		switch {
		case err == nil:
			done(lane, ts, at)
			return
		case isRefused(err) && len(batch) > 1:
			r.publishTo(ctx, lane, batch[:len(batch)/2], to, done)
			r.publishTo(ctx, lane, batch[len(batch)/2:], to, done)
			return
		case isRefused(err):
			r.counters.refused.Add(1)
			r.cfg.Logger.Error("a timer is refused because of its content; trying again in a minute", "target", ts[0].Target, "bytes", len(ts[0].Payload), "err", err)
			r.putOff(batch[0], refusedPause)
			return
		}
		r.counters.failures.Add(1)
		if ctx.Err() != nil {
			return
		}
		r.complaints.report("cannot publish due timers", err)
		if lane == OnTime {
			batch = r.leaveToCatchUp(batch)
		}
		if len(batch) == 0 || !pause.Wait(ctx) {
			return
		}
	}
}

// beginPublish returns the entries that may be published now, and counts them as in flight. It
// leaves out entries of shards that may be lost. If the clock was set back, some entries are not
// due yet. beginPublish puts these back into the wheel.
func (r *releaser) beginPublish(lane Lane, batch []*entry) []*entry {
	now := r.now() // read before clockOff, because the offset describes the clock as it was set last
	if r.clockOff() {
		for _, x := range batch {
			x.minute.t.end(errClock) // end the tenure here: when the method renew checks the clock, it may be right again
		}
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*entry, 0, len(batch))
	for _, x := range batch {
		switch t := x.minute.t; {
		case !t.aliveLocked():
		case x.due > now:
			r.wheel.Add(x.due, x)
			wakeUp(r.wheelFilled)
		default:
			t.inflight++
			out = append(out, x)
		}
	}
	return out
}

// endPublish ends the publishing that beginPublish began. If err is nil, it acknowledges the
// entries.
func (r *releaser) endPublish(batch []*entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range batch {
		t := x.minute.t
		if t.inflight--; t.lost && t.inflight == 0 {
			close(t.idle)
		}
		if err == nil {
			r.ackLocked(x)
		}
	}
}

// notePublished counts a published batch and calls Events.Released.
func (r *releaser) notePublished(lane Lane, ts []engine.Timer, at time.Time) {
	r.counters.released[lane].Add(uint64(len(ts)))
	if lane == CatchUp {
		r.mu.Lock()
		r.catchUpRate.add(len(ts), r.clock())
		r.mu.Unlock()
	}
	r.cfg.Events.Released(lane, ts, at)
}

// leaveToCatchUp removes on-time entries that are now late, so that the catch-up loads them again.
// It returns the other entries.
func (r *releaser) leaveToCatchUp(batch []*entry) []*entry {
	late := r.now() - r.cfg.CatchUpAfter.Milliseconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(batch, func(x *entry) bool {
		if x.due >= late || x.lane != OnTime {
			return false
		}
		x.minute.t.forgetLocked(x)
		return true
	})
}

// putOff puts a due entry back into the wheel, so that the entry is due again after d. The entry's
// minute is not dropped before the entry is released.
func (r *releaser) putOff(x *entry, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.minute.t.lost {
		return
	}
	r.wheel.Add(r.now()+d.Milliseconds(), x)
	wakeUp(r.wheelFilled)
}
