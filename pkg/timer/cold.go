package timer

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

const (
	dayMs = 86_400_000 // ms
	// A day is promoted a day before it begins. The cold table is checked this often: rows that one
	// check missed, or that are overdue already, come with the next.
	promoteEvery = 10 * time.Minute
)

// housekeeper moves cold timers into the hot table before they are due, and deletes schedules that
// are over.
type housekeeper struct {
	*Engine

	overdue []promoted // days for which the purge waits; guarded by Engine.mu
}

// promote moves the rows of the shards that this engine owns from the cold table to the hot one,
// until ctx ends.
func (k *housekeeper) promote(ctx context.Context) {
	begun := map[int]uint64{} // by shard: term of the last successful check
	tick := time.NewTicker(promoteEvery)
	defer tick.Stop()
	for all := false; ; {
		failed := false
		for n := range k.shards() {
			term, ok := k.termOf(uint16(n))
			// A shard that was just taken over is checked without delay.
			if !ok || !all && begun[n] == term {
				continue
			}
			if err := k.promoteShard(ctx, uint16(n)); err != nil {
				k.complaints.report("cannot promote cold timers", err)
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

// promoteShard moves every day up to tomorrow. Storing a row twice changes nothing, so a day that
// was interrupted is done again. A day is dropped once all of it is in the hot table. No writer
// adds to it any more, because writers use the cold table only for timers more than ColdAfter
// ahead.
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
			// An overdue row is put under the current minute and released at once. It must never be
			// put under its own minute: a scan might find it there long after its head was purged,
			// and release a cancelled timer.
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

// promoted is a day whose rows were overdue when they came into the hot table. They are stored
// under minutes up to minute, long after their fire time.
type promoted struct {
	shard       uint16
	day, minute int64
}

func (k *housekeeper) notePromoted(n uint16, d int64) {
	now := k.now()
	if d > now/dayMs { // no row of it is due
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overdue = append(k.overdue, promoted{n, d, now/60_000 + 1})
}

// overdueBefore returns before, or the first day of a shard whose rows may not be released yet at
// this watermark. It forgets the days that are released.
func (k *housekeeper) overdueBefore(n uint16, watermark, before int64) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overdue = slices.DeleteFunc(k.overdue, func(p promoted) bool {
		if p.shard == n && p.minute > watermark {
			before = min(before, p.day*dayMs)
		}
		return p.shard == n && p.minute <= watermark
	})
	return before
}
