package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type status struct{ *Store }

func (s status) Put(ctx context.Context, rows []notify.Row) error {
	if err := check(ctx); err != nil {
		return err
	}
	for i := range rows {
		for _, x := range append([]notify.Exception{rows[i].Default}, rows[i].Exceptions...) {
			if int(x.State) >= notify.States {
				return notify.Invalid("bad_row", "state", "no such state")
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rows {
		switch stamp := s.stamps[r.Key]; {
		case r.Stamp == engine.StampBeside:
			s.stamps[r.Key] = stamp + 1
		case r.Stamp != 0 && r.Stamp < stamp:
			continue // of an earlier tenure
		case r.Stamp != 0:
			s.stamps[r.Key] = r.Stamp
		}
		r.Stamp, r.Damaged = 0, nil
		s.rows[r.Key] = cloneRow(r)
	}
	return nil
}

func (s status) TakeOver(ctx context.Context, topic string, partition int32) (engine.Tenure, error) {
	if err := check(ctx); err != nil {
		return engine.Tenure{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := tenureKey{topic, partition}
	t := engine.NextTenure(topic, partition, s.tenures[k], time.Now().UnixMicro())
	s.tenures[k] = t.Start
	return t, nil
}

// Resume fences done rows by raising their stamp. Of other rows it shows late writes of
// earlier tenures until the owner writes, as an engine of many machines does.
func (s status) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return s.get(ctx, keys, func(r *notify.Row) error {
		if err := whole(r); errors.Is(err, notify.ErrNewer) {
			return err
		}
		if r.Done {
			s.stamps[r.Key] = max(s.stamps[r.Key], t.Start)
		}
		return nil
	})
}

// Damage makes what is stored under key a value that cannot be decoded, for tests
// of its readers. As in the engines that store bytes, its first byte is its version: a
// value of a version above 1 is not damaged, a newer release wrote it.
func (s *Store) Damage(key notify.RowKey, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[key] = notify.Row{Key: key, Damaged: value}
}

// whole returns notify.ErrCorrupt for a damaged row, and notify.ErrNewer for one of a
// newer release.
func whole(r *notify.Row) error {
	if r.Damaged != nil {
		if err := notify.CheckVersion("an outcome row", r.Damaged, 1); err != nil {
			return err
		}
		return notify.Unavailable("store", 0, fmt.Errorf("%w: an outcome row of %s", notify.ErrCorrupt, r.Key.Chunk.Base))
	}
	return nil
}

func cloneRow(r notify.Row) notify.Row {
	r.Index = slices.Clone(r.Index)
	r.Exceptions = slices.Clone(r.Exceptions)
	r.Damaged = slices.Clone(r.Damaged)
	return r
}

func (s status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return s.get(ctx, keys, whole)
}

// get calls seen with each row that is there, with the lock held.
func (s status) get(ctx context.Context, keys []notify.RowKey, seen func(*notify.Row) error) ([]notify.Row, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]notify.Row, len(keys))
	for i, k := range keys {
		if r, ok := s.rows[k]; ok {
			out[i] = cloneRow(r)
			if err := seen(&r); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// sorted returns copies of the rows that keep selects, in key order.
func (s status) sorted(ctx context.Context, keep func(notify.RowKey) bool) ([]notify.Row, error) {
	if err := check(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []notify.Row
	for k, r := range s.rows {
		if keep(k) {
			if err := whole(&r); err != nil {
				return nil, err
			}
			out = append(out, cloneRow(r))
		}
	}
	slices.SortFunc(out, func(a, b notify.Row) int { return compareKeys(&a.Key, &b.Key) })
	return out, nil
}

func compareKeys(a, b *notify.RowKey) int {
	return cmp.Or(
		bytes.Compare(a.Chunk.Base[:], b.Chunk.Base[:]),
		cmp.Compare(a.Chunk.Partition, b.Chunk.Partition),
		cmp.Compare(a.Chunk.Block, b.Chunk.Block),
		cmp.Compare(a.Epoch, b.Epoch),
		cmp.Compare(a.Attempt, b.Attempt),
		cmp.Compare(a.Deferrals, b.Deferrals),
		cmp.Compare(a.First, b.First),
		cmp.Compare(a.Kind, b.Kind),
	)
}

func (s status) Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error) {
	return s.sorted(ctx, func(k notify.RowKey) bool { return k.Chunk == c })
}

func (s status) Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error {
	return s.each(ctx, func(k notify.RowKey) bool { return k.Chunk.Base == base }, fn)
}

func (s status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	return s.each(ctx, func(k notify.RowKey) bool {
		ms := k.Chunk.Base.Time().UnixMilli()
		return ms >= from && ms < to
	}, fn)
}

func (s status) each(ctx context.Context, keep func(notify.RowKey) bool, fn func(*notify.Row) error) error {
	rows, err := s.sorted(ctx, keep)
	for i := range rows {
		if err := fn(&rows[i]); err != nil {
			return err
		}
	}
	return err
}
