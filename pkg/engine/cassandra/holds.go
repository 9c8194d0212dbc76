package cassandra

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/codec"
	"github.com/notifyd/notifyd/pkg/engine"
)

// Holds returns the contract of strict lanes: one row per lane and user, which
// the worker of the user's partition reads and replaces. The rows of an Update
// go into one logged batch: once the cluster took it all of them are replaced,
// not at one moment. An Update of more than a batch may hold (40 KiB) is cut, and
// an error leaves it open which parts were stored.
func (s *Store) Holds() engine.Holds { return holds{s} }

type holds struct{ s *Store }

const (
	holdVersion = 1
	// emptyQueue is how long a row stays that holds nothing: it is overwritten, not
	// removed, and ends by itself.
	emptyQueue = 24 * time.Hour
)

type holdKey struct{ lane, user string }

func holdFields(c *codec.Codec, h *engine.Hold) {
	c.Raw(h.ID.Base[:])
	codec.Num(c, &h.ID.Index)
	c.Bool(&h.ID.Fan)
	codec.Num(c, &h.Epoch)
	codec.Num(c, &h.Wake)
}

func (h holds) queue(ctx context.Context, k holdKey) (q []engine.Hold, err error) {
	var at int64
	var v []byte
	ok, err := h.s.get(ctx, `SELECT writetime(data), data FROM holds WHERE lane = ? AND user = ?`, []any{k.lane, k.user}, &at, &v)
	if err != nil || !ok {
		return nil, err
	}
	h.s.clock.see(at)
	if !codec.Unpack(v, holdVersion, func(c *codec.Codec) { codec.List(c, &q, holdFields) }) {
		return nil, unread("a queue of holds", v, holdVersion)
	}
	for i := range q {
		q[i].Lane, q[i].User = k.lane, k.user
	}
	return q, nil
}

func (h holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	all := slices.Concat(remove, add)
	index := map[holdKey]int{}
	var keys []holdKey
	for _, x := range all {
		k := holdKey{x.Lane, x.User}
		if _, ok := index[k]; !ok {
			index[k] = len(keys)
			keys = append(keys, k)
		}
	}
	unlock, err := h.s.locks.lock(ctx, "holds")
	if err != nil {
		return err
	}
	defer unlock()
	queues := make([][]engine.Hold, len(keys))
	err = parallel(len(keys), func(i int) (err error) {
		queues[i], err = h.queue(ctx, keys[i])
		return err
	})
	if err != nil {
		return err
	}
	for i, x := range all {
		q := &queues[index[holdKey{x.Lane, x.User}]]
		at := slices.IndexFunc(*q, func(o engine.Hold) bool { return o.ID == x.ID && o.Epoch == x.Epoch })
		switch {
		case i < len(remove) && at >= 0:
			*q = slices.Delete(*q, at, at+1)
		case i < len(remove):
		case at >= 0:
			(*q)[at] = x
		default:
			*q = append(*q, x)
		}
	}
	var stmts []stmt
	size := 0
	for i, k := range keys {
		keep := 0
		if len(queues[i]) == 0 {
			keep = int(emptyQueue / time.Second)
		}
		one := stmt{
			`INSERT INTO holds (lane, user, data) VALUES (?, ?, ?) USING TTL ?`,
			[]any{k.lane, k.user, codec.Pack(holdVersion, func(c *codec.Codec) { codec.List(c, &queues[i], holdFields) }), keep},
		}
		if size += one.size(); size > maxLogged && len(stmts) > 0 {
			if err := h.s.writeAll(ctx, h.s.clock.now(), stmts...); err != nil {
				return err
			}
			stmts, size = nil, one.size()
		}
		stmts = append(stmts, one)
	}
	return h.s.writeAll(ctx, h.s.clock.now(), stmts...)
}

func (h holds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	out := make([][]engine.Hold, len(users))
	err := parallel(len(users), func(i int) (err error) {
		out[i], err = h.queue(ctx, holdKey{lane, users[i]})
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
