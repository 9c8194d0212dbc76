package timer

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// writer stores timers in the hot and the cold table.
type writer struct{ *Engine }

// parked is a timer row and its due time. The due time is earlier than FireAt if the row had to be
// stored under a later minute.
type parked struct {
	engine.Timer
	due int64
}

func (w *writer) park(ctx context.Context, ts []engine.Timer) error {
	spread, err := w.cfg.Spread()
	if err != nil {
		return err
	}
	hot, cold := w.splitCold(ts)
	if len(cold) > 0 {
		if err := w.cfg.Cold.Put(ctx, spread, cold); err != nil {
			return err
		}
	}
	return w.putHot(ctx, hot, spread, w.cfg.Store.Put)
}

func (w *writer) parkScheduled(ctx context.Context, ss []engine.Schedule, ts []engine.Timer) error {
	hot, cold := w.splitCold(ts)
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
	return w.putHot(ctx, hot, spread, func(ctx context.Context, spread notify.Spread, ts []engine.Timer) error {
		return w.cfg.Schedules.PutScheduled(ctx, ss, spread, ts)
	})
}

// splitCold splits timers into timers for the hot table and timers for the cold table.
func (w *writer) splitCold(ts []engine.Timer) (hot []parked, cold []engine.Timer) {
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

// putHot stores rows in the hot table. If the minute of a row was closed in the meantime, putHot
// stores the row again under a later minute. It ends when no row is in a closed minute. It calls
// firstWrite for the first write, and Store.Put for later writes.
func (w *writer) putHot(ctx context.Context, ps []parked, spread notify.Spread, firstWrite func(context.Context, notify.Spread, []engine.Timer) error) error {
	if len(ps) == 0 {
		return nil
	}
	// Do not store rows under minutes that this process's own engine has closed.
	moved, kept, err := w.rehome(ctx, ps, spread, w.knownClosed(ps, spread))
	for ps, store := append(kept, moved...), firstWrite; err == nil && len(ps) > 0; ps, store = moved, w.cfg.Store.Put {
		ts := make([]engine.Timer, len(ps))
		for i := range ps {
			ts[i] = ps[i].Timer
		}
		if err = store(ctx, spread, ts); err != nil {
			return err
		}
		w.handOn(ctx, ps, spread)
		// Read the closed minutes after the write. If an owner closes the minute of a row after
		// this read, it scans the minute even later. So its scan finds the row.
		var closed map[uint16]int64
		if closed, err = w.readClosed(ctx, ps, spread); err == nil {
			moved, _, err = w.rehome(ctx, ps, spread, closed)
		}
	}
	return err
}

// rehome moves rows of closed minutes to the current minute: it sets their FireAt to the current
// time. The result moved has these rows, and the result kept has all other rows. rehome does not
// store the rows, only hints for them.
func (w *writer) rehome(ctx context.Context, ps []parked, spread notify.Spread, closed map[uint16]int64) (moved, kept []parked, err error) {
	now := w.cfg.Wall().UnixMilli()
	var hints []engine.Hint
	for _, p := range ps {
		n := engine.ShardOf(p.ID, spread)
		last, ok := closed[n]
		if !ok || p.FireAt/60_000 > last {
			kept = append(kept, p)
			continue
		}
		// Normally the current time is the highest of the three. The value (last+1)*60_000 is
		// higher only if a clock was set back.
		p.FireAt = max(p.FireAt, now, (last+1)*60_000)
		moved = append(moved, p)
		if !p.Head.IsZero() {
			// A cancel or a move may have stored its hint in the partition of the old minute, so
			// store a hint for the new minute too.
			hints = append(hints, engine.Hint{Partition: engine.TimerPartition{Bucket: p.FireAt / 60_000, Shard: n}, Base: p.Head})
		}
	}
	w.counters.rehomed.Add(uint64(len(moved)))
	if len(hints) > 0 && w.cfg.Schedules != nil {
		err = w.cfg.Schedules.Hint(ctx, hints)
	}
	return moved, kept, err
}

// handOn makes sure that rows that are due soon are released on time. A scan may already have read
// past their fire times, so handOn sends these rows to the engine that releases them. If this
// process owns the shard of a row, its engine gets the row. Otherwise the queue gets it. The rows
// are durable already. If a row cannot be sent, it is released when its minute is closed.
func (w *writer) handOn(ctx context.Context, ps []parked, spread notify.Spread) {
	ps = w.loadParked(ps, spread)
	if w.cfg.Queue == nil {
		return
	}
	now := w.cfg.Wall().UnixMilli()
	near := now + w.cfg.leadTime().Milliseconds()
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
		w.counters.nearLost.Add(uint64(len(ms)))
		w.complaints.log10s("cannot queue near timers; they are released when their minutes are closed", err)
		return
	}
	w.counters.nearQueued.Add(uint64(len(ms)))
}

// knownClosed returns the last closed minute of every shard to which one of the rows ps belongs and
// which this process's engine owns.
func (w *writer) knownClosed(ps []parked, spread notify.Spread) map[uint16]int64 {
	closed := map[uint16]int64{}
	for i := range ps {
		n := engine.ShardOf(ps[i].ID, spread)
		if last, ok := w.closedOf(n); ok {
			closed[n] = last
		}
	}
	return closed
}

// readClosed returns the last closed minute of every shard to which one of the rows ps belongs. It
// must be called after the rows were written.
//
// An owner scans a minute only after the store has answered the Advance that closed the minute. If
// the Advance was before this read, Store.Closed shows the closed minute, and the row is stored
// again under a later minute. If the Advance was after this read, the scan is later than the write
// and finds the row.
//
// For rows of past minutes, readClosed reads the state of the shard as the owner does
// (Store.Shard). There are few such rows.
func (w *writer) readClosed(ctx context.Context, ps []parked, spread notify.Spread) (map[uint16]int64, error) {
	now := w.cfg.Wall().UnixMilli()
	closed := w.knownClosed(ps, spread)
	ask := map[uint16]func(context.Context, uint16) (int64, error){}
	exact := func(ctx context.Context, n uint16) (int64, error) {
		st, err := w.cfg.Store.Shard(ctx, n)
		return st.Closed, err
	}
	for i := range ps {
		n := engine.ShardOf(ps[i].ID, spread)
		// If the minute of a row is not over, no engine can have closed it, and the last closed
		// minute that this engine knows is enough. If the minute is over, what this engine knows
		// may be wrong, because another engine may have replaced this engine as the owner.
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
