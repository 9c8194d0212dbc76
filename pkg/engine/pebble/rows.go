package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// partRows implements rows.Rows. Rows that a Swap compares or stores are locked until
// they are durable. Rows that Number returns are not locked.
type partRows struct {
	reader
	s *Store

	mu sync.Mutex
	// last has the number given to the latest change of a partition. The map is
	// guarded by mu, and the numbers by the committer's lock.
	last map[rows.Part]*uint64
}

func (r *partRows) Get(ctx context.Context, p rows.Part, keys ...string) ([][]byte, error) {
	prefix := string(appendPart([]byte{tRows}, p))
	out, full := make([][]byte, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		full[i] = prefix + key
		err := r.get([]byte(full[i]), func(v []byte) error {
			out[i] = bytes.Clone(v)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, r.s.locks.Settled(ctx, full)
}

func (r *partRows) View() rows.View { return view{reader{r.s.db.NewSnapshot()}} }

func (r *partRows) Failed() <-chan struct{} { return r.s.Failed() }

func (r *partRows) Err() error { return r.s.Err() }

func (r *partRows) Swap(ctx context.Context, cs ...rows.Change) (bool, error) {
	adds, named, alone := 0, 0, true // alone: the changes only add
	for i := range cs {
		c := &cs[i]
		adds, named = adds+len(c.Add), named+len(c.If)+len(c.Do)
		alone = alone && len(c.Clear)+c.Numbers == 0 && c.Stored == nil
	}
	alone = alone && named == 0
	if alone {
		err := r.s.commit.insert(ctx, adds, func(g *group) { r.fill(g.tx, cs, nil) })
		return err == nil, err
	}
	keys := make([]string, 0, named)
	for i := range cs {
		keys = appendKeys(appendKeys(keys, cs[i].Part, cs[i].If), cs[i].Part, cs[i].Do)
	}
	unlock, err := r.s.locks.Lock(ctx, keys...)
	if err != nil {
		return false, err
	}
	last, holds, err := r.prepare(cs, keys)
	if err != nil || !holds {
		unlock()
		return false, err
	}
	filled := false
	err = r.s.commit.write(ctx, func(g *group) {
		filled = true
		r.fill(g.tx, cs, last)
		g.Settled(func(err error) {
			for i := range cs {
				if err == nil && cs[i].Stored != nil {
					cs[i].Stored()
				}
			}
			unlock()
		})
	})
	if !filled {
		unlock()
	}
	return err == nil, err
}

// appendKeys appends the full keys of rows.
func appendKeys(keys []string, p rows.Part, rs []rows.Row) []string {
	var b []byte
	for i := range rs {
		if b == nil {
			b = appendPart(append(make([]byte, 0, 128), tRows), p)
		}
		prefix := len(b)
		keys = append(keys, string(append(b, rs[i].Key...)))
		b = b[:prefix]
	}
	return keys
}

// prepare reports whether what is stored is as cs say, and returns the counter of each
// change that gives numbers. keys are the full keys of each If and Do, in their order.
func (r *partRows) prepare(cs []rows.Change, keys []string) (last []*uint64, holds bool, err error) {
	for i := range cs {
		c := &cs[i]
		for k, row := range c.If {
			same := false
			err := r.get([]byte(keys[k]), func(v []byte) error {
				same = (v == nil) == (row.Value == nil) && bytes.Equal(v, row.Value)
				return nil
			})
			if err != nil || !same {
				return nil, false, err
			}
		}
		keys = keys[len(c.If)+len(c.Do):]
		if c.Numbers == 0 {
			continue
		}
		if last == nil {
			last = make([]*uint64, len(cs))
		}
		if last[i], err = r.counter(c.Part); err != nil {
			return nil, false, err
		}
	}
	return last, true, nil
}

// fill puts changes into a batch.
func (r *partRows) fill(tx tx, cs []rows.Change, last []*uint64) {
	key := make([]byte, 0, 128)
	for i := range cs {
		c := &cs[i]
		key = appendPart(append(key[:0], tRows), c.Part)
		for _, begin := range c.Clear {
			from := append(key[:len(key):len(key)], begin...)
			tx.deleteRange(from, after(from))
		}
		key = tx.rows(key, c.Do, false)
		key = tx.rows(key, c.Add, true)
		for n := range c.Numbers {
			*last[i]++
			key = tx.rows(key, c.Number(n, *last[i]), false)
		}
		if c.Numbers > 0 {
			tx.set(appendPart([]byte{tNumber}, c.Part), binary.BigEndian.AppendUint64(nil, *last[i]))
		}
	}
}

// Turn implements rows.Partitions.
func (r *partRows) Turn(context.Context, rows.Part) (func(), error) { return func() {}, nil }

func (r *partRows) Write(ctx context.Context, fill func(rows.Batch)) error {
	return r.s.commit.write(ctx, func(g *group) { fill(g) })
}

func (r *partRows) Post(ctx context.Context, fill func(rows.Batch)) error {
	_, err := r.s.commit.join(ctx, func(g *group) { fill(g) })
	return err
}

// appendRowsKey appends the key of a row of a partition.
func appendRowsKey(b []byte, p rows.Part, key []byte) []byte {
	return append(appendPart(append(b, tRows), p), key...)
}

func rowsKeyLen(p rows.Part, key []byte) int { return 1 + 1 + 2 + len(p.Name) + len(key) }

// Set implements rows.Batch. It writes the key where the batch has it: that costs no
// allocation.
func (t tx) Set(p rows.Part, key, value []byte) {
	op := t.b.SetDeferred(rowsKeyLen(p, key), len(value))
	appendRowsKey(op.Key[:0], p, key)
	copy(op.Value, value)
	_ = op.Finish()
}

// Delete implements rows.Batch.
func (t tx) Delete(p rows.Part, key []byte) {
	op := t.b.DeleteDeferred(rowsKeyLen(p, key))
	appendRowsKey(op.Key[:0], p, key)
	_ = op.Finish()
}

// rows puts rows of the partition with this prefix, which it returns. It may have grown.
func (t tx) rows(prefix []byte, rs []rows.Row, add bool) []byte {
	n := len(prefix)
	for i := range rs {
		prefix = append(prefix[:n], rs[i].Key...)
		switch v := rs[i].Value; {
		case v == nil:
			t.delete(prefix)
		case add:
			t.insert(prefix, v)
		default:
			t.set(prefix, v)
		}
	}
	return prefix[:n]
}

// counter returns the last number of a partition. It reads it from the disk at first.
func (r *partRows) counter(p rows.Part) (*uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.last[p]; n != nil {
		return n, nil
	}
	key, n := appendPart([]byte{tNumber}, p), uint64(0)
	err := r.get(key, func(v []byte) error {
		switch len(v) {
		case 0:
		case 8:
			n = binary.BigEndian.Uint64(v)
		default:
			return notify.Corrupt("store", fmt.Sprintf("counter at %x", key))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.last[p] = &n
	return &n, nil
}

// firstWins makes rows of Add insert-only without reading before each write: the
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
