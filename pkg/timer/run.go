package timer

import (
	"context"
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

func (e *Engine) takeOver(ctx context.Context) error {
	for _, s := range e.shards {
		err := e.retry(ctx, "take over a shard", func() error {
			st, err := e.cfg.Store.Shard(ctx, s.n)
			if err == nil {
				st, err = e.cfg.Store.TakeOver(ctx, s.n, st.Term, e.cfg.Owner)
			}
			if err == nil {
				e.mu.Lock()
				s.state, s.owned = st, true
				s.loaded = st.Watermark * 60_000
				s.scanned = s.loaded
				e.mu.Unlock()
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) sweep(ctx context.Context) error {
	tick := time.NewTicker(e.cfg.Poll)
	defer tick.Stop()
	for {
		for _, s := range e.shards {
			if err := e.load(ctx, s); err != nil && ctx.Err() == nil {
				e.cfg.Logger.Error("cannot load timers", "shard", s.n, "err", err)
				break
			}
			if err := e.close(ctx, s); err != nil && ctx.Err() == nil {
				if notify.KindOf(err) == notify.KindConflict {
					return err // another owner has taken over
				}
				e.cfg.Logger.Error("cannot close a minute", "shard", s.n, "err", err)
				break
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// load brings every row due up to now + Lookahead into the wheel. loaded moves
// before the scan: a row that becomes durable too late for the scan finds it
// moved and goes into the wheel by admit.
func (e *Engine) load(ctx context.Context, s *shard) error {
	until := time.Now().Add(e.cfg.Lookahead).UnixMilli()
	e.mu.Lock()
	s.loaded = max(s.loaded, until)
	e.mu.Unlock()
	minutes, err := e.cfg.Store.Minutes(ctx, s.n, s.scanned/60_000, until/60_000)
	if err != nil {
		return err
	}
	for _, at := range minutes {
		if at <= s.state.Watermark {
			continue
		}
		if err := e.scan(ctx, s, at, engine.TimerCursor{FireAt: s.scanned}, until); err != nil {
			return err
		}
	}
	s.scanned = until - 1 // rows of the last millisecond are met twice, not missed
	return nil
}

// scan loads the rows of a minute behind the cursor, up to until.
func (e *Engine) scan(ctx context.Context, s *shard, at int64, cursor engine.TimerCursor, until int64) error {
	for {
		rows, err := e.cfg.Store.Scan(ctx, engine.TimerPartition{Minute: at, Shard: s.n}, cursor, until, e.cfg.Batch)
		if err != nil || len(rows) == 0 {
			return err
		}
		e.mu.Lock()
		for i := range rows {
			e.loadLocked(s, &rows[i])
		}
		e.mu.Unlock()
		if len(rows) < e.cfg.Batch {
			return nil
		}
		last := rows[len(rows)-1]
		cursor = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
}

// close ends the minutes that lie Grace behind now.
func (e *Engine) close(ctx context.Context, s *shard) error {
	target := time.Now().Add(-e.cfg.Grace).UnixMilli()/60_000 - 1
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
	minutes, err := e.cfg.Store.Minutes(ctx, s.n, s.state.Watermark+1, s.state.Closed)
	if err != nil {
		return err
	}
	for _, at := range minutes {
		// No row can come any more: what this finds is all there is.
		if err := e.scan(ctx, s, at, engine.TimerCursor{}, (at+1)*60_000-1); err != nil {
			return err
		}
		if !e.quiet(s, at) {
			return nil // looked at again with the next poll
		}
		if err := e.cfg.Store.Drop(ctx, engine.TimerPartition{Minute: at, Shard: s.n}); err != nil {
			return err
		}
	}
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
		for len(batch) > 0 {
			n := min(len(batch), e.cfg.Batch)
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

func (e *Engine) publish(ctx context.Context, due <-chan []*entry) error {
	for {
		var batch []*entry
		select {
		case batch = <-due:
		case <-ctx.Done():
			return nil
		}
		ts := make([]engine.Timer, len(batch))
		late := time.Duration(0)
		for i, x := range batch {
			ts[i] = x.t
			late = max(late, time.Since(time.UnixMilli(x.t.FireAt)))
		}
		if err := e.retry(ctx, "publish due timers", func() error { return e.cfg.Publish(ctx, ts) }); err != nil {
			return nil
		}
		fault.Hit("timers-published")
		e.mu.Lock()
		for _, x := range batch {
			x.s.minute(x.min).open--
		}
		e.pending -= len(batch)
		e.mu.Unlock()
		e.cfg.Released(len(batch), late)
	}
}

func (e *Engine) retry(ctx context.Context, what string, f func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := f()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if notify.KindOf(err) == notify.KindConflict {
			return err
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
