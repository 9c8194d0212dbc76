package cassandra

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/store"
)

type holdQueues struct{ s *Store }

// Turn lets only one Update of this process run at a time. This is needed because Swap does not
// compare the stored values.
func (h holdQueues) Turn(ctx context.Context) (func(), error) { return h.s.locks.lock(ctx, "holds") }

// emptyQueueTTL is the TTL of the row of an empty queue. When a queue becomes empty, its
// row is not removed but replaced by an empty value with this TTL.
const emptyQueueTTL = 24 * time.Hour

func (h holdQueues) Load(ctx context.Context, keys []store.HoldKey) ([][]byte, error) {
	return readEach(keys, func(k store.HoldKey) (v []byte, err error) {
		var at int64
		_, err = h.s.get(ctx, `SELECT writetime(data), data FROM holds WHERE lane = ? AND user = ?`, []any{k.Lane, k.User}, &at, &v)
		h.s.clock.observe(at)
		if len(v) == 0 {
			v = nil
		}
		return v, err
	})
}

// Swap stores values without a comparison. Other writers cannot interfere: only the owner
// of a user's partition writes the user's holds, and Turn lets only one Update of this
// process run at a time.
func (h holdQueues) Swap(ctx context.Context, keys []store.HoldKey, _, values [][]byte) (bool, error) {
	var stmts []stmt
	size := 0
	for i, k := range keys {
		data, keep := values[i], 0
		if data == nil {
			data, keep = []byte{}, int(emptyQueueTTL/time.Second)
		}
		one := stmt{`INSERT INTO holds (lane, user, data) VALUES (?, ?, ?) USING TTL ?`, []any{k.Lane, k.User, data, keep}}
		if size += one.size(); size > maxLogged && len(stmts) > 0 {
			if err := h.s.writeAll(ctx, h.s.clock.now(), stmts...); err != nil {
				return false, err
			}
			stmts, size = nil, one.size()
		}
		stmts = append(stmts, one)
	}
	return true, h.s.writeAll(ctx, h.s.clock.now(), stmts...)
}
