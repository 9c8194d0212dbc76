package pebble

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Cancels returns the contract of cancellations.
func (s *Store) Cancels() engine.Cancels { return &s.cancels }

type cancels struct {
	s    *Store
	next uint64 // version given to the latest; under the committer's lock
}

func (c *cancels) load(s *Store) (err error) {
	c.s = s
	c.next, err = s.lastUint(tCancelSeq)
	return err
}

func (c *cancels) Put(ctx context.Context, in engine.Cancel) (uint64, error) {
	if in.Scope == "" {
		return 0, notify.Invalid("bad_cancel", "scope", "a cancellation has a scope")
	}
	k := key(tCancel, in.Scope)
	unlock, err := c.s.locks.lock(ctx, string(k))
	if err != nil {
		return 0, err
	}
	old, ok, err := c.Get(ctx, in.Scope)
	if err != nil || ok {
		unlock()
		return old.Version, err
	}
	v := appendInt64(make([]byte, 8, 32+len(in.Caller)), in.At)
	v = appendLen(v, in.Caller)
	v = appendLen(v, in.By)
	var given uint64
	// Versions are given while the group fills, in the order in which they
	// become visible: see prefs.store.
	err = c.s.commit.write(ctx, func(tx tx) {
		c.next++
		given = c.next
		binary.LittleEndian.PutUint64(v, given)
		tx.set(k, v)
		tx.set(uintKey(tCancelSeq, given), []byte(in.Scope))
	}, func(error) { unlock() })
	if err != nil {
		return 0, err
	}
	return given, nil
}

func (c *cancels) Get(_ context.Context, scope string) (out engine.Cancel, ok bool, err error) {
	k := key(tCancel, scope)
	v, err := c.s.get(k)
	if err != nil || v == nil {
		return out, false, err
	}
	d := reader{b: v}
	out = engine.Cancel{Scope: scope, Version: d.u64(), At: d.int(), Caller: d.string()}
	if len(d.b) > 0 { // a row of an earlier release ends here
		out.By = d.string()
	}
	if !d.done() {
		return engine.Cancel{}, false, corrupt("cancellation", k)
	}
	return out, true, nil
}

func (c *cancels) Changes(ctx context.Context, since uint64, max int) (out []engine.Cancel, err error) {
	if max <= 0 || since == math.MaxUint64 {
		return nil, nil
	}
	err = c.s.each(span{uintKey(tCancelSeq, since+1), []byte{tCancelSeq + 1}}, func(k, v []byte) (bool, error) {
		one, ok, err := c.Get(ctx, string(v))
		if err != nil {
			return false, err
		}
		if !ok {
			still, err := c.s.get(k) // nil: both were purged since the iterator was opened
			if err == nil && still != nil {
				err = corrupt("version without cancellation", k)
			}
			return err == nil, err
		}
		out = append(out, one)
		return len(out) < max, ctx.Err()
	})
	if err != nil {
		return nil, translate(err)
	}
	return out, nil
}
