package timer

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

const (
	dayMs = 86_400_000 // milliseconds of a day
	// promoteEvery is the time between two checks of the cold table. A check moves the rows of each
	// day to the hot table a day before the day begins. It also moves overdue rows, and rows that an
	// earlier check missed.
	promoteEvery = 10 * time.Minute
)

// housekeeper moves cold timers to the hot table before they are due, and deletes old schedules.
type housekeeper struct {
	*Engine

	// overdue lists days whose rows were already overdue when they were moved. The method purge
	// keeps the heads of the timers in these rows until the timers are released. Engine.mu guards
	// it.
	overdue []promoted
}

// promote moves rows from the cold table to the hot table until ctx ends. It does so for the shards
// that this engine owns.
func (k *housekeeper) promote(ctx context.Context) {
	begun := map[int]uint64{} // by shard: term of the last successful check
	tick := time.NewTicker(promoteEvery)
	defer tick.Stop()
	for all := false; ; {
		failed := false
		for n := range k.shards() {
			term, ok := k.termOf(uint16(n))
			// Between the regular checks, check only shards that this engine has just taken over.
			if !ok || !all && begun[n] == term {
				continue
			}
			if err := k.promoteShard(ctx, uint16(n)); err != nil {
				k.complaints.report("cannot move timers from the cold table to the hot table", err)
				failed = true
				continue
			}
			begun[n] = term
		}
		var again <-chan time.Time
		if failed {
			again = time.After(k.cfg.Poll)
		} else {
			all = false
		}
		select {
		case <-tick.C:
			all = true
		case <-again:
		case <-k.shardGained:
		case <-ctx.Done():
			return
		}
	}
}

// promoteShard moves the rows of every day up to tomorrow. If a move is interrupted, the whole day
// is moved again later; storing a row twice changes nothing. promoteShard drops a day when all its
// rows are in the hot table. No writer adds rows to such a day, because writers use the cold table
// only for timers that are due more than ColdAfter from now.
func (k *housekeeper) promoteShard(ctx context.Context, n uint16) error {
	days, err := k.cfg.Cold.Buckets(ctx, n, 0, k.now()/dayMs+1)
	if err != nil {
		return err
	}
	for _, d := range days {
		var cursor engine.TimerCursor
		for size := firstPage; ; {
			rows, err := k.cfg.Cold.Scan(ctx, engine.TimerPartition{Bucket: d, Shard: n}, cursor, math.MaxInt64, size)
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				break
			}
			ps := make([]parked, len(rows))
			bytes := 0
			for i := range rows {
				ps[i] = parked{rows[i], rows[i].FireAt}
				bytes += len(rows[i].Payload)
			}
			if _, owned := k.termOf(n); !owned {
				return nil // the next owner begins again
			}
			// Store an overdue row under the current minute, so that its timer is released at once.
			// Never store it under the minute of its fire time. There a scan could find it long
			// after its head was purged, and would release a cancelled timer.
			spread, err := k.cfg.Spread()
			if err != nil {
				return err
			}
			moved, kept, err := k.writer.rehome(ctx, ps, spread, map[uint16]int64{n: k.now()/60_000 - 1})
			if err == nil {
				err = k.writer.putHot(ctx, append(kept, moved...), spread, k.writer.cfg.Store.Put)
			}
			if err != nil {
				return err
			}
			k.counters.promoted.Add(uint64(len(rows)))
			cursor, size = cursorAfter(rows), k.cfg.nextPage(len(rows), bytes)
		}
		if _, owned := k.termOf(n); !owned {
			return nil
		}
		k.notePromoted(n, d)
		if err := k.cfg.Cold.Drop(ctx, engine.TimerPartition{Bucket: d, Shard: n}); err != nil {
			return err
		}
	}
	return nil
}

// promoted is a day whose rows were overdue when they were moved to the hot table. Each row was
// stored under the minute in which it was moved, long after its fire time. The field minute is the
// last of these minutes.
type promoted struct {
	shard       uint16
	day, minute int64
}

func (k *housekeeper) notePromoted(n uint16, d int64) {
	now := k.now()
	if d > now/dayMs { // none of its rows is due
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overdue = append(k.overdue, promoted{n, d, now/60_000 + 1})
}

// overdueBefore returns the fire time before which all overdue rows of a shard are released, but
// never a later time than the parameter limit. The parameter watermark is the current watermark of
// the shard. overdueBefore also removes a day from the list k.overdue when all rows of the day are
// released.
func (k *housekeeper) overdueBefore(n uint16, watermark, limit int64) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overdue = slices.DeleteFunc(k.overdue, func(p promoted) bool {
		if p.shard == n && p.minute > watermark {
			limit = min(limit, p.day*dayMs)
		}
		return p.shard == n && p.minute <= watermark
	})
	return limit
}
