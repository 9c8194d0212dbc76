package pebble

import (
	"context"
	"encoding/binary"

	"github.com/notifyd/notifyd/pkg/engine"
)

func shardKey(shard uint16) []byte { return binary.BigEndian.AppendUint16([]byte{tShard}, shard) }

func (t timers) Shard(_ context.Context, shard uint16) (st engine.ShardState, err error) {
	v, err := t.s.get(shardKey(shard))
	if err != nil || v == nil {
		return st, err
	}
	d := reader{b: v}
	st.Term, st.Closed, st.Watermark, st.Owner = d.uint(), d.int(), d.int(), d.string()
	if !d.done() {
		return engine.ShardState{}, corrupt("shard", shardKey(shard))
	}
	return st, nil
}

func (t timers) Closed(ctx context.Context, shard uint16) (int64, error) {
	st, err := t.Shard(ctx, shard)
	return st.Closed, err
}

func (t timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return t.update(ctx, shard, term, func(st *engine.ShardState) {
		st.Term++
		st.Owner = owner
	})
}

func (t timers) Advance(ctx context.Context, shard uint16, s engine.ShardState) error {
	_, err := t.update(ctx, shard, s.Term, func(st *engine.ShardState) {
		st.Closed = max(st.Closed, s.Closed)
		st.Watermark = max(st.Watermark, s.Watermark)
	})
	return err
}

// update changes the state of a shard if its term still is term.
func (t timers) update(ctx context.Context, shard uint16, term uint64, change func(*engine.ShardState)) (engine.ShardState, error) {
	k := shardKey(shard)
	unlock, err := t.s.locks.lock(ctx, string(k))
	if err != nil {
		return engine.ShardState{}, err
	}
	st, err := t.Shard(ctx, shard)
	if err == nil && st.Term != term {
		err = engine.StaleTerm()
	}
	if err != nil {
		unlock()
		return engine.ShardState{}, err
	}
	change(&st)
	v := binary.AppendUvarint(nil, st.Term)
	v = appendInt64(v, st.Closed)
	v = appendInt64(v, st.Watermark)
	v = appendLen(v, st.Owner)
	err = t.s.commit.write(ctx, func(tx tx) { tx.set(k, v) }, func(error) { unlock() })
	if err != nil {
		return engine.ShardState{}, err
	}
	return st, nil
}
