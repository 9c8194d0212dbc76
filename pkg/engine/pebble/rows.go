package pebble

import (
	"bytes"
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/rows"
)

// partRows implements rows.Rows. Rows that a Swap compares or stores are locked until
// they are durable. Rows that Number returns are not locked.
type partRows struct {
	s *Store

	mu sync.Mutex
	// last has the number given to the latest change of a partition. The map is
	// guarded by mu, and the numbers by the committer's lock.
	last map[rows.Part]*uint64
}

// appendPart appends what the keys of a partition begin with.
func appendPart(b []byte, p rows.Part) []byte { return appendStr(append(b, p.Table), p.Name) }

func (r *partRows) Get(ctx context.Context, p rows.Part, keys ...string) (_ [][]byte, err error) {
	prefix := string(appendPart([]byte{tRows}, p))
	out, full := make([][]byte, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		full[i] = prefix + key
		if out[i], err = r.s.get([]byte(full[i])); err != nil {
			return nil, err
		}
	}
	return out, r.s.locks.settled(ctx, full)
}

func (r *partRows) Scan(ctx context.Context, p rows.Part, in rows.Range, fn func(rows.Row) (bool, error)) error {
	prefix := appendPart([]byte{tRows}, p)
	walk, all := r.s.each, under(append(bytes.Clone(prefix), in.Prefix...))
	if in.After >= in.Prefix {
		all.From = append(append(bytes.Clone(prefix), in.After...), 0)
	}
	if in.Back {
		walk = r.s.eachBack
	}
	return walk(all, func(k, v []byte) (bool, error) {
		if ctx.Err() != nil {
			return false, translate(context.Cause(ctx))
		}
		return fn(rows.Row{Key: string(k[len(prefix):]), Value: v})
	})
}

func (r *partRows) Swap(ctx context.Context, c rows.Change) (bool, error) {
	prefix := string(appendPart([]byte{tRows}, c.Part))
	var keys []string
	for _, row := range c.If {
		keys = append(keys, prefix+row.Key)
	}
	for _, row := range c.Do {
		keys = append(keys, prefix+row.Key)
	}
	unlock, err := r.s.locks.lock(ctx, keys...)
	if err != nil {
		return false, err
	}
	holds := true
	for i := 0; i < len(c.If) && holds && err == nil; i++ {
		var v []byte
		v, err = r.s.get([]byte(prefix + c.If[i].Key))
		holds = (v == nil) == (c.If[i].Value == nil) && bytes.Equal(v, c.If[i].Value)
	}
	var last *uint64
	if err == nil && holds && c.Numbers > 0 {
		last, err = r.counter(c.Part)
	}
	if err != nil || !holds {
		unlock()
		return false, err
	}
	err = r.s.commit.write(ctx, func(tx tx) {
		tx.rows(prefix, c.Do)
		for i := range c.Numbers {
			*last++
			tx.rows(prefix, c.Number(i, *last))
		}
		if last != nil {
			tx.setUint(appendPart([]byte{tNumber}, c.Part), *last)
		}
	}, func(err error) {
		if err == nil && c.Stored != nil {
			c.Stored()
		}
		unlock()
	})
	return err == nil, err
}

func (t tx) rows(prefix string, rs []rows.Row) {
	for _, row := range rs {
		if k := []byte(prefix + row.Key); row.Value == nil {
			t.delete(k)
		} else {
			t.set(k, row.Value)
		}
	}
}

// counter returns the last number of a partition. It reads it from the disk at first.
func (r *partRows) counter(p rows.Part) (*uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.last[p]; n != nil {
		return n, nil
	}
	n, err := r.s.getUint(appendPart([]byte{tNumber}, p))
	if err != nil {
		return nil, err
	}
	r.last[p] = &n
	return &n, nil
}
