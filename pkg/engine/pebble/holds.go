package pebble

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Holds returns the contract of strict lanes.
func (s *Store) Holds() engine.Holds { return holds{s} }

// holds keeps one value per lane and user: its queue, of entries of one size.
type holds struct{ s *Store }

// holdLen is base 16, index 4, fan 1, epoch 2, wake 8.
const holdLen = 16 + 4 + 1 + 2 + 8

func holdKey(lane, user string) string {
	return string(append(appendStr([]byte{tHold}, lane), user...))
}

func (h holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	unlock, err := h.s.locks.lock(ctx, string(rune(tHold)))
	if err != nil {
		return err
	}
	queues := map[string][]engine.Hold{}
	for i, x := range slices.Concat(remove, add) {
		k := holdKey(x.Lane, x.User)
		q, ok := queues[k]
		if !ok {
			if q, err = h.queue(x.Lane, x.User); err != nil {
				unlock()
				return err
			}
		}
		at := slices.IndexFunc(q, func(o engine.Hold) bool { return o.ID == x.ID && o.Epoch == x.Epoch })
		switch {
		case i < len(remove) && at >= 0:
			q = slices.Delete(q, at, at+1)
		case i < len(remove):
		case at >= 0:
			q[at] = x
		default:
			q = append(q, x)
		}
		queues[k] = q
	}
	return h.s.commit.write(ctx, func(tx tx) {
		for k, q := range queues {
			if len(q) == 0 {
				tx.delete([]byte(k))
				continue
			}
			v := make([]byte, 0, len(q)*holdLen)
			for _, x := range q {
				v = append(v, x.ID.Base[:]...)
				v = binary.BigEndian.AppendUint32(v, x.ID.Index)
				fan := byte(0)
				if x.ID.Fan {
					fan = 1
				}
				v = append(v, fan)
				v = binary.BigEndian.AppendUint16(v, x.Epoch)
				v = appendInt(v, x.Wake)
			}
			tx.set([]byte(k), v)
		}
	}, func(error) { unlock() })
}

func (h holds) queue(lane, user string) ([]engine.Hold, error) {
	k := []byte(holdKey(lane, user))
	v, err := h.s.get(k)
	if err != nil {
		return nil, err
	}
	if len(v)%holdLen != 0 {
		return nil, corrupt("hold", k)
	}
	var out []engine.Hold
	for ; len(v) > 0; v = v[holdLen:] {
		x := engine.Hold{Lane: lane, User: user, Epoch: binary.BigEndian.Uint16(v[21:]), Wake: readInt(v[23:])}
		x.ID = notify.ID{Base: notify.Base(v[:16]), Index: binary.BigEndian.Uint32(v[16:]), Fan: v[20] == 1}
		out = append(out, x)
	}
	return out, nil
}

func (h holds) Get(_ context.Context, lane string, users []string) ([][]engine.Hold, error) {
	out := make([][]engine.Hold, len(users))
	for i, u := range users {
		var err error
		if out[i], err = h.queue(lane, u); err != nil {
			return nil, err
		}
	}
	return out, nil
}
