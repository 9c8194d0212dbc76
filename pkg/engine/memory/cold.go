package memory

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
)

// ColdTimers returns the contract of timers far ahead.
func (s *Store) ColdTimers() engine.ColdTimers { return coldTimers{s} }

type coldTimers struct{ *Store }

const dayMs = 86_400_000

func (k timerKey) day() int64 { return k.fireAt / dayMs }

func (s coldTimers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	if err := check(ctx); err != nil {
		return err
	}
	return s.put(s.cold, shards, ts)
}

func (s coldTimers) Scan(ctx context.Context, shard uint16, day int64, behind engine.TimerCursor, max int) ([]engine.Timer, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	out := s.sorted(s.cold, func(k timerKey) bool {
		return k.shard == shard && k.day() == day && k.behind(behind)
	})
	return out[:clamp(len(out), max)], nil
}

func (s coldTimers) Outline(ctx context.Context, shard uint16, day int64, behind engine.TimerCursor, max int) ([]engine.Timer, error) {
	return s.Scan(ctx, shard, day, behind, max)
}

func (s coldTimers) Days(ctx context.Context, shard uint16, to int64) ([]int64, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int64
	for k := range s.cold {
		if k.shard == shard && k.day() <= to {
			out = append(out, k.day())
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (s coldTimers) Drop(ctx context.Context, shard uint16, day int64) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.cold {
		if k.shard == shard && k.day() == day {
			delete(s.cold, k)
		}
	}
	return nil
}

func (s coldTimers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return s.pending(ctx, s.cold, fn)
}
