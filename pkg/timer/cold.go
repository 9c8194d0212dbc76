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

// promote moves the rows of the shards this engine owns from the cold table to
// the hot one, until ctx ends.
func (e *Engine) promote(ctx context.Context) {
	begun := make([]uint64, e.cfg.Shards) // term of the last look at a shard
	tick := time.NewTicker(promoteEvery)
	defer tick.Stop()
	for all := false; ; {
		failed := false
		for n := range e.cfg.Shards {
			term, ok := e.termOf(uint16(n))
			// A shard that has just been taken over is looked at without delay.
			if !ok || !all && begun[n] == term {
				continue
			}
			if err := e.promoteShard(ctx, uint16(n)); err != nil {
				e.troubl.say("cannot promote cold timers", err)
				failed = true
				continue
			}
			begun[n] = term
		}
		var again <-chan time.Time
		if failed {
			again = time.After(e.cfg.Poll)
		} else {
			all = false
		}
		select {
		case <-tick.C:
			all = true
		case <-again:
		case <-e.gained:
		case <-ctx.Done():
			return
		}
	}
}

func (e *Engine) termOf(n uint16) (term uint64, owned bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenures[n]
	if t == nil || !t.aliveLocked() {
		return 0, false
	}
	return t.state.Term, true
}

// promoteShard moves every day up to tomorrow. Storing a row twice changes
// nothing, so a day that was cut short is begun again; it is dropped once all of
// it is in the hot table. Nobody writes to it any more: writers use the cold
// table for what is ColdAfter ahead.
func (e *Engine) promoteShard(ctx context.Context, n uint16) error {
	days, err := e.cfg.Cold.Buckets(ctx, n, 0, e.now()/day+1)
	if err != nil {
		return err
	}
	for _, d := range days {
		var cursor engine.TimerCursor
		for size := firstPage; ; {
			rows, err := e.cfg.Cold.Scan(ctx, engine.TimerPartition{Bucket: d, Shard: n}, cursor, math.MaxInt64, size)
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
			if _, owned := e.termOf(n); !owned {
				return nil // the next owner begins again
			}
			// As if they were parked now: what is overdue is put under the minute
			// of now, and released at once.
			if err := e.writer.put(ctx, ps, e.writer.store); err != nil {
				return err
			}
			e.count.promoted.Add(uint64(len(rows)))
			cursor, size = after(rows), e.nextPage(len(rows), bytes)
		}
		if _, owned := e.termOf(n); !owned {
			return nil
		}
		e.notePromoted(n, d)
		if err := e.cfg.Cold.Drop(ctx, engine.TimerPartition{Bucket: d, Shard: n}); err != nil {
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

func (e *Engine) notePromoted(n uint16, d int64) {
	now := e.now()
	if d > now/day { // none of it is due
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.overdue = append(e.overdue, promoted{n, d, now/60_000 + 1})
}

// overdueBefore returns before, or the first day of a shard whose rows may not be
// released yet when its watermark is this, and forgets the others.
func (e *Engine) overdueBefore(n uint16, watermark, before int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.overdue = slices.DeleteFunc(e.overdue, func(p promoted) bool {
		if p.shard == n && p.minute > watermark {
			before = min(before, p.day*day)
		}
		return p.shard == n && p.minute <= watermark
	})
	return before
}
