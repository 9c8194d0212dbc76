package timer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// rows is a timer table that keeps each partition in order. So a scan costs as much as in a store
// with an index. It ignores contexts: a call of a process that was paused is still executed, like a
// call that was already on its way. The memory store keeps the rows of shards and the hints.
type rows struct {
	engine.Timers
	mu    sync.Mutex
	parts map[engine.TimerPartition][]engine.Timer
}

func newRows(m *memory.Store) *rows {
	return &rows{Timers: m.Timers(), parts: map[engine.TimerPartition][]engine.Timer{}}
}

func byTime(a, b engine.Timer) int {
	if a.FireAt != b.FireAt {
		return int(a.FireAt - b.FireAt)
	}
	return slices.Compare(a.ID, b.ID)
}

func (s *rows) Put(_ context.Context, shards notify.Spread, ts []engine.Timer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range ts {
		p := engine.TimerPartition{Bucket: t.FireAt / 60_000, Shard: engine.ShardOf(t.ID, shards)}
		part := s.parts[p]
		at, ok := slices.BinarySearchFunc(part, t, byTime)
		if !ok {
			s.parts[p] = slices.Insert(part, at, t)
		}
	}
	return nil
}

func (s *rows) Scan(_ context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, most int) ([]engine.Timer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	part := s.parts[p]
	at, ok := slices.BinarySearchFunc(part, engine.Timer{FireAt: after.FireAt, ID: after.ID}, byTime)
	if ok {
		at++
	}
	end := at
	for end < len(part) && end-at < most && part[end].FireAt <= until {
		end++
	}
	return slices.Clone(part[at:end]), nil
}

func (s *rows) Buckets(_ context.Context, shard uint16, from, to int64) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int64
	for p := range s.parts {
		if p.Shard == shard && p.Bucket >= from && p.Bucket <= to {
			out = append(out, p.Bucket)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (s *rows) Drop(ctx context.Context, p engine.TimerPartition) error {
	s.mu.Lock()
	delete(s.parts, p)
	s.mu.Unlock()
	return s.Timers.Drop(context.WithoutCancel(ctx), p) // the hints
}

func (s *rows) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	return s.Timers.Shard(context.WithoutCancel(ctx), shard)
}

func (s *rows) Closed(ctx context.Context, shard uint16) (int64, error) {
	return s.Timers.Closed(context.WithoutCancel(ctx), shard)
}

func (s *rows) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return s.Timers.TakeOver(context.WithoutCancel(ctx), shard, term, owner)
}

func (s *rows) Advance(ctx context.Context, shard uint16, st engine.ShardState) error {
	return s.Timers.Advance(context.WithoutCancel(ctx), shard, st)
}

func (s *rows) Pending(_ context.Context, fn func(*engine.Timer) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range s.parts {
		for i := range part {
			if err := fn(&part[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// left returns the number of rows.
func (s *rows) left() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, part := range s.parts {
		n += len(part)
	}
	return n
}

// reads counts the rows with FireAt < until that are read.
type reads struct {
	engine.Timers
	until int64
	n     atomic.Int64
}

func (r *reads) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, most int) ([]engine.Timer, error) {
	out, err := r.Timers.Scan(ctx, p, after, until, most)
	for i := range out {
		if out[i].FireAt < r.until {
			r.n.Add(1)
		}
	}
	return out, err
}

// storedHeads is a Schedules that ignores contexts, too.
type storedHeads struct{ engine.Schedules }

func (h storedHeads) Swap(ctx context.Context, old uint64, head engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	return h.Schedules.Swap(context.WithoutCancel(ctx), old, head)
}

// leases is a lease store that can be emptied, as Redis can, and that can be slow to answer.
type leases struct {
	mu    sync.Mutex
	l     *memory.Lease
	sleep map[string]time.Duration // by owner
}

func newLeases() *leases { return &leases{l: memory.NewLease(), sleep: map[string]time.Duration{}} }

func (l *leases) empty() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.l = memory.NewLease()
}

func (l *leases) slow(owner string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sleep[owner] = d
}

// of returns the current leases. It also returns a function that waits as long as the answer to
// this owner takes.
func (l *leases) of(owner string) (now *memory.Lease, answer func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.sleep[owner]
	return l.l, func() { time.Sleep(d) } // of the bubble
}

func (l *leases) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	now, answer := l.of(owner)
	defer answer()
	return now.Acquire(ctx, name, owner, ttl)
}

func (l *leases) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	now, answer := l.of(owner)
	defer answer()
	return now.Renew(ctx, name, owner, ttl)
}

func (l *leases) Release(ctx context.Context, name, owner string) error {
	now, answer := l.of(owner)
	defer answer()
	return now.Release(ctx, name, owner)
}

// lateScans is a timer table whose scans answer some time after they have read.
type lateScans struct {
	engine.Timers
	d time.Duration
}

func (l lateScans) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, most int) ([]engine.Timer, error) {
	out, err := l.Timers.Scan(ctx, p, after, until, most)
	time.Sleep(l.d) // of the bubble
	return out, err
}
