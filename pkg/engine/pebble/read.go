package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	pebbledb "github.com/cockroachdb/pebble/v2"

	"github.com/notifyd/notifyd/pkg/rows"
)

// These are the tables of the database. doc.go describes their keys and values.
const (
	tFormat = 0x00
	tNumber = 'o'
	tRows   = 'r'
)

// appendPart appends the prefix that all keys of a partition share. The caller has already
// appended the first byte of the key (tRows or tNumber).
func appendPart(b []byte, p rows.Partition) []byte {
	b = binary.BigEndian.AppendUint16(append(b, p.Table), uint16(len(p.Name)))
	return append(b, p.Name...)
}

// prefixEnd returns the smallest key that is greater than every key with this prefix. It
// returns nil if there is no such key.
func prefixEnd(prefix []byte) []byte {
	b := slices.Clone(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}

// reader implements rows.Reader over the store or over a snapshot of the store.
type reader struct{ from pebbledb.Reader }

// view implements rows.View.
type view struct{ reader }

func (v view) Close() error { return translate(v.from.Close()) }

func (r reader) Scan(ctx context.Context, p rows.Partition, in rows.Range, fn func(rows.Row) (bool, error)) (err error) {
	prefix := appendPart([]byte{tRows}, p)
	from := append(bytes.Clone(prefix), in.Prefix...)
	to := prefixEnd(from)
	if in.After >= in.Prefix {
		from = append(append(bytes.Clone(prefix), in.After...), 0)
	}
	if before := append(bytes.Clone(prefix), in.Before...); in.Before != "" && bytes.Compare(before, to) < 0 {
		to = before
	}
	it, err := r.from.NewIter(&pebbledb.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return translate(err)
	}
	defer func() { err = errors.Join(err, translate(it.Close())) }()
	first, next := it.First, it.Next
	if in.Back {
		first, next = it.Last, it.Prev
	}
	for ok := first(); ok; ok = next() {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return translate(err)
		}
		if more, err := fn(rows.Row{Key: string(it.Key()[len(prefix):]), Value: v}); !more || err != nil {
			return err
		}
	}
	return translate(it.Error())
}

func (r reader) GetMany(ctx context.Context, p rows.Partition, n int, key func([]byte, int) []byte, fn func(int, []byte) error) error {
	k := appendPart(append(make([]byte, 0, 64), tRows), p)
	prefix := len(k)
	for i := range n {
		if i&255 == 255 && ctx.Err() != nil { // stops a long GetMany if ctx has ended
			return contextError(ctx)
		}
		k = key(k[:prefix], i)
		if err := r.get(k, func(v []byte) error { return fn(i, v) }); err != nil {
			return err
		}
	}
	return nil
}

// get calls fn with the value of a key, or with nil if the key has no row. The value is
// valid until fn returns.
func (r reader) get(key []byte, fn func(v []byte) error) error {
	v, c, err := r.from.Get(key)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return fn(nil)
	}
	if err != nil {
		return translate(err)
	}
	if v == nil {
		v = []byte{}
	}
	err = fn(v)
	if cerr := c.Close(); err == nil {
		err = translate(cerr)
	}
	return err
}
