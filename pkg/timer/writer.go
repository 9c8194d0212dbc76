package timer

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// writer stores timers.
type writer struct{ *Engine }

// parked is a timer as it is stored, and when it is due: earlier than its key,
// if that had to be moved.
type parked struct {
	engine.Timer
	due int64
}

func (w *writer) park(ctx context.Context, ts []engine.Timer) error {
	spread, err := w.cfg.Spread()
	if err != nil {
		return err
	}
	hot, cold := w.split(ts)
	if len(cold) > 0 {
		if err := w.cfg.Cold.Put(ctx, spread, cold); err != nil {
			return err
		}
	}
	return w.put(ctx, hot, spread, w.cfg.Store.Put)
}

func (w *writer) parkScheduled(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	hot, cold := w.split(ts)
	if len(cold) > 0 || len(hot) == 0 {
		if err := w.cfg.Schedules.Put(ctx, ss); err != nil {
			return err
		}
		return w.park(ctx, ts)
	}
	spread, err := w.cfg.Spread()
	if err != nil {
		return err
	}
	return w.put(ctx, hot, spread, func(ctx context.Context, spread notify.Spread, ts []engine.Timer) error {
		return w.cfg.Schedules.PutScheduled(ctx, ss, spread, ts)
	})
}

// split parts timers into those of the hot table and those of the cold one.
func (w *writer) split(ts []engine.Timer) (hot []parked, cold []engine.Timer) {
	far := w.cfg.Wall().Add(w.cfg.ColdAfter).UnixMilli()
	hot = make([]parked, 0, len(ts))
	for i := range ts {
		if w.cfg.Cold != nil && ts[i].FireAt > far {
			cold = append(cold, ts[i])
		} else {
			hot = append(hot, parked{ts[i], ts[i].FireAt})
		}
	}
	return hot, cold
}

// put stores rows of the hot table until each is in a minute that is not closed.
// first is what stores them the first time.
func (w *writer) put(ctx context.Context, ps []parked, spread notify.Spread, first func(context.Context, notify.Spread, []engine.Timer) error) error {
	if len(ps) == 0 {
		return nil
	}
	// What the engine of this process has closed itself need not be tried.
	moved, kept, err := w.move(ctx, ps, spread, w.known(ps, spread))
	for ps, store := append(kept, moved...), first; err == nil && len(ps) > 0; ps, store = moved, w.cfg.Store.Put {
		ts := make([]engine.Timer, len(ps))
		for i := range ps {
			ts[i] = ps[i].Timer
		}
		if err = store(ctx, spread, ts); err != nil {
			return err
		}
		w.handOn(ctx, ps, spread)
		// Read after the write: whoever closes a minute later than this scans it
		// after that, and finds the row.
		var closed map[uint16]int64
		if closed, err = w.closed(ctx, ps, spread); err == nil {
			moved, _, err = w.move(ctx, ps, spread, closed)
		}
	}
	return err
}

// move puts rows that lie in closed minutes under the minute and key time of
// now, and returns the others as well.
func (w *writer) move(ctx context.Context, ps []parked, spread notify.Spread, closed map[uint16]int64) (moved, kept []parked, err error) {
	now := w.cfg.Wall().UnixMilli()
	var hints []engine.Hint
	for _, p := range ps {
		n := engine.ShardOf(p.ID, spread)
		last, ok := closed[n]
		if !ok || p.FireAt/60_000 > last {
			kept = append(kept, p)
			continue
		}
		// The third term counts when a clock was set back.
		p.FireAt = max(p.FireAt, now, (last+1)*60_000)
		moved = append(moved, p)
		if !p.Head.IsZero() {
			// Who touched the schedule left the hint where the row should be.
			hints = append(hints, engine.Hint{Partition: engine.TimerPartition{Bucket: p.FireAt / 60_000, Shard: n}, Base: p.Head})
		}
	}
	w.count.rehomed.Add(uint64(len(moved)))
	if len(hints) > 0 && w.cfg.Schedules != nil {
		err = w.cfg.Schedules.Hint(ctx, hints)
	}
	return moved, kept, err
}

// handOn gives rows that a scan may have passed to who releases them: the engine
// of this process if the shard is its own, else the queue. The rows are durable:
// one that cannot be handed on is released when its minute is closed.
func (w *writer) handOn(ctx context.Context, ps []parked, spread notify.Spread) {
	ps = w.admit(ps, spread)
	if w.cfg.Queue == nil {
		return
	}
	now := w.cfg.Wall().UnixMilli()
	near := now + w.cfg.lead().Milliseconds()
	var ms []engine.Message
	for i := range ps {
		if ps[i].due < near || ps[i].due < ps[i].FireAt {
			ms = append(ms, nearMessage(&ps[i], now))
		}
	}
	if len(ms) == 0 {
		return
	}
	if err := w.cfg.Queue.Enqueue(ctx, ms); err != nil {
		w.count.nearLost.Add(uint64(len(ms)))
		w.troubl.say("cannot hand near timers on; they come when their minutes are closed", err)
		return
	}
	w.count.nearQueued.Add(uint64(len(ms)))
}

// known returns the last closed minutes of shards this process's engine owns.
func (w *writer) known(ps []parked, spread notify.Spread) map[uint16]int64 {
	closed := map[uint16]int64{}
	for i := range ps {
		n := engine.ShardOf(ps[i].ID, spread)
		if last, ok := w.closedOf(n); ok {
			closed[n] = last
		}
	}
	return closed
}

// closed returns the last closed minute of every shard of ps. It is called behind
// the write of ps: an owner scans a minute only once the Advance that closes it was
// answered. If that was before this look, Store.Closed tells, and the row is written
// elsewhere; if not, the scan comes behind the row's write, and finds it. Rows whose
// minute is over are few, and are asked about as the owner would (Store.Shard).
func (w *writer) closed(ctx context.Context, ps []parked, spread notify.Spread) (map[uint16]int64, error) {
	now := w.cfg.Wall().UnixMilli()
	closed := w.known(ps, spread)
	ask := map[uint16]func(context.Context, uint16) (int64, error){}
	exact := func(ctx context.Context, n uint16) (int64, error) {
		st, err := w.cfg.Store.Shard(ctx, n)
		return st.Closed, err
	}
	for i := range ps {
		n := engine.ShardOf(ps[i].ID, spread)
		// The engine's word counts for minutes that nobody can have closed yet:
		// of others an owner that has been replaced may not know.
		over := ps[i].FireAt/60_000 < now/60_000
		if _, ok := closed[n]; over {
			ask[n] = exact
		} else if !ok && ask[n] == nil {
			ask[n] = w.cfg.Store.Closed
		}
	}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(8)
	for n, read := range ask {
		g.Go(func() error {
			last, err := read(ctx, n)
			if err == nil {
				mu.Lock()
				closed[n] = last
				mu.Unlock()
			}
			return err
		})
	}
	return closed, g.Wait()
}
