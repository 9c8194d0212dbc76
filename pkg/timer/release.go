package timer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
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

// release lets timers out of the wheel at their time, in due order, until ctx
// ends. It never waits for a publisher.
func (e *Engine) release(ctx context.Context) {
	for ctx.Err() == nil {
		var plain, asked []*entry
		now := e.cfg.Wall()
		e.mu.Lock()
		if time.UnixMilli(e.wheel.Now()).Sub(now) > rewindFrom {
			e.wheel.Rewind(now.UnixMilli())
			for _, t := range e.tenures {
				if t != nil {
					e.askUntil = max(e.askUntil, t.loaded)
				}
			}
		}
		e.wheel.Advance(now.UnixMilli(), func(x *entry) {
			if x.ask == askNothing && x.due <= e.askUntil && e.cfg.Schedules != nil && !x.t.Head.IsZero() {
				x.ask = askHints
			}
			if x.ask == askNothing {
				plain = append(plain, x)
			} else {
				asked = append(asked, x)
			}
		})
		next, some := e.wheel.Next()
		e.mu.Unlock()
		e.onTime.push(byDue(plain))
		e.asked.push(byDue(asked))
		if !some {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
			continue
		}
		t := time.NewTimer(min(longestSleep, max(time.UnixMilli(next).Sub(now), time.Millisecond)))
		select {
		case <-t.C:
		case <-e.wake:
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
func (e *Engine) cut(batch []*entry) int {
	n, size := 0, 0
	for n < len(batch) && n < e.cfg.Batch {
		if size += len(batch[n].t.Payload); n > 0 && size > e.cfg.BatchSize {
			break
		}
		n++
	}
	return n
}

// hand publishes a batch, and again until that succeeds, ctx ends or the shards
// are lost. A batch that is refused for what is in it is halved, so that a timer
// nobody takes holds no other up; that one is tried every minute.
func (e *Engine) hand(ctx context.Context, lane Lane, batch []*entry) {
	to := e.cfg.Publish
	if lane == CatchUp {
		to = e.cfg.CaughtUp
	}
	e.handTo(ctx, lane, batch, to, e.published)
}

func (e *Engine) handTo(ctx context.Context, lane Lane, batch []*entry, to func(context.Context, []engine.Timer) error, done func(Lane, []engine.Timer, time.Time)) {
	for pause := (notify.Pause{}); ; {
		if batch = e.enter(lane, batch); len(batch) == 0 {
			return
		}
		ts := make([]engine.Timer, len(batch))
		for i, x := range batch {
			ts[i] = x.t
			ts[i].FireAt = x.due
		}
		err := to(ctx, ts)
		at := e.cfg.Wall()
		if err == nil {
			killpoint.Hit("timers-published")
		}
		e.leave(batch, err)
		switch {
		case err == nil:
			done(lane, ts, at)
			return
		case refused(err) && len(batch) > 1:
			e.handTo(ctx, lane, batch[:len(batch)/2], to, done)
			e.handTo(ctx, lane, batch[len(batch)/2:], to, done)
			return
		case refused(err):
			e.count.refused.Add(1)
			e.cfg.Logger.Error("a timer is refused; trying again in a minute", "target", ts[0].Target, "bytes", len(ts[0].Payload), "err", err)
			e.putOff(batch[0], refusedPause)
			return
		}
		e.count.failures.Add(1)
		if ctx.Err() != nil {
			return
		}
		e.troubl.say("cannot publish due timers", err)
		if lane == OnTime {
			batch = e.giveUp(batch)
		}
		if len(batch) == 0 || !pause.Wait(ctx) {
			return
		}
	}
}

// enter returns the entries that may be published now, and counts them as being
// so: not those of shards that are not surely ours any more, and not those that
// a clock set back has made early, which go into the wheel again.
func (e *Engine) enter(lane Lane, batch []*entry) []*entry {
	now := e.now() // before the offset is looked at, which is of the clock as it was set last
	if e.clockOff() {
		for _, x := range batch {
			x.m.t.end(errClock) // it may be well again when the keeper looks
		}
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]*entry, 0, len(batch))
	for _, x := range batch {
		switch t := x.m.t; {
		case !t.aliveLocked():
		case x.due > now:
			e.wheel.Add(x.due, x)
			signal(e.wake)
		default:
			t.inflight++
			out = append(out, x)
		}
	}
	return out
}

// leave ends what enter began.
func (e *Engine) leave(batch []*entry, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range batch {
		t := x.m.t
		if t.inflight--; t.over && t.inflight == 0 {
			close(t.quiet)
		}
		if err == nil {
			e.ackLocked(x)
		}
	}
}

// published counts a batch and tells of it.
func (e *Engine) published(lane Lane, ts []engine.Timer, at time.Time) {
	e.count.released[lane].Add(uint64(len(ts)))
	if lane == CatchUp {
		e.mu.Lock()
		e.caught.add(len(ts), e.clock())
		e.mu.Unlock()
	}
	e.cfg.Events.Released(lane, ts, at)
}

// giveUp leaves on-time entries that have become late to the catch-up, and
// returns the others.
func (e *Engine) giveUp(batch []*entry) []*entry {
	late := e.now() - e.cfg.CatchUpAfter.Milliseconds()
	e.mu.Lock()
	defer e.mu.Unlock()
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
func (e *Engine) putOff(x *entry, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x.m.t.over {
		return
	}
	e.wheel.Add(e.now()+d.Milliseconds(), x)
	signal(e.wake)
}
