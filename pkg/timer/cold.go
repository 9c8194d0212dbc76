package timer

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

const (
	day = 86_400_000 // ms
	// A day is promoted a day before it begins, and looked for so often: rows
	// that were missed then, or are overdue already, come with the next look.
	promoteEvery = 10 * time.Minute
)

// housekeeper moves cold timers into the hot table before they are due, and forgets
// schedules that are over.
type housekeeper struct {
	*Engine

	overdue []promoted // what the purge waits for; guarded by Engine.mu
}

// promote moves the rows of the shards this engine owns from the cold table to
// the hot one, until ctx ends.
func (k *housekeeper) promote(ctx context.Context) {
	begun := map[int]uint64{} // by shard: term of the last look at it
	tick := time.NewTicker(promoteEvery)
	defer tick.Stop()
	for all := false; ; {
		failed := false
		for n := range k.shards() {
			term, ok := k.termOf(uint16(n))
			// A shard that has just been taken over is looked at without delay.
			if !ok || !all && begun[n] == term {
				continue
			}
			if err := k.promoteShard(ctx, uint16(n)); err != nil {
				k.troubl.say("cannot promote cold timers", err)
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
		case <-k.gained:
		case <-ctx.Done():
			return
		}
	}
}

// promoteShard moves every day up to tomorrow. Storing a row twice changes
// nothing, so a day that was cut short is begun again; it is dropped once all of
// it is in the hot table. Nobody writes to it any more: writers use the cold
// table for what is ColdAfter ahead.
func (k *housekeeper) promoteShard(ctx context.Context, n uint16) error {
	days, err := k.cfg.Cold.Buckets(ctx, n, 0, k.now()/day+1)
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
			// What is overdue is put under the minute of now, and released at once. It
			// never stands under its own minute: a scan might find it there long after
			// its head was purged, and release what was cancelled.
			spread, err := k.cfg.Spread()
			if err != nil {
				return err
			}
			moved, kept, err := k.writer.move(ctx, ps, spread, map[uint16]int64{n: k.now()/60_000 - 1})
			if err == nil {
				err = k.writer.put(ctx, append(kept, moved...), spread, k.writer.cfg.Store.Put)
			}
			if err != nil {
				return err
			}
			k.count.promoted.Add(uint64(len(rows)))
			cursor, size = after(rows), k.cfg.nextPage(len(rows), bytes)
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

// promoted is a day whose rows were overdue when they came into the hot table:
// they stand under minutes up to this one, long behind their fire time.
type promoted struct {
	shard       uint16
	day, minute int64
}

func (k *housekeeper) notePromoted(n uint16, d int64) {
	now := k.now()
	if d > now/day { // none of it is due
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overdue = append(k.overdue, promoted{n, d, now/60_000 + 1})
}

// overdueBefore returns before, or the first day of a shard whose rows may not be
// released yet when its watermark is this, and forgets the others.
func (k *housekeeper) overdueBefore(n uint16, watermark, before int64) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.overdue = slices.DeleteFunc(k.overdue, func(p promoted) bool {
		if p.shard == n && p.minute > watermark {
			before = min(before, p.day*day)
		}
		return p.shard == n && p.minute <= watermark
	})
	return before
}
