package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// Schedules returns the contract of scheduled requests.
func (s *Store) Schedules() engine.Schedules { return &s.schedules }

// schedules are written without a read: their rows by merge, where the oldest
// wins, and their index rows as they come. So the index may hold rows of a Put
// that changed nothing; whoever reads it looks at the schedule.
type schedules struct {
	s     *Store
	purge sync.Mutex
}

func (t *schedules) load(s *Store) error { t.s = s; return nil }

func scheduleKey(table byte, base notify.Base) []byte { return append([]byte{table}, base[:]...) }

func appendScheduleCaller(b []byte, caller string) []byte {
	return appendStr(append(b, tScheduleCaller), caller)
}

func appendScheduleFire(b []byte, fireAt int64, base notify.Base) []byte {
	return append(appendInt(append(b, tScheduleFire), fireAt), base[:]...)
}

// scheduleVersion begins a schedule's value.
const scheduleVersion = 2

func appendSchedule(b []byte, x *engine.Schedule) []byte {
	fan := byte(0)
	if x.Fan {
		fan = 1
	}
	b = append(b, scheduleVersion, fan, byte(x.Channel), byte(x.Category))
	b = appendLen(b, x.Caller)
	b = appendLen(b, x.Campaign)
	b = appendInt64(b, x.FireAt)
	b = appendInt64(b, x.Created)
	b = appendInt64(b, x.Expires)
	b = binary.AppendUvarint(b, uint64(x.Partition))
	b = binary.AppendUvarint(b, uint64(x.Partitions))
	b = binary.AppendUvarint(b, uint64(x.BlockSize))
	b = binary.AppendUvarint(b, uint64(x.Receivers))
	b = binary.AppendUvarint(b, uint64(x.Accepted))
	return appendLen(b, x.User)
}

// readSchedule reads a row, whose value x keeps.
func readSchedule(k, v []byte, x *engine.Schedule) error {
	d := reader{b: v}
	if len(k) != 1+len(x.Base) || d.byte() != scheduleVersion {
		return unread("schedule", k, v, scheduleVersion)
	}
	copy(x.Base[:], k[1:])
	x.Fan = d.byte() == 1
	x.Channel, x.Category = notify.Channel(d.byte()), notify.Category(d.byte())
	x.Caller, x.Campaign = d.string(), d.string()
	x.FireAt, x.Created, x.Expires = d.int(), d.int(), d.int()
	x.Partition = uint16(d.uint())
	x.Partitions, x.BlockSize = uint16(d.uint()), uint32(d.uint())
	x.Receivers, x.Accepted = uint32(d.uint()), uint32(d.uint())
	x.User = d.string()
	if !d.done() {
		return corrupt("schedule", k)
	}
	return nil
}

func badSchedule() error {
	return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head have a base")
}

// pack appends four parts of each schedule to p: key, value and the keys of
// both indexes.
func (t *schedules) pack(p *packed, ss []engine.Schedule) error {
	for i := range ss {
		x := &ss[i]
		if x.Base.IsZero() {
			return badSchedule()
		}
		if len(x.Caller) > 1<<16-1 {
			return notify.Invalid("bad_schedule", "caller", "a caller has at most 65,535 bytes")
		}
		p.buf = append(append(p.buf, tSchedule), x.Base[:]...)
		p.mark()
		p.buf = appendSchedule(p.buf, x)
		p.mark()
		p.buf = append(appendScheduleCaller(p.buf, x.Caller), x.Base[:]...)
		p.mark()
		p.buf = appendScheduleFire(p.buf, x.FireAt, x.Base)
		p.mark()
	}
	return nil
}

// fill writes the first n schedules that pack appended.
func (t *schedules) fill(tx tx, p *packed, n int) {
	for i := 0; i < 4*n; i += 4 {
		tx.insert(p.part(i), p.part(i+1))
	}
	for i := 0; i < 4*n; i += 4 {
		tx.set(p.part(i+2), nil)
	}
	for i := 0; i < 4*n; i += 4 {
		tx.set(p.part(i+3), nil)
	}
}

func (t *schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	p := newPacked()
	defer packedPool.Put(p)
	if err := t.pack(p, ss); err != nil || len(ss) == 0 {
		return err
	}
	return t.s.commit.insert(ctx, len(ss), func(tx tx) { t.fill(tx, p, len(ss)) })
}

// PutScheduled is Schedules.Put and Timers.Put in one commit, all or none: a
// registration waits for one fsync instead of two.
//
// BenchmarkPutScheduled has the numbers.
func (s *Store) PutScheduled(ctx context.Context, ss []engine.Schedule, shards int, ts []engine.Timer) error {
	p := newPacked()
	defer packedPool.Put(p)
	if err := s.schedules.pack(p, ss); err != nil {
		return err
	}
	timers, err := store.AddTimers(shards, ts)
	if err != nil || len(ss)+len(ts) == 0 {
		return err
	}
	r := s.Rows().(*partRows)
	return s.commit.insert(ctx, len(ss)+len(ts), func(tx tx) {
		s.schedules.fill(tx, p, len(ss))
		r.fill(tx, []rows.Change{timers}, nil)
	})
}

func (t *schedules) Get(_ context.Context, base notify.Base) (x engine.Schedule, ok bool, err error) {
	k := scheduleKey(tSchedule, base)
	v, err := t.s.get(k)
	if err != nil || v == nil {
		return x, false, err
	}
	if err := readSchedule(k, v, &x); err != nil {
		return engine.Schedule{}, false, err
	}
	return x, true, nil
}

func (t *schedules) List(ctx context.Context, caller string, behind notify.Base, max int) (out []engine.Schedule, err error) {
	if max <= 0 || len(caller) > 1<<16-1 {
		return nil, nil
	}
	prefix := []byte{tSchedule}
	if caller != "" {
		prefix = appendScheduleCaller(nil, caller)
	}
	r := under(prefix)
	if !behind.IsZero() {
		r.To = append(bytes.Clone(prefix), behind[:]...)
	}
	n := -1
	err = t.s.eachBack(r, func(k, v []byte) (bool, error) {
		if err := sometimes(ctx, &n); err != nil {
			return false, err
		}
		var x engine.Schedule
		if caller == "" {
			if err := readSchedule(k, bytes.Clone(v), &x); err != nil {
				return false, err
			}
		} else {
			ok := len(k) == len(prefix)+len(x.Base)
			if !ok {
				return false, corrupt("schedule index", k)
			}
			if x, ok, err = t.Get(ctx, notify.Base(k[len(prefix):])); err != nil {
				return false, err
			}
			if !ok || x.Caller != caller {
				return true, nil
			}
		}
		out = append(out, x)
		return len(out) < max, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t *schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	return t.s.Contracts.Hint(ctx, hs)
}

func (t *schedules) Hints(ctx context.Context, p engine.TimerPartition) ([]notify.Base, error) {
	return t.s.Contracts.Hints(ctx, p)
}
