package store

import (
	"context"
	"math"
	"unsafe"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// schedules stores schedules, their heads and their index rows. Put does not read the stored rows
// first. If a schedule is already stored, Put does not change it, but may add an index row with
// another fire time. So a reader of an index must check the schedule. Heads are changed by swaps.
type schedules struct{ *Contracts }

func scheduleFields(c *codec.Codec, x *engine.Schedule) {
	c.Str(&x.Caller)
	c.Str(&x.Campaign)
	c.Str(&x.User)
	codec.Num(c, &x.Channel)
	codec.Num(c, &x.Category)
	codec.Num(c, &x.FireAt)
	codec.Num(c, &x.Created)
	codec.Num(c, &x.Expires)
	codec.Num(c, &x.Partition)
	codec.Num(c, &x.Partitions)
	codec.Num(c, &x.BlockSize)
	codec.Num(c, &x.Receivers)
	codec.Num(c, &x.Accepted)
	c.Bool(&x.FanOut)
}

// ScheduleRecord packs a schedule without its Base.
var ScheduleRecord = Record[engine.Schedule]{"a schedule", 1, scheduleFields}

// HeadRecord packs a schedule's head without its Base.
var HeadRecord = Record[engine.ScheduleHead]{"the head of a schedule", 1, func(c *codec.Codec, h *engine.ScheduleHead) {
	codec.Num(c, &h.State)
	codec.Num(c, &h.Gen)
	codec.Num(c, &h.FireAt)
	codec.Num(c, &h.At)
	codec.Num(c, &h.MovedAt)
	c.Str(&h.MovedBy)
	codec.Num(c, &h.Moves)
	c.Uint(&h.Version)
}}

func fireKey(fireAt int64, base string) string { return "f" + orderedTime(fireAt) + base }

// baseAt decodes the base at the end of a key.
func baseAt(key string) (notify.Base, error) {
	n := len(key) - len(notify.Base{})
	if n < 0 {
		return notify.Base{}, corrupt(key)
	}
	return notify.Base([]byte(key[n:])), nil
}

// addSchedules returns the change with which Put stores schedules. All keys share one string and all
// values share one slice, so that no schedule needs its own allocation.
func addSchedules(ss []engine.Schedule) (rows.Change, error) {
	if err := engine.CheckSchedules(ss); err != nil {
		return rows.Change{}, err
	}
	keysLen, valuesLen := 0, 0
	for i := range ss {
		x := &ss[i]
		keysLen += 3*(1+len(x.Base)) + 2 + len(x.Caller) + 8
		valuesLen += 56 + len(x.Caller) + len(x.Campaign) + len(x.User)
	}
	keys, values := make([]byte, 0, keysLen), make([]byte, 0, valuesLen)
	ends := make([]int, 0, 4*len(ss)) // for each schedule: the ends of three keys, and the end of its value
	for i := range ss {
		x := &ss[i]
		keys = append(append(keys, 's'), x.Base[:]...)
		ends = append(ends, len(keys))
		keys = append(appendStr(append(keys, 'c'), x.Caller), x.Base[:]...)
		ends = append(ends, len(keys))
		keys = append(appendOrdered(append(keys, 'f'), x.FireAt), x.Base[:]...)
		c := codec.Packer(values, ScheduleRecord.version)
		scheduleFields(&c, x)
		values = c.Packed()
		ends = append(ends, len(keys), len(values))
	}
	all, key, value := unsafe.String(unsafe.SliceData(keys), len(keys)), 0, 0 // safe: the slice keys is not changed below
	add := make([]rows.Row, 3*len(ss))
	for i := range ss {
		e, r := ends[4*i:], add[3*i:]
		r[0] = rows.Row{Key: all[key:e[0]], Value: values[value:e[3]:e[3]]}
		r[1] = rows.Row{Key: all[e[0]:e[1]], Value: []byte{}}
		r[2] = rows.Row{Key: all[e[1]:e[2]], Value: []byte{}}
		key, value = e[2], e[3]
	}
	return rows.Change{Part: tableSchedules, Insert: add}, nil
}

func (s schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	add, err := addSchedules(ss)
	if err != nil || len(ss) == 0 {
		return err
	}
	_, err = s.rows.Swap(ctx, add)
	return err
}

// storedSchedule is a schedule with its head, as stored.
type storedSchedule struct {
	schedule engine.Schedule
	head     engine.ScheduleHead
	exists   bool   // the schedule is stored
	packed   []byte // packed form of the head; nil: no head is stored
}

// fireAt returns the fire time of the head or, if the head has none, of the schedule. ok is false
// if neither has one.
func (x *storedSchedule) fireAt() (at int64, ok bool) {
	if x.head.FireAt != 0 {
		return x.head.FireAt, true
	}
	return x.schedule.FireAt, x.exists
}

// readStored returns the schedules with the given bases, and their heads. If a swap of a head was
// answered before the call, the result contains the new head.
func (s schedules) readStored(ctx context.Context, bases ...notify.Base) ([]storedSchedule, error) {
	keys := make([]string, 0, 2*len(bases))
	for _, b := range bases {
		keys = append(keys, "s"+string(b[:]), "h"+string(b[:]))
	}
	got, err := s.rows.Get(ctx, tableSchedules, keys...)
	if err != nil {
		return nil, err
	}
	out := make([]storedSchedule, len(bases))
	for i := range out {
		x := &out[i]
		if v := got[2*i]; v != nil {
			x.exists, x.schedule.Base = true, bases[i]
			if err := ScheduleRecord.Unpack(v, &x.schedule); err != nil {
				return nil, err
			}
		}
		if x.packed = got[2*i+1]; x.packed != nil {
			x.head.Base = bases[i]
			if err := HeadRecord.Unpack(x.packed, &x.head); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (s schedules) Get(ctx context.Context, base notify.Base) (x engine.Schedule, ok bool, err error) {
	v, err := s.rows.Get(ctx, tableSchedules, "s"+string(base[:]))
	if err != nil || v[0] == nil {
		return x, false, err
	}
	x.Base = base
	err = ScheduleRecord.Unpack(v[0], &x)
	return x, err == nil, err
}

func (s schedules) List(ctx context.Context, caller string, after notify.Base, max int) ([]engine.Schedule, error) {
	if len(caller) > maxPart {
		return nil, nil
	}
	in := rows.Range{Prefix: "s", Back: true}
	if caller != "" {
		in.Prefix = "c" + str(caller)
	}
	if !after.IsZero() {
		in.Before = in.Prefix + string(after[:])
	}
	var out []engine.Schedule
	err := s.rows.Scan(ctx, tableSchedules, in, func(r rows.Row) (bool, error) {
		if len(out) >= max {
			return false, nil
		}
		base, err := baseAt(r.Key)
		if err != nil {
			return false, err
		}
		x, ok := engine.Schedule{Base: base}, true
		if caller == "" {
			err = ScheduleRecord.Unpack(r.Value, &x)
		} else {
			x, ok, err = s.Get(ctx, base)
		}
		if ok && (caller == "" || x.Caller == caller) {
			out = append(out, x)
		}
		return len(out) < max, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s schedules) Head(ctx context.Context, base notify.Base) (h engine.ScheduleHead, ok bool, err error) {
	v, err := s.rows.Get(ctx, tableSchedules, "h"+string(base[:]))
	if err != nil || v[0] == nil {
		return h, false, err
	}
	h.Base = base
	err = HeadRecord.Unpack(v[0], &h)
	return h, err == nil, err
}

func (s schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	if h.Base.IsZero() {
		return engine.ScheduleHead{}, false, engine.NoBase()
	}
	base := string(h.Base[:])
	h.Version = old + 1
	next := HeadRecord.Pack(&h)
	for {
		stored, err := s.readStored(ctx, h.Base)
		if err != nil {
			return engine.ScheduleHead{}, false, err
		}
		was, is := stored[0], stored[0]
		if was.head.Version != old {
			return was.head, false, nil
		}
		is.head = h
		c := rows.Change{Part: tableSchedules, Expect: []rows.Row{{Key: "h" + base, Value: was.packed}}, Set: []rows.Row{{Key: "h" + base, Value: next}}}
		before, listed := was.fireAt()
		if at, lists := is.fireAt(); listed != lists || before != at {
			if listed {
				c.Set = append(c.Set, rows.Row{Key: fireKey(before, base)})
			}
			if lists {
				c.Set = append(c.Set, rows.Row{Key: fireKey(at, base), Value: []byte{}})
			}
		}
		won, err := s.rows.Swap(ctx, c)
		switch {
		case err != nil:
			return engine.ScheduleHead{}, false, err
		case won:
			return h, true, nil
		}
	}
}

func (s schedules) Purge(ctx context.Context, before int64, max int) (int, error) {
	if before == math.MinInt64 {
		return 0, nil
	}
	return purgeByTime(ctx, s.rows, tableSchedules, "f", before-1, max, func(entries []string) ([]rows.Change, int, error) {
		bases := make([]notify.Base, len(entries))
		for i, e := range entries {
			var err error
			if bases[i], err = baseAt(e); err != nil {
				return nil, 0, err
			}
		}
		stored, err := s.readStored(ctx, bases...)
		if err != nil {
			return nil, 0, err
		}
		c, gone := rows.Change{Part: tableSchedules}, 0
		seen := map[notify.Base]bool{}
		for i, e := range entries {
			x, base := &stored[i], string(bases[i][:])
			at, listed := x.fireAt()
			c.Expect = append(c.Expect, rows.Row{Key: "h" + base, Value: x.packed})
			c.Set = append(c.Set, rows.Row{Key: e})
			switch {
			case !listed:
				continue
			case at >= before: // this entry is from a repeated Put; the stored schedule fires later
				c.Set = append(c.Set, rows.Row{Key: fireKey(at, base), Value: []byte{}})
				continue
			case x.exists && !seen[bases[i]]:
				gone++
			}
			seen[bases[i]] = true
			c.Set = append(c.Set, rows.Row{Key: "s" + base}, rows.Row{Key: "h" + base}, rows.Row{Key: "c" + str(x.schedule.Caller) + base},
				rows.Row{Key: fireKey(x.schedule.FireAt, base)}, rows.Row{Key: fireKey(at, base)})
		}
		return []rows.Change{c}, gone, nil
	})
}

func (s schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	if err := engine.CheckHints(hs); err != nil || len(hs) == 0 {
		return err
	}
	add := make([]rows.Row, len(hs))
	for i := range hs {
		add[i] = rows.Row{Key: bucketKey(hs[i].Partition) + string(hs[i].Base[:]), Value: []byte{}}
	}
	_, err := s.rows.Swap(ctx, rows.Change{Part: tableHints, Insert: add})
	return err
}

func (s schedules) Hints(ctx context.Context, p engine.TimerPartition) (out []notify.Base, err error) {
	err = s.rows.Scan(ctx, tableHints, rows.Range{Prefix: bucketKey(p)}, func(r rows.Row) (bool, error) {
		if len(r.Key) != bucketLen+len(notify.Base{}) {
			return false, corrupt(r.Key)
		}
		out = append(out, notify.Base([]byte(r.Key[bucketLen:])))
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// PutScheduled implements engine.Schedules. It writes schedules and timers in one commit, so that a
// registration waits for one fsync instead of two. BenchmarkPutScheduled of pkg/engine/pebble measures
// this.
func (s schedules) PutScheduled(ctx context.Context, ss []engine.Schedule, shards notify.Spread, ts []engine.Timer) error {
	schedules, err := addSchedules(ss)
	if err != nil {
		return err
	}
	timers, err := addTimers(shards, ts)
	if err != nil || len(ss)+len(ts) == 0 {
		return err
	}
	_, err = s.rows.Swap(ctx, schedules, timers)
	return err
}

// ForgetTimers implements engine.Schedules. It removes the timers of moved schedules one by one,
// because there are few of them. All other timers are removed together, minute by minute.
func (s schedules) ForgetTimers(ctx context.Context, shards notify.Spread, ts []engine.Timer) error {
	if len(ts) == 0 {
		return nil
	}
	var cs []rows.Change
	for _, t := range []timerTable{hotTimers(s.rows), coldTimers(s.rows)} {
		gone := make([]rows.Row, len(ts))
		for i := range ts {
			gone[i].Key = string(t.appendKey(nil, engine.ShardOf(ts[i].ID, shards), ts[i].FireAt, ts[i].ID))
		}
		cs = append(cs, rows.Change{Part: t.part, Set: gone})
	}
	_, err := s.rows.Swap(ctx, cs...)
	return err
}
