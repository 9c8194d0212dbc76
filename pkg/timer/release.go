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
	// While timers wait a sleep ends by then, so that a wall clock that was set
	// ahead is noticed.
	longestSleep = 250 * time.Millisecond
	// A clock that goes back by less is waited for: clocks are corrected by
	// milliseconds all the time, and rewinding the wheel touches every timer.
	rewindFrom = 20 * time.Millisecond
	// A timer that nobody takes is tried again so often.
	refusedPause = time.Minute
)

// releaser publishes loaded timers: those of the wheel at their time, those of the
// backlog at a rate.
type releaser struct {
	*Engine

	wake   chan struct{} // something went into the wheel
	late   chan struct{} // something went into the backlog
	onTime *fifo         // due, from the wheel
	asked  *fifo         // due, and a head has to be asked

	// The rest is guarded by Engine.mu.
	wheel   *wheel.Wheel[*entry]
	backlog backlog // what is caught up, by due time
	// Entries that are due until then were loaded before the clock was set back, so
	// their schedules may have been touched since. ms since 1970.
	askUntil int64
	caught   rate // catch-up releases
}

func newReleaser(e *Engine) *releaser {
	r := &releaser{Engine: e, wake: make(chan struct{}, 1), late: make(chan struct{}, 1), wheel: wheel.New[*entry](e.now())}
	r.onTime, r.asked = newFifo(r.cut), newFifo(r.cut)
	return r
}

// run releases timers until ctx ends.
func (r *releaser) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { r.advance(ctx) })
	for range r.cfg.Publishers {
		wg.Go(func() { r.onTime.each(ctx, func(b []*entry) { r.hand(ctx, OnTime, b) }) })
	}
	for range 2 {
		wg.Go(func() { r.asked.each(ctx, func(b []*entry) { r.ask(ctx, OnTime, b) }) })
	}
	paced := make(chan []*entry)
	wg.Go(func() { r.pace(ctx, paced) })
	for range r.cfg.CatchUpPublishers {
		wg.Go(func() { r.drain(ctx, paced) })
	}
	wg.Wait()
}

// advance lets timers out of the wheel at their time, in due order, until ctx
// ends. It never waits for a publisher.
func (r *releaser) advance(ctx context.Context) {
	for ctx.Err() == nil {
		var plain, asked []*entry
		now := r.cfg.Wall()
		r.mu.Lock()
		if time.UnixMilli(r.wheel.Now()).Sub(now) > rewindFrom {
			r.wheel.Rewind(now.UnixMilli())
			for _, t := range r.tenures {
				if t != nil {
					r.askUntil = max(r.askUntil, t.loaded)
				}
			}
		}
		r.wheel.Advance(now.UnixMilli(), func(x *entry) {
			if x.ask == askNothing && x.due <= r.askUntil && r.cfg.Schedules != nil && !x.t.Head.IsZero() {
				x.ask = askHints
			}
			if x.ask == askNothing {
				plain = append(plain, x)
			} else {
				asked = append(asked, x)
			}
		})
		next, some := r.wheel.Next()
		r.mu.Unlock()
		r.onTime.push(byDue(plain))
		r.asked.push(byDue(asked))
		if !some {
			select {
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		t := time.NewTimer(min(longestSleep, max(time.UnixMilli(next).Sub(now), time.Millisecond)))
		select {
		case <-t.C:
		case <-r.wake:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// byDue orders due entries: rows loaded late come in the order of their shards.
func byDue(due []*entry) []*entry {
	slices.SortStableFunc(due, func(a, b *entry) int { return cmp.Compare(a.due, b.due) })
	return due
}

// cut is how many of the first entries make one batch.
func (r *releaser) cut(batch []*entry) int {
	n, size := 0, 0
	for n < len(batch) && n < r.cfg.Batch {
		if size += len(batch[n].t.Payload); n > 0 && size > r.cfg.BatchSize {
			break
		}
		n++
	}
	return n
}

// hand publishes a batch, and again until that succeeds, ctx ends or the shards
// are lost. A batch that is refused for what is in it is halved, so that a timer
// nobody takes holds no other up; that one is tried every minute.
func (r *releaser) hand(ctx context.Context, lane Lane, batch []*entry) {
	to := r.cfg.Publish
	if lane == CatchUp {
		to = r.cfg.CaughtUp
	}
	r.handTo(ctx, lane, batch, to, r.published)
}

func (r *releaser) handTo(ctx context.Context, lane Lane, batch []*entry, to func(context.Context, []engine.Timer) error, done func(Lane, []engine.Timer, time.Time)) {
	for pause := (notify.Pause{}); ; {
		if batch = r.enter(lane, batch); len(batch) == 0 {
			return
		}
		ts := make([]engine.Timer, len(batch))
		for i, x := range batch {
			ts[i] = x.t
			ts[i].FireAt = x.due
		}
		err := to(ctx, ts)
		at := r.cfg.Wall()
		if err == nil {
			killpoint.Hit("timers-published")
		}
		r.leave(batch, err)
		switch {
		case err == nil:
			done(lane, ts, at)
			return
		case refused(err) && len(batch) > 1:
			r.handTo(ctx, lane, batch[:len(batch)/2], to, done)
			r.handTo(ctx, lane, batch[len(batch)/2:], to, done)
			return
		case refused(err):
			r.count.refused.Add(1)
			r.cfg.Logger.Error("a timer is refused; trying again in a minute", "target", ts[0].Target, "bytes", len(ts[0].Payload), "err", err)
			r.putOff(batch[0], refusedPause)
			return
		}
		r.count.failures.Add(1)
		if ctx.Err() != nil {
			return
		}
		r.troubl.say("cannot publish due timers", err)
		if lane == OnTime {
			batch = r.giveUp(batch)
		}
		if len(batch) == 0 || !pause.Wait(ctx) {
			return
		}
	}
}

// enter returns the entries that may be published now, and counts them as being
// so: not those of shards that are not surely ours any more, and not those that
// a clock set back has made early, which go into the wheel again.
func (r *releaser) enter(lane Lane, batch []*entry) []*entry {
	now := r.now() // before the offset is looked at, which is of the clock as it was set last
	if r.clockOff() {
		for _, x := range batch {
			x.m.t.end(errClock) // it may be well again when the keeper looks
		}
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*entry, 0, len(batch))
	for _, x := range batch {
		switch t := x.m.t; {
		case !t.aliveLocked():
		case x.due > now:
			r.wheel.Add(x.due, x)
			signal(r.wake)
		default:
			t.inflight++
			out = append(out, x)
		}
	}
	return out
}

// leave ends what enter began.
func (r *releaser) leave(batch []*entry, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range batch {
		t := x.m.t
		if t.inflight--; t.over && t.inflight == 0 {
			close(t.quiet)
		}
		if err == nil {
			r.ackLocked(x)
		}
	}
}

// published counts a batch and tells of it.
func (r *releaser) published(lane Lane, ts []engine.Timer, at time.Time) {
	r.count.released[lane].Add(uint64(len(ts)))
	if lane == CatchUp {
		r.mu.Lock()
		r.caught.add(len(ts), r.clock())
		r.mu.Unlock()
	}
	r.cfg.Events.Released(lane, ts, at)
}

// giveUp leaves on-time entries that have become late to the catch-up, and
// returns the others.
func (r *releaser) giveUp(batch []*entry) []*entry {
	late := r.now() - r.cfg.CatchUpAfter.Milliseconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(batch, func(x *entry) bool {
		if x.due >= late || x.lane != OnTime {
			return false
		}
		x.m.t.forgetLocked(x)
		return true
	})
}

// putOff puts an entry that is due back into the wheel for a while. Its minute
// stays until it is released.
func (r *releaser) putOff(x *entry, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.m.t.over {
		return
	}
	r.wheel.Add(r.now()+d.Milliseconds(), x)
	signal(r.wake)
}
