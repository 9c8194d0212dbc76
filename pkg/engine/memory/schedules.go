package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Schedules returns the contract of scheduled requests.
func (s *Store) Schedules() engine.Schedules { return schedules{s} }

type schedules struct{ *Store }

func badSchedule() error {
	return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head have a base")
}

func (s schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	if err := check(ctx); err != nil {
		return err
	}
	if slices.ContainsFunc(ss, func(x engine.Schedule) bool { return x.Base.IsZero() }) {
		return badSchedule()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range ss {
		if _, ok := s.scheduled[x.Base]; !ok {
			s.scheduled[x.Base] = x
		}
	}
	return nil
}

func (s schedules) Get(ctx context.Context, base notify.Base) (engine.Schedule, bool, error) {
	if err := check(ctx); err != nil {
		return engine.Schedule{}, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.scheduled[base]
	return x, ok, nil
}

func compareBases(a, b notify.Base) int { return bytes.Compare(a[:], b[:]) }

func (s schedules) List(ctx context.Context, caller string, behind notify.Base, max int) ([]engine.Schedule, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []engine.Schedule
	for _, x := range s.scheduled {
		if (caller == "" || x.Caller == caller) && (behind.IsZero() || compareBases(x.Base, behind) < 0) {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b engine.Schedule) int { return compareBases(b.Base, a.Base) })
	return out[:clamp(len(out), max)], nil
}

func (s schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	return s.Contracts.Hint(ctx, hs)
}

func (s schedules) Hints(ctx context.Context, p engine.TimerPartition) ([]notify.Base, error) {
	return s.Contracts.Hints(ctx, p)
}

// PutScheduled is Schedules.Put and Timers.Put, all or none.
func (s *Store) PutScheduled(ctx context.Context, ss []engine.Schedule, shards int, ts []engine.Timer) error {
	if slices.ContainsFunc(ss, func(x engine.Schedule) bool { return x.Base.IsZero() }) {
		return badSchedule()
	}
	if err := s.Timers().Put(ctx, shards, ts); err != nil {
		return err
	}
	return s.Schedules().Put(context.WithoutCancel(ctx), ss)
}

func (s schedules) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	if err := check(ctx); err != nil {
		return engine.ScheduleHead{}, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.heads[base]
	return h, ok, nil
}

func (s schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	if err := check(ctx); err != nil {
		return engine.ScheduleHead{}, false, err
	}
	if h.Base.IsZero() {
		return engine.ScheduleHead{}, false, badSchedule()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if stored := s.heads[h.Base]; stored.Version != old {
		return stored, false, nil
	}
	h.Version = old + 1
	s.heads[h.Base] = h
	return h, true, nil
}

// lastFire is the last known fire time of a schedule.
func (s schedules) lastFire(x *engine.Schedule) int64 {
	if h := s.heads[x.Base]; h.FireAt != 0 {
		return h.FireAt
	}
	return x.FireAt
}

func (s schedules) Purge(ctx context.Context, before int64, max int) (int, error) {
	if err := check(ctx); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []engine.Schedule
	for _, x := range s.scheduled {
		if s.lastFire(&x) < before {
			gone = append(gone, x)
		}
	}
	slices.SortFunc(gone, func(a, b engine.Schedule) int {
		return cmp.Or(cmp.Compare(s.lastFire(&a), s.lastFire(&b)), compareBases(a.Base, b.Base))
	})
	gone = gone[:clamp(len(gone), max)]
	for _, x := range gone {
		delete(s.scheduled, x.Base)
		delete(s.heads, x.Base)
	}
	for b, h := range s.heads { // of nothing: nobody else forgets them
		if _, ok := s.scheduled[b]; !ok && h.FireAt != 0 && h.FireAt < before {
			delete(s.heads, b)
		}
	}
	return len(gone), nil
}
