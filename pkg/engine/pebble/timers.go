package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Timers returns the contract of timers. A timer's shard is
// notify.HashUser(ID) modulo shards.
func (s *Store) Timers() engine.Timers { return timers{s} }

type timers struct{ s *Store }

const (
	maxTimerID  = 64
	minuteMs    = 60_000
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

func timerKey(b []byte, shard uint16, fireAt int64, id []byte) []byte {
	b = append(b, tTimer)
	b = binary.BigEndian.AppendUint16(b, shard)
	b = appendInt(b, fireAt)
	return append(b, id...)
}

func (t timers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	if shards < 1 || shards > 1<<16 {
		return notify.Invalid("bad_timer", "shards", "there are 1 to 65,536 shards")
	}
	if len(ts) == 0 {
		return nil
	}
	p := packedPool.Get().(*packed)
	defer packedPool.Put(p)
	p.buf, p.ends = p.buf[:0], p.ends[:0]
	for i := range ts {
		tm := &ts[i]
		if tm.FireAt < 0 || len(tm.ID) == 0 || len(tm.ID) > maxTimerID {
			return notify.Invalid("bad_timer", "id", "a timer fires after 1970 and has an id of 1 to 64 bytes")
		}
		p.buf = timerKey(p.buf, uint16(notify.HashUser(tm.ID)%uint64(shards)), tm.FireAt, tm.ID)
		p.ends = append(p.ends, len(p.buf))
		p.buf = append(p.buf, tm.Kind)
		p.buf = appendLen(p.buf, tm.Target)
		p.buf = append(p.buf, tm.Payload...)
		p.ends = append(p.ends, len(p.buf))
	}
	return t.s.commit.write(ctx, func(tx tx) {
		start := 0
		for i := 0; i < len(p.ends); i += 2 {
			tx.insert(p.buf[start:p.ends[i]], p.buf[p.ends[i]:p.ends[i+1]])
			start = p.ends[i+1]
		}
	}, nil)
}

// partition is the span of a minute of a shard.
func partition(p engine.TimerPartition) span {
	return span{
		timerKey(nil, p.Shard, p.Minute*minuteMs, nil),
		timerKey(nil, p.Shard, (p.Minute+1)*minuteMs, nil),
	}
}

func (t timers) Scan(ctx context.Context, p engine.TimerPartition, behind engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	r := partition(p)
	// The cursor's own row is skipped: the next key after it is itself and a
	// zero byte. A cursor without an id stands before the rows of its time.
	if c := timerKey(nil, p.Shard, behind.FireAt, behind.ID); len(behind.ID) > 0 {
		c = append(c, 0)
		if bytes.Compare(c, r.From) > 0 {
			r.From = c
		}
	} else if bytes.Compare(c, r.From) > 0 {
		r.From = c
	}
	if bytes.Compare(r.From, r.To) >= 0 || max <= 0 {
		return nil, nil
	}
	var out []engine.Timer
	n := -1
	err := t.s.each(r, func(k, v []byte) (bool, error) {
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

func readTimer(k, v []byte, tm *engine.Timer) error {
	if len(k) <= timerKeyLen {
		return corrupt("timer", k)
	}
	tm.FireAt = readInt(k[3:])
	tm.ID = bytes.Clone(k[timerKeyLen:])
	d := reader{b: bytes.Clone(v)}
	tm.Kind = d.byte()
	tm.Target = d.string()
	if d.bad {
		return corrupt("timer", k)
	}
	if len(d.b) > 0 {
		tm.Payload = d.b[:len(d.b):len(d.b)]
	}
	return nil
}

// Minutes leaps from minute to minute: it reads one row of each.
func (t timers) Minutes(ctx context.Context, shard uint16, from, to int64) (out []int64, err error) {
	from, to = max(from, 0), min(to, 1<<62/minuteMs)
	if from > to {
		return nil, nil
	}
	it, err := t.s.db.NewIter(&pebbledb.IterOptions{
		LowerBound: timerKey(nil, shard, from*minuteMs, nil),
		UpperBound: timerKey(nil, shard, (to+1)*minuteMs, nil),
	})
	if err != nil {
		return nil, translate(err)
	}
	n := -1
	for ok := it.First(); ok; {
		if err = sometimes(ctx, &n); err != nil {
			break
		}
		m := readInt(it.Key()[3:]) / minuteMs
		out = append(out, m)
		ok = it.SeekGE(timerKey(nil, shard, (m+1)*minuteMs, nil))
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
	r := partition(p)
	return t.s.commit.write(ctx, func(tx tx) { tx.deleteRange(r.From, r.To) }, nil)
}

func (t timers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	n := -1
	return t.s.each(under([]byte{tTimer}), func(k, v []byte) (bool, error) {
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
