package timer

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/fault"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Run takes over the shards, and loads, releases and closes until ctx ends. A
// store or a log that is away is asked again; nothing is lost by it.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.takeOver(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	due := make(chan []*entry, 64)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.sweep(gctx) })
	g.Go(func() error { return e.release(gctx, due) })
	for range 4 {
		g.Go(func() error { return e.publish(gctx, due) })
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// takeOver makes this engine the owner of all shards. Losing one to somebody
// else at that moment is an error: two processes run as the owner.
func (e *Engine) takeOver(ctx context.Context) error {
	for _, s := range e.shards {
		var lost error
		err := e.retry(ctx, "take over a shard", func() error {
			st, err := e.cfg.Store.Shard(ctx, s.n)
			if err == nil {
				st, err = e.cfg.Store.TakeOver(ctx, s.n, st.Term, e.cfg.Owner)
			}
			if notify.KindOf(err) == notify.KindConflict {
				lost = err
				return nil
			}
			if err == nil {
				e.mu.Lock()
				s.state, s.owned, s.fresh = st, true, true
				s.loaded = (st.Watermark + 1) * 60_000
				s.scanned = s.loaded
				e.mu.Unlock()
			}
			return err
		})
		if err = cmp.Or(err, lost); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) sweep(ctx context.Context) error {
	tick := time.NewTicker(e.cfg.Poll)
	defer tick.Stop()
	for {
		var failed error
		for _, s := range e.shards { // one that fails keeps no other from its turn
			err := e.load(ctx, s)
			if err == nil {
				err = e.close(ctx, s)
			}
			if notify.KindOf(err) == notify.KindConflict {
				return err // another owner has taken over
			}
			failed = cmp.Or(failed, err)
		}
		if failed != nil && ctx.Err() == nil {
			e.cfg.Logger.Error("cannot load or close timers; trying again", "err", failed)
		}
		select {
		case <-tick.C:
		case <-e.room:
		case <-ctx.Done():
			return nil
		}
	}
}

// load brings every row due up to now + Lookahead into the wheel, or as many as
// there is room for. loaded moves before the scan: a row that becomes durable
// too late for the scan finds it moved and goes into the wheel by admit.
func (e *Engine) load(ctx context.Context, s *shard) error {
	until := time.Now().Add(e.cfg.Lookahead).UnixMilli()
	e.mu.Lock()
	s.loaded = max(s.loaded, until)
	from := min(s.scanned, s.missed)
	s.scanned, s.missed = from, math.MaxInt64
	e.mu.Unlock()
	minutes, err := e.cfg.Store.Minutes(ctx, s.n, from/60_000, until/60_000)
	if err != nil {
		return err
	}
	for _, at := range minutes {
		if at <= s.state.Watermark {
			continue
		}
		reached, err := e.scan(ctx, s, at, engine.TimerCursor{FireAt: from}, until, pauseWhenFull)
		if err != nil {
			return err
		}
		if reached < until {
			s.scanned = max(from, reached) // goes on there when there is room
			return nil
		}
	}
	s.scanned = max(from, until) // rows of the last millisecond are met twice, not missed
	return nil
}

type whenFull uint8

const (
	pauseWhenFull whenFull = iota
	loadAll
)

// scan loads the rows of a minute from the cursor up to until, and returns how
// far it came: less than until when the shard is full.
func (e *Engine) scan(ctx context.Context, s *shard, at int64, cursor engine.TimerCursor, until int64, full whenFull) (int64, error) {
	for {
		e.mu.Lock()
		stop := s.full && full == pauseWhenFull
		e.mu.Unlock()
		if stop {
			return min(cursor.FireAt, until-1), nil
		}
		page := s.page
		rows, err := e.cfg.Store.Scan(ctx, engine.TimerPartition{Minute: at, Shard: s.n}, cursor, until, page)
		if err != nil {
			return 0, err
		}
		if len(rows) == 0 {
			return until, nil
		}
		size := 0
		e.mu.Lock()
		for i := range rows {
			size += len(rows[i].Payload)
			e.loadLocked(s, &rows[i])
		}
		e.mu.Unlock()
		s.page = min(max(e.cfg.BatchSize*len(rows)/(size+1), 8), e.cfg.Batch) // chunks are large, singles small
		if len(rows) < page {
			return until, nil
		}
		last := rows[len(rows)-1]
		cursor = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
}

// close ends the minutes that lie Grace behind now and behind the load cursor.
func (e *Engine) close(ctx context.Context, s *shard) error {
	e.mu.Lock()
	behind := min(s.scanned, s.missed)
	e.mu.Unlock()
	target := min(time.Now().Add(-e.cfg.Grace).UnixMilli(), behind)/60_000 - 1
	if target > s.state.Closed {
		next := s.state
		next.Closed = target
		if err := e.cfg.Store.Advance(ctx, s.n, next); err != nil {
			return err
		}
		e.mu.Lock()
		s.state.Closed = target
		e.mu.Unlock()
	}
	from := s.state.Watermark + 1
	if s.fresh {
		from = 0 // a writer that died behind a close may have left rows there
	}
	minutes, err := e.cfg.Store.Minutes(ctx, s.n, from, s.state.Closed)
	if err != nil {
		return err
	}
	for _, at := range minutes {
		// No row can come any more: what this finds is all there is.
		if _, err := e.scan(ctx, s, at, engine.TimerCursor{}, (at+1)*60_000-1, loadAll); err != nil {
			return err
		}
		if !e.quiet(s, at) {
			return nil // looked at again with the next poll
		}
		if err := e.cfg.Store.Drop(ctx, engine.TimerPartition{Minute: at, Shard: s.n}); err != nil {
			return err
		}
	}
	s.fresh = false
	if s.state.Watermark == s.state.Closed {
		return nil
	}
	next := s.state
	next.Watermark = s.state.Closed
	if err := e.cfg.Store.Advance(ctx, s.n, next); err != nil {
		return err
	}
	e.mu.Lock()
	s.state.Watermark = next.Watermark
	for at := range s.minutes {
		if at <= next.Watermark {
			delete(s.minutes, at)
		}
	}
	e.mu.Unlock()
	return nil
}

// quiet reports whether everything loaded of a minute is acknowledged.
func (e *Engine) quiet(s *shard, at int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.minute(at).open == 0
}

// release lets timers out of the wheel at their time, in due order.
func (e *Engine) release(ctx context.Context, due chan<- []*entry) error {
	for {
		var batch []*entry
		e.mu.Lock()
		e.wheel.Advance(time.Now(), func(_ time.Time, x *entry) { batch = append(batch, x) })
		next, any := e.wheel.Next()
		e.mu.Unlock()
		// Rows loaded late come in the order of their shards.
		slices.SortStableFunc(batch, func(a, b *entry) int { return cmp.Compare(a.t.FireAt, b.t.FireAt) })
		for len(batch) > 0 {
			n := e.cut(batch)
			select {
			case due <- batch[:n:n]:
				batch = batch[n:]
			case <-ctx.Done():
				return nil
			}
		}
		var after <-chan time.Time
		var t *time.Timer
		if any {
			t = time.NewTimer(max(time.Until(next), time.Millisecond))
			after = t.C
		}
		select {
		case <-after:
		case <-e.wake:
		case <-ctx.Done():
		}
		if t != nil {
			t.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
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

func (e *Engine) publish(ctx context.Context, due <-chan []*entry) error {
	for {
		select {
		case batch := <-due:
			e.hand(ctx, batch)
		case <-ctx.Done():
			return nil
		}
	}
}

// hand publishes a batch. One that is refused for what is in it is halved, so
// that a timer nobody takes holds no other up; that one is tried every minute.
func (e *Engine) hand(ctx context.Context, batch []*entry) {
	ts := make([]engine.Timer, len(batch))
	late := time.Duration(0)
	for i, x := range batch {
		ts[i] = x.t
		late = max(late, time.Since(time.UnixMilli(x.t.FireAt)))
	}
	var refused error
	err := e.retry(ctx, "publish due timers", func() error {
		err := e.cfg.Publish(ctx, ts)
		if k := notify.KindOf(err); err != nil && (k == notify.KindTooLarge || k == notify.KindInvalid) {
			refused = err
			return nil
		}
		return err
	})
	switch {
	case err != nil:
	case refused == nil:
		fault.Hit("timers-published")
		e.mu.Lock()
		for _, x := range batch {
			e.ackLocked(x)
		}
		e.mu.Unlock()
		e.cfg.Released(len(batch), late)
	case len(batch) > 1:
		e.hand(ctx, batch[:len(batch)/2])
		e.hand(ctx, batch[len(batch)/2:])
	default:
		e.cfg.Logger.Error("a timer is refused; trying again in a minute", "target", ts[0].Target, "bytes", len(ts[0].Payload), "err", refused)
		e.mu.Lock()
		e.wheel.Add(time.Now().Add(time.Minute), batch[0])
		e.mu.Unlock()
		e.rouse()
	}
}

// retry calls f until it succeeds or ctx ends.
func (e *Engine) retry(ctx context.Context, what string, f func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.cfg.Logger.Error("cannot "+what+"; trying again", "err", err)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}
