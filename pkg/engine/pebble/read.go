package pebble

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"

	pebbledb "github.com/cockroachdb/pebble/v2"
)

// span is a range of keys: From included, To not; nil is open.
type span struct{ From, To []byte }

// under is every key that begins with prefix.
func under(prefix []byte) span { return span{prefix, after(prefix)} }

// get returns a copy of a value, nil when there is none.
func (s *Store) get(key []byte) ([]byte, error) {
	v, c, err := s.db.Get(key)
	if errors.Is(err, pebbledb.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, translate(err)
	}
	out := bytes.Clone(v)
	if out == nil {
		out = []byte{}
	}
	return out, c.Close()
}

func (s *Store) getUint(key []byte) (uint64, error) {
	v, err := s.get(key)
	if err != nil || v == nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, corrupt("counter", key)
	}
	return binary.BigEndian.Uint64(v), nil
}

// each calls fn with the pairs of a span in order, until it returns false. Key
// and value are valid until fn returns.
func each(from pebbledb.Reader, r span, fn func(k, v []byte) (more bool, err error)) error {
	return walk(from, r, (*pebbledb.Iterator).First, (*pebbledb.Iterator).Next, fn)
}

// eachBack is each from the last to the first.
func eachBack(from pebbledb.Reader, r span, fn func(k, v []byte) (more bool, err error)) error {
	return walk(from, r, (*pebbledb.Iterator).Last, (*pebbledb.Iterator).Prev, fn)
}

func walk(from pebbledb.Reader, r span, start, step func(*pebbledb.Iterator) bool, fn func(k, v []byte) (more bool, err error)) (err error) {
	it, err := from.NewIter(&pebbledb.IterOptions{LowerBound: r.From, UpperBound: r.To})
	if err != nil {
		return translate(err)
	}
	defer func() { err = errors.Join(err, translate(it.Close())) }()
	for ok := start(it); ok; ok = step(it) {
		v, err := it.ValueAndErr()
		if err != nil {
			return translate(err)
		}
		if more, err := fn(it.Key(), v); !more || err != nil {
			return err
		}
	}
	return translate(it.Error())
}

// sometimes lets long scans hear that their caller has left.
func sometimes(ctx context.Context, n *int) error {
	if *n++; *n&255 != 0 {
		return nil
	}
	if ctx.Err() != nil {
		return translate(context.Cause(ctx))
	}
	return nil
}
