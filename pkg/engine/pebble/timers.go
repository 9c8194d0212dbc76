package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"slices"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Timers returns the contract of timers.
func (s *Store) Timers() engine.Timers { return timers{s} }

type timers struct{ s *Store }

const (
	minuteMs    = engine.MinuteMs
	timerKeyLen = 1 + 2 + 8 // without the id
)

// firstWins makes timers insert-only without reading before each write: the
// oldest value of a key is its value.
var firstWins = &pebbledb.Merger{
	Name: "notifyd.first",
	Merge: func(_, value []byte) (pebbledb.ValueMerger, error) {
		return &firstValue{bytes.Clone(value)}, nil
	},
}

type firstValue struct{ v []byte }

func (f *firstValue) MergeNewer([]byte) error { return nil }

func (f *firstValue) MergeOlder(v []byte) error {
	f.v = append(f.v[:0], v...)
	return nil
}

func (f *firstValue) Finish(bool) ([]byte, io.Closer, error) { return f.v, nil, nil }

func timerKey(b []byte, table byte, shard uint16, fireAt int64, id []byte) []byte {
	b = append(b, table)
	b = binary.BigEndian.AppendUint16(b, shard)
	b = appendInt(b, fireAt)
	return append(b, id...)
}

// timerVersion begins a timer's value.
const timerVersion = 2

// packTimers checks timers and appends a key and a value of each to p.
func packTimers(p *packed, table byte, shards int, ts []engine.Timer) error {
	if err := engine.CheckTimers(shards, ts); err != nil {
		return err
	}
	for i := range ts {
		tm := &ts[i]
		p.buf = timerKey(p.buf, table, engine.ShardOf(tm.ID, shards), tm.FireAt, tm.ID)
		p.mark()
		p.buf = append(p.buf, timerVersion, tm.Kind)
		p.buf = appendLen(p.buf, tm.Target)
		if tm.Head.IsZero() {
			p.buf = append(p.buf, 0)
		} else {
			p.buf = append(append(p.buf, 1), tm.Head[:]...)
		}
		p.buf = binary.AppendUvarint(p.buf, uint64(tm.Gen))
		p.buf = binary.AppendUvarint(p.buf, uint64(tm.Weight))
		p.buf = append(p.buf, tm.Payload...)
		p.mark()
	}
	return nil
}

func readTimer(k, v []byte, tm *engine.Timer) error {
	if len(k) <= timerKeyLen || len(v) == 0 {
		return corrupt("timer", k)
	}
	tm.FireAt = readInt(k[3:])
	tm.ID = bytes.Clone(k[timerKeyLen:])
	d := reader{b: bytes.Clone(v)}
	if d.byte() != timerVersion {
		return unread("timer", k, v, timerVersion)
	}
	tm.Kind, tm.Target = d.byte(), d.string()
	if d.byte() == 1 {
		copy(tm.Head[:], d.fixed(len(tm.Head)))
	}
	tm.Gen, tm.Weight = uint32(d.uint()), uint32(d.uint())
	if d.bad {
		return corrupt("timer", k)
	}
	if len(d.b) > 0 {
		tm.Payload = d.b[:len(d.b):len(d.b)]
	}
	return nil
}

func (t timers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	return t.s.putTimers(ctx, tTimer, shards, ts)
}

func (s *Store) putTimers(ctx context.Context, table byte, shards int, ts []engine.Timer) error {
	p := newPacked()
	defer packedPool.Put(p)
	if err := packTimers(p, table, shards, ts); err != nil || len(ts) == 0 {
		return err
	}
	return s.commit.insert(ctx, len(ts), func(tx tx) {
		for i := 0; i < len(p.ends); i += 2 {
			tx.insert(p.part(i), p.part(i+1))
		}
	})
}

// period is the span of the timers of a shard in [from, to), ms since 1970.
func period(table byte, shard uint16, from, to int64) span {
	return span{timerKey(nil, table, shard, from, nil), timerKey(nil, table, shard, to, nil)}
}

// partition is the span of a minute of a shard.
func partition(p engine.TimerPartition) span {
	return period(tTimer, p.Shard, p.Minute*minuteMs, (p.Minute+1)*minuteMs)
}

func (t timers) Scan(ctx context.Context, p engine.TimerPartition, behind engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return t.s.scanTimers(ctx, partition(p), behind, until, max)
}

func (s *Store) scanTimers(ctx context.Context, r span, behind engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	// The cursor's own row is skipped: the next key after it is itself and a
	// zero byte. A cursor without an id stands before the rows of its time.
	c := append(appendInt(bytes.Clone(r.From[:3]), behind.FireAt), behind.ID...)
	if len(behind.ID) > 0 {
		c = append(c, 0)
	}
	if bytes.Compare(c, r.From) > 0 {
		r.From = c
	}
	if bytes.Compare(r.From, r.To) >= 0 || max <= 0 {
		return nil, nil
	}
	var out []engine.Timer
	n := -1
	err := s.each(r, func(k, v []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		var tm engine.Timer
		if err := readTimer(k, v, &tm); err != nil {
			return false, err
		}
		if tm.FireAt > until {
			return false, nil
		}
		out = append(out, tm)
		return len(out) < max, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t timers) Outline(ctx context.Context, p engine.TimerPartition, behind engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return t.Scan(ctx, p, behind, until, max)
}

func (t timers) Minutes(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	rows, err := t.s.periods(ctx, tTimer, shard, from, to, minuteMs)
	if err != nil {
		return nil, err
	}
	hinted, err := t.s.hinted(ctx, shard, from, to)
	if err != nil || len(hinted) == 0 {
		return rows, err
	}
	rows = append(rows, hinted...)
	slices.Sort(rows)
	return slices.Compact(rows), nil
}

// hinted returns the minutes in [from, to] that hold hints.
func (s *Store) hinted(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	from, to = max(from, 0), min(to, 1<<62/minuteMs)
	if from > to {
		return nil, nil
	}
	key := func(minute int64) []byte { return hintKey(engine.TimerPartition{Minute: minute, Shard: shard}) }
	return s.leap(ctx, span{key(from), key(to + 1)}, func(k []byte) int64 { return readInt(k[3:]) }, key)
}

// periods returns the numbers of the periods of length ms in [from, to] that
// hold rows. It leaps from one to the next: it reads one row of each.
func (s *Store) periods(ctx context.Context, table byte, shard uint16, from, to, length int64) (out []int64, err error) {
	from, to = max(from, 0), min(to, 1<<62/length)
	if from > to {
		return nil, nil
	}
	return s.leap(ctx, period(table, shard, from*length, (to+1)*length),
		func(k []byte) int64 { return readInt(k[3:]) / length },
		func(p int64) []byte { return timerKey(nil, table, shard, p*length, nil) })
}

// leap returns the periods that hold keys, ascending: of says which one a key
// lies in, first where one begins.
func (s *Store) leap(ctx context.Context, r span, of func(key []byte) int64, first func(period int64) []byte) (out []int64, err error) {
	it, err := s.db.NewIter(&pebbledb.IterOptions{LowerBound: r.From, UpperBound: r.To})
	if err != nil {
		return nil, translate(err)
	}
	n := -1
	for ok := it.First(); ok; {
		if err = sometimes(ctx, &n); err != nil {
			break
		}
		p := of(it.Key())
		out = append(out, p)
		ok = it.SeekGE(first(p + 1))
	}
	if err == nil {
		err = it.Error()
	}
	if cerr := it.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, translate(err)
	}
	return out, nil
}

func (t timers) Drop(ctx context.Context, p engine.TimerPartition) error {
	rows, hints := partition(p), under(hintKey(p))
	return t.s.commit.write(ctx, func(tx tx) {
		tx.deleteRange(rows.From, rows.To)
		tx.deleteRange(hints.From, hints.To)
	}, nil)
}

func (t timers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return t.s.eachTimer(ctx, tTimer, fn)
}

func (s *Store) eachTimer(ctx context.Context, table byte, fn func(*engine.Timer) error) error {
	n := -1
	return s.each(under([]byte{table}), func(k, v []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		tm := new(engine.Timer)
		if err := readTimer(k, v, tm); err != nil {
			return false, err
		}
		return true, fn(tm)
	})
}
