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

// partRows implements rows.Rows. A Swap locks the rows of Expect and Set until the swap is
// durable. It does not lock the rows of Insert, the rows that Clear removes, and the rows that
// Number returns.
type partRows struct {
	reader
	s *Store

	mu sync.Mutex
	// lastNumbers contains, for each partition, the last number that was given to
	// rows.Change.Number. The field mu guards the map. The mu of the committer guards the
	// numbers.
	lastNumbers map[rows.Partition]*uint64
}

func (r *partRows) Get(ctx context.Context, p rows.Partition, keys ...string) ([][]byte, error) {
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
	inserts, toLock, onlyInserts := 0, 0, true
	for i := range cs {
		c := &cs[i]
		inserts, toLock = inserts+len(c.Insert), toLock+len(c.Expect)+len(c.Set)
		onlyInserts = onlyInserts && len(c.Clear)+c.Numbers == 0 && c.Stored == nil
	}
	onlyInserts = onlyInserts && toLock == 0
	if onlyInserts {
		err := r.s.commit.insertUnordered(ctx, inserts, func(g *group) { r.fillBatch(g.tx, cs, nil) })
		return err == nil, err
	}
	keys := make([]string, 0, toLock)
	for i := range cs {
		keys = appendKeys(appendKeys(keys, cs[i].Part, cs[i].Expect), cs[i].Part, cs[i].Set)
	}
	unlock, err := r.s.locks.Lock(ctx, keys...)
	if err != nil {
		return false, err
	}
	lastNumbers, matches, err := r.compare(cs, keys)
	if err != nil || !matches {
		unlock()
		return false, err
	}
	filled := false
	err = r.s.commit.write(ctx, func(g *group) {
		filled = true
		r.fillBatch(g.tx, cs, lastNumbers)
		g.Settled(func(err error) { // unlocks even if Swap has already returned
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

// appendKeys appends the database keys of rows to keys.
func appendKeys(keys []string, p rows.Partition, rs []rows.Row) []string {
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

// compare reads every row that the changes list in Expect. The result matches is true if each of
// these rows is stored with its value. For each change with Numbers > 0, it also returns the
// counter of the change's partition. The parameter keys contains the database keys of the changes
// in order: for each change the keys of Expect, then the keys of Set.
func (r *partRows) compare(cs []rows.Change, keys []string) (lastNumbers []*uint64, matches bool, err error) {
	for i := range cs {
		c := &cs[i]
		for k, row := range c.Expect {
			same := false
			err := r.get([]byte(keys[k]), func(v []byte) error {
				same = (v == nil) == (row.Value == nil) && bytes.Equal(v, row.Value)
				return nil
			})
			if err != nil || !same {
				return nil, false, err
			}
		}
		keys = keys[len(c.Expect)+len(c.Set):]
		if c.Numbers == 0 {
			continue
		}
		if lastNumbers == nil {
			lastNumbers = make([]*uint64, len(cs))
		}
		if lastNumbers[i], err = r.lastNumber(c.Part); err != nil {
			return nil, false, err
		}
	}
	return lastNumbers, true, nil
}

// fillBatch puts changes into a batch and raises the counters. The caller must hold the mu of
// the committer, unless the changes contain nothing but Insert.
func (r *partRows) fillBatch(tx tx, cs []rows.Change, lastNumbers []*uint64) {
	key := make([]byte, 0, 128)
	for i := range cs {
		c := &cs[i]
		key = appendPart(append(key[:0], tRows), c.Part)
		for _, prefix := range c.Clear {
			from := append(key[:len(key):len(key)], prefix...)
			tx.deleteRange(from, prefixEnd(from))
		}
		key = tx.putRows(key, c.Set, false)
		key = tx.putRows(key, c.Insert, true)
		for n := range c.Numbers {
			*lastNumbers[i]++
			key = tx.putRows(key, c.Number(n, *lastNumbers[i]), false)
		}
		if c.Numbers > 0 {
			tx.set(appendPart([]byte{tNumber}, c.Part), binary.BigEndian.AppendUint64(nil, *lastNumbers[i]))
		}
	}
}

// Turn implements rows.Partitions. It does not wait, because only this process uses the rows.
func (r *partRows) Turn(context.Context, rows.Partition) (func(), error) { return func() {}, nil }

func (r *partRows) Write(ctx context.Context, fill func(rows.Batch)) error {
	return r.s.commit.write(ctx, func(g *group) { fill(g) })
}

func (r *partRows) Post(ctx context.Context, fill func(rows.Batch)) error {
	_, err := r.s.commit.addToGroup(ctx, func(g *group) { fill(g) })
	return err
}

// appendRowsKey appends the database key of a row.
func appendRowsKey(b []byte, p rows.Partition, key []byte) []byte {
	return append(appendPart(append(b, tRows), p), key...)
}

func rowsKeyLen(p rows.Partition, key []byte) int { return 1 + 1 + 2 + len(p.Name) + len(key) }

// Set implements rows.Batch. It builds the key in the memory of the batch, which saves an
// allocation.
func (t tx) Set(p rows.Partition, key, value []byte) {
	op := t.b.SetDeferred(rowsKeyLen(p, key), len(value))
	appendRowsKey(op.Key[:0], p, key)
	copy(op.Value, value)
	_ = op.Finish()
}

// Delete implements rows.Batch.
func (t tx) Delete(p rows.Partition, key []byte) {
	op := t.b.DeleteDeferred(rowsKeyLen(p, key))
	appendRowsKey(op.Key[:0], p, key)
	_ = op.Finish()
}

// putRows puts rows of one partition into the batch. The parameter prefix is the prefix of their
// keys. putRows builds the keys in the memory of this slice. It returns the prefix again, because
// it may have moved to new memory when a key was appended to it. If insertOnly is true and a row
// with the same key is stored, the stored row stays as it is.
func (t tx) putRows(prefix []byte, rs []rows.Row, insertOnly bool) []byte {
	n := len(prefix)
	for i := range rs {
		prefix = append(prefix[:n], rs[i].Key...)
		switch v := rs[i].Value; {
		case v == nil:
			t.delete(prefix)
		case insertOnly:
			t.insert(prefix, v)
		default:
			t.set(prefix, v)
		}
	}
	return prefix[:n]
}

// lastNumber returns the counter of a partition. The first call reads the counter from the
// database.
func (r *partRows) lastNumber(p rows.Partition) (*uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.lastNumbers[p]; n != nil {
		return n, nil
	}
	key, n := appendPart([]byte{tNumber}, p), uint64(0)
	err := r.get(key, func(v []byte) error {
		switch len(v) {
		case 0:
		case 8:
			n = binary.BigEndian.Uint64(v)
		default:
			return notify.Corrupt("store", fmt.Sprintf("the counter with the key %x", key))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.lastNumbers[p] = &n
	return &n, nil
}

// firstWins is a Merger of Pebble that keeps the oldest value of a key. So a row of Insert
// can be written without first reading whether its key exists. Pebble stores the Name of
// the Merger in the database, so the Name must not change.
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
