package store

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// holds keeps one row per lane and user: its queue, of entries of one size.
type holds struct{ rows rows.Rows }

// held is a hold as it is stored.
type held struct {
	ID    notify.ID
	Epoch uint16
	Wake  int64
}

func (h holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	all := slices.Concat(remove, add)
	places := map[string]int{} // of a queue's key in keys
	var keys []string
	for _, x := range all {
		if k := str(x.Lane) + x.User; places[k] == 0 {
			keys = append(keys, k)
			places[k] = len(keys)
		}
	}
	for {
		stored, err := h.rows.Get(ctx, tableHolds, keys...)
		if err != nil {
			return err
		}
		queues := make([][]held, len(keys))
		for i, v := range stored {
			if queues[i], err = readQueue(keys[i], v); err != nil {
				return err
			}
		}
		for i, x := range all {
			q := &queues[places[str(x.Lane)+x.User]-1]
			now := held{x.ID, x.Epoch, x.Wake}
			at := slices.IndexFunc(*q, func(o held) bool { return o.ID == x.ID && o.Epoch == x.Epoch })
			switch {
			case i < len(remove) && at >= 0:
				*q = slices.Delete(*q, at, at+1)
			case i < len(remove):
			case at >= 0:
				(*q)[at] = now
			default:
				*q = append(*q, now)
			}
		}
		c := rows.Change{Part: tableHolds}
		for i, q := range queues {
			var v []byte
			for _, x := range q {
				if v, err = binary.Append(v, binary.BigEndian, x); err != nil {
					return err
				}
			}
			c.If = append(c.If, rows.Row{Key: keys[i], Value: stored[i]})
			c.Do = append(c.Do, rows.Row{Key: keys[i], Value: v})
		}
		if won, err := h.rows.Swap(ctx, c); won || err != nil {
			return err
		}
	}
}

func readQueue(key string, v []byte) ([]held, error) {
	q := make([]held, len(v)/binary.Size(held{}))
	if n, err := binary.Decode(v, binary.BigEndian, q); err != nil || n != len(v) {
		return nil, corrupt(key)
	}
	return q, nil
}

func (h holds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	keys := make([]string, len(users))
	for i, u := range users {
		keys[i] = str(lane) + u
	}
	stored, err := h.rows.Get(ctx, tableHolds, keys...)
	if err != nil {
		return nil, err
	}
	out := make([][]engine.Hold, len(users))
	for i, v := range stored {
		q, err := readQueue(keys[i], v)
		if err != nil {
			return nil, err
		}
		for _, x := range q {
			out[i] = append(out[i], engine.Hold{Lane: lane, User: users[i], ID: x.ID, Epoch: x.Epoch, Wake: x.Wake})
		}
	}
	return out, nil
}
