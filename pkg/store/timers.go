package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// The tables of timers, in the form that store.go explains. A key begins with the shard (2 bytes)
// and the number of the bucket, so that one range delete removes a whole bucket.
var (
	tableTimers     = rows.Partition{Table: 't'} // shard+minute+ms in the minute (4 bytes)+id: timer
	tableColdTimers = rows.Partition{Table: 'T'} // shard+day+ms in the day (4 bytes)+id: timer
	tableHints      = rows.Partition{Table: 'I'} // shard+minute+base
	tableShards     = rows.Partition{Table: 'k'} // shard: state of the shard
)

const (
	bucketLen   = 2 + 8         // bytes of the shard and the bucket's number at the beginning of a key
	timerKeyLen = bucketLen + 4 // bytes of a key before the id
)

// timerTable keeps timers in buckets. All buckets of a table have the same length in time.
type timerTable struct {
	rows   rows.Rows
	part   rows.Partition
	length int64 // length of a bucket, ms
}

func appendShard(b []byte, shard uint16) []byte { return binary.BigEndian.AppendUint16(b, shard) }

func bucketKey(p engine.TimerPartition) string {
	return string(binary.BigEndian.AppendUint64(appendShard(nil, p.Shard), uint64(p.Bucket)))
}

func (t timerTable) appendKey(b []byte, shard uint16, fireAt int64, id []byte) []byte {
	b = binary.BigEndian.AppendUint64(appendShard(b, shard), uint64(fireAt/t.length))
	b = binary.BigEndian.AppendUint32(b, uint32(fireAt%t.length))
	return append(b, id...)
}

// TimerFields packs or unpacks a timer without its time and id, which are in the key. It also omits
// the payload: Cassandra stores the payload in a separate column, so that it can count rows without
// reading payloads.
func TimerFields(c *codec.Codec, t *engine.Timer) {
	codec.Num(c, &t.Kind)
	c.Str(&t.Target)
	touchable := !t.Head.IsZero()
	c.Bool(&touchable)
	if touchable {
		c.Raw(t.Head[:])
	}
	codec.Num(c, &t.Gen)
	codec.Num(c, &t.Weight)
}

// TimerVersion is the version of TimerFields.
const TimerVersion = 1

// timerRows returns the rows of timers. All keys share one string and all values share one slice, so
// that no timer needs its own allocation.
func (t timerTable) timerRows(shards notify.Spread, ts []engine.Timer) ([]rows.Row, error) {
	if err := engine.CheckTimers(shards, ts); err != nil {
		return nil, err
	}
	size, ids := 0, 0
	for i := range ts {
		size += 64 + len(ts[i].Target) + len(ts[i].Payload)
		ids += len(ts[i].ID)
	}
	keys, values := make([]byte, 0, ids+timerKeyLen*len(ts)), make([]byte, 0, size)
	out, ends := make([]rows.Row, len(ts)), make([]int, len(ts))
	for i := range ts {
		keys = t.appendKey(keys, engine.ShardOf(ts[i].ID, shards), ts[i].FireAt, ts[i].ID)
		c := codec.Packer(values, TimerVersion)
		TimerFields(&c, &ts[i])
		c.Bytes(&ts[i].Payload)
		values = c.Packed()
		ends[i] = len(values)
	}
	all, begin := string(keys), 0
	for i := range ts {
		n := timerKeyLen + len(ts[i].ID)
		out[i] = rows.Row{Key: all[:n], Value: values[begin:ends[i]:ends[i]]}
		all, begin = all[n:], ends[i]
	}
	return out, nil
}

// bucketAt returns the number of the bucket in a key.
func bucketAt(key string) int64 { return int64(numberAt(key[:bucketLen])) }

func (t timerTable) readTimer(r rows.Row, x *engine.Timer) error {
	if len(r.Key) <= timerKeyLen {
		return corrupt(r.Key)
	}
	k := []byte(r.Key)
	x.FireAt = bucketAt(r.Key)*t.length + int64(binary.BigEndian.Uint32(k[bucketLen:]))
	x.ID = k[timerKeyLen:]
	c := codec.Unpacker(r.Value, TimerVersion)
	TimerFields(&c, x)
	c.Bytes(&x.Payload)
	if c.Whole() {
		return nil
	}
	return notify.Unread("store", fmt.Sprintf("timer at %x", r.Key), r.Value, TimerVersion)
}

func (t timerTable) Put(ctx context.Context, shards notify.Spread, ts []engine.Timer) error {
	add, err := t.timerRows(shards, ts)
	if err != nil || len(add) == 0 {
		return err
	}
	_, err = t.rows.Swap(ctx, rows.Change{Part: t.part, Insert: add})
	return err
}

func (t timerTable) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) (out []engine.Timer, err error) {
	in := rows.Range{Prefix: bucketKey(p)}
	switch bucket := after.FireAt / t.length; {
	case bucket > p.Bucket || max <= 0 || p.Bucket < 0:
		return nil, nil
	case bucket == p.Bucket: // without an id the cursor is before all rows of its time
		in.After = string(t.appendKey(nil, p.Shard, after.FireAt, after.ID))
	}
	err = t.rows.Scan(ctx, t.part, in, func(r rows.Row) (bool, error) {
		var x engine.Timer
		if err := t.readTimer(r, &x); err != nil || x.FireAt > until {
			return false, err
		}
		out = append(out, x)
		return len(out) < max, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (t timerTable) ScanWithoutPayload(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return t.Scan(ctx, p, after, until, max)
}

func (t timerTable) Buckets(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	out, err := t.buckets(ctx, t.part, shard, from, to)
	if err != nil || t.part != tableTimers {
		return out, err
	}
	hinted, err := t.buckets(ctx, tableHints, shard, from, to)
	if err != nil || len(hinted) == 0 {
		return out, err
	}
	out = append(out, hinted...)
	slices.Sort(out)
	return slices.Compact(out), nil
}

// buckets returns the numbers of those buckets, from number first to number last, that have at
// least one row. It jumps from bucket to bucket, and reads only one row of each bucket.
func (t timerTable) buckets(ctx context.Context, part rows.Partition, shard uint16, first, last int64) (out []int64, err error) {
	for next := max(first, 0); next <= last; next++ {
		found := int64(-1)
		in := rows.Range{Prefix: string(appendShard(nil, shard)), After: bucketKey(engine.TimerPartition{Bucket: next, Shard: shard})}
		err := t.rows.Scan(ctx, part, in, func(r rows.Row) (bool, error) {
			if len(r.Key) <= bucketLen {
				return false, corrupt(r.Key)
			}
			found = bucketAt(r.Key)
			return false, nil
		})
		if err != nil {
			return nil, err
		}
		if found < 0 || found > last {
			break
		}
		out, next = append(out, found), found
	}
	return out, nil
}

func (t timerTable) Drop(ctx context.Context, p engine.TimerPartition) error {
	bucket := []string{bucketKey(p)}
	cs := []rows.Change{{Part: t.part, Clear: bucket}}
	if t.part == tableTimers {
		cs = append(cs, rows.Change{Part: tableHints, Clear: bucket})
	}
	_, err := t.rows.Swap(ctx, cs...)
	return err
}

func (t timerTable) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return t.rows.Scan(ctx, t.part, rows.Range{}, func(r rows.Row) (bool, error) {
		x := new(engine.Timer)
		if err := t.readTimer(r, x); err != nil {
			return false, err
		}
		return true, fn(x)
	})
}

// timers is the table of hot timers (tableTimers) together with the states of the shards
// (tableShards).
type timers struct{ timerTable }

func hotTimers(r rows.Rows) timerTable  { return timerTable{r, tableTimers, engine.MinuteMs} }
func coldTimers(r rows.Rows) timerTable { return timerTable{r, tableColdTimers, engine.DayMs} }

func (t timers) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	st, _, err := loadRecord[engine.ShardState](ctx, t.rows, tableShards, string(appendShard(nil, shard)))
	return st, err
}

func (t timers) Closed(ctx context.Context, shard uint16) (int64, error) {
	st, err := t.Shard(ctx, shard)
	return st.Closed, err
}

func (t timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return t.updateShard(ctx, shard, term, func(st *engine.ShardState) { st.Term, st.Owner = st.Term+1, owner })
}

func (t timers) Advance(ctx context.Context, shard uint16, to engine.ShardState) error {
	_, err := t.updateShard(ctx, shard, to.Term, func(st *engine.ShardState) {
		st.Closed, st.Watermark = max(st.Closed, to.Closed), max(st.Watermark, to.Watermark)
	})
	return err
}

// updateShard calls change with the state of a shard and stores the changed state. If the stored
// term differs from the parameter term, it changes nothing and returns engine.StaleTerm. Before it
// returns StaleTerm, it confirms the stored state by a swap, because after a failure of the store a
// read may return a state that is not durable.
func (t timers) updateShard(ctx context.Context, shard uint16, term uint64, change func(*engine.ShardState)) (engine.ShardState, error) {
	key := string(appendShard(nil, shard))
	for {
		st, stored, err := loadRecord[engine.ShardState](ctx, t.rows, tableShards, key)
		if err != nil {
			return engine.ShardState{}, err
		}
		c, stale := rows.Change{Part: tableShards, Expect: []rows.Row{{Key: key, Value: stored}}}, st.Term != term
		if !stale {
			change(&st)
			v, err := pack("bad_timer", "state of a shard", st)
			if err != nil {
				return engine.ShardState{}, err
			}
			c.Set = []rows.Row{{Key: key, Value: v}}
		}
		won, err := t.rows.Swap(ctx, c)
		switch {
		case err != nil:
			return engine.ShardState{}, err
		case won && stale:
			return engine.ShardState{}, engine.StaleTerm()
		case won:
			return st, nil
		}
	}
}

// addTimers returns the change with which Timers.Put stores timers.
func addTimers(shards notify.Spread, ts []engine.Timer) (rows.Change, error) {
	t := hotTimers(nil)
	add, err := t.timerRows(shards, ts)
	return rows.Change{Part: t.part, Insert: add}, err
}
