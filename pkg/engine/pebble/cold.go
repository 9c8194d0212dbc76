package pebble

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
)

// ColdTimers returns the contract of timers far ahead: the rows of Timers in a
// table of their own.
func (s *Store) ColdTimers() engine.ColdTimers { return coldTimers{s} }

type coldTimers struct{ s *Store }

const dayMs = engine.DayMs

func (t coldTimers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	return t.s.putTimers(ctx, tCold, shards, ts)
}

func (t coldTimers) Scan(ctx context.Context, shard uint16, day int64, behind engine.TimerCursor, max int) ([]engine.Timer, error) {
	return t.s.scanTimers(ctx, period(tCold, shard, day*dayMs, (day+1)*dayMs), behind, math.MaxInt64, max)
}

func (t coldTimers) Outline(ctx context.Context, shard uint16, day int64, behind engine.TimerCursor, max int) ([]engine.Timer, error) {
	return t.Scan(ctx, shard, day, behind, max)
}

func (t coldTimers) Days(ctx context.Context, shard uint16, to int64) ([]int64, error) {
	return t.s.periods(ctx, tCold, shard, 0, to, dayMs)
}

func (t coldTimers) Drop(ctx context.Context, shard uint16, day int64) error {
	r := period(tCold, shard, day*dayMs, (day+1)*dayMs)
	return t.s.commit.write(ctx, func(tx tx) { tx.deleteRange(r.From, r.To) }, nil)
}

func (t coldTimers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return t.s.eachTimer(ctx, tCold, fn)
}
