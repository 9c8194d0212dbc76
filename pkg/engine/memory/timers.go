package memory

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
)

type timers struct{ *Store }

type timerKey struct {
	shard  uint16
	fireAt int64
	id     string
}

func (k timerKey) minute() int64 { return k.fireAt / 60_000 }

// behind reports whether a row stands behind a cursor.
func (k timerKey) behind(c engine.TimerCursor) bool {
	return k.fireAt > c.FireAt || k.fireAt == c.FireAt && k.id > string(c.ID)
}

func (s timers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	if err := check(ctx); err != nil {
		return err
	}
	return s.put(s.timers, shards, ts)
}

// put stores timers in a table that has no row of theirs yet.
func (s *Store) put(table map[timerKey]engine.Timer, shards int, ts []engine.Timer) error {
	if err := engine.CheckTimers(shards, ts); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range ts {
		k := timerKey{engine.ShardOf(t.ID, shards), t.FireAt, string(t.ID)}
		if _, ok := table[k]; !ok {
			table[k] = cloneTimer(t)
		}
	}
	return nil
}

func cloneTimer(t engine.Timer) engine.Timer {
	t.ID, t.Payload = bytes.Clone(t.ID), bytes.Clone(t.Payload)
	if len(t.Payload) == 0 {
		t.Payload = nil
	}
	return t
}

// sorted returns copies of the timers that keep selects, by shard and time.
func (s *Store) sorted(table map[timerKey]engine.Timer, keep func(timerKey) bool) []engine.Timer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ks []timerKey
	for k := range table {
		if keep(k) {
			ks = append(ks, k)
		}
	}
	slices.SortFunc(ks, func(a, b timerKey) int {
		return cmp.Or(cmp.Compare(a.shard, b.shard), cmp.Compare(a.fireAt, b.fireAt), cmp.Compare(a.id, b.id))
	})
	var out []engine.Timer
	for _, k := range ks {
		out = append(out, cloneTimer(table[k]))
	}
	return out
}

func (s timers) Scan(ctx context.Context, p engine.TimerPartition, behind engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	out := s.sorted(s.timers, func(k timerKey) bool {
		return k.shard == p.Shard && k.minute() == p.Minute && k.fireAt <= until && k.behind(behind)
	})
	return out[:clamp(len(out), max)], nil
}

func (s timers) Outline(ctx context.Context, p engine.TimerPartition, behind engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return s.Scan(ctx, p, behind, until, max)
}

func (s timers) Minutes(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int64
	for k := range s.timers {
		if m := k.minute(); k.shard == shard && m >= from && m <= to {
			out = append(out, m)
		}
	}
	for p := range s.hints {
		if p.Shard == shard && p.Minute >= from && p.Minute <= to {
			out = append(out, p.Minute)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (s timers) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shards[shard], check(ctx)
}

func (s timers) Closed(ctx context.Context, shard uint16) (int64, error) {
	st, err := s.Shard(ctx, shard)
	return st.Closed, err
}

func (s timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return s.update(ctx, shard, term, func(st *engine.ShardState) { st.Term, st.Owner = st.Term+1, owner })
}

func (s timers) Advance(ctx context.Context, shard uint16, to engine.ShardState) error {
	_, err := s.update(ctx, shard, to.Term, func(st *engine.ShardState) {
		st.Closed, st.Watermark = max(st.Closed, to.Closed), max(st.Watermark, to.Watermark)
	})
	return err
}

func (s timers) update(ctx context.Context, shard uint16, term uint64, change func(*engine.ShardState)) (engine.ShardState, error) {
	if err := check(ctx); err != nil {
		return engine.ShardState{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.shards[shard]
	if st.Term != term {
		return engine.ShardState{}, engine.StaleTerm()
	}
	change(&st)
	s.shards[shard] = st
	return st, nil
}

func (s timers) Drop(ctx context.Context, p engine.TimerPartition) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.timers {
		if k.shard == p.Shard && k.minute() == p.Minute {
			delete(s.timers, k)
		}
	}
	delete(s.hints, p)
	return nil
}

func (s timers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return s.pending(ctx, s.timers, fn)
}

func (s *Store) pending(ctx context.Context, table map[timerKey]engine.Timer, fn func(*engine.Timer) error) error {
	if err := check(ctx); err != nil {
		return err
	}
	ts := s.sorted(table, func(timerKey) bool { return true })
	for i := range ts {
		if err := fn(&ts[i]); err != nil {
			return err
		}
	}
	return nil
}

// PutScheduled is Schedules.Put and Timers.Put, all or none.
func (s *Store) PutScheduled(ctx context.Context, ss []engine.Schedule, shards int, ts []engine.Timer) error {
	if err := check(ctx); err != nil {
		return err
	}
	if slices.ContainsFunc(ss, func(x engine.Schedule) bool { return x.Base.IsZero() }) {
		return badSchedule()
	}
	if err := s.put(s.timers, shards, ts); err != nil {
		return err
	}
	return schedules{s}.Put(context.WithoutCancel(ctx), ss)
}

// ForgetTimers removes rows of the hot and the cold table.
func (s *Store) ForgetTimers(ctx context.Context, shards int, ts []engine.Timer) error {
	if err := check(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range ts {
		k := timerKey{engine.ShardOf(t.ID, shards), t.FireAt, string(t.ID)}
		delete(s.timers, k)
		delete(s.cold, k)
	}
	return nil
}
