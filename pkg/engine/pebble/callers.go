package pebble

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Callers returns the contract of callers.
func (s *Store) Callers() engine.Callers { return callers{s} }

type callers struct{ s *Store }

func (c callers) Get(_ context.Context, id string) (out engine.Caller, ok bool, err error) {
	v, err := c.s.get(key(tCaller, id))
	if err != nil || v == nil {
		return out, false, err
	}
	if json.Unmarshal(v, &out) != nil {
		return engine.Caller{}, false, corrupt("caller", []byte(id))
	}
	return out, true, nil
}

func (c callers) Put(ctx context.Context, in engine.Caller) error {
	if in.ID == "" {
		return notify.Invalid("bad_caller", "id", "a caller has an id")
	}
	k := key(tCaller, in.ID)
	unlock, err := c.s.locks.lock(ctx, string(k))
	if err != nil {
		return err
	}
	old, _, err := c.Get(ctx, in.ID)
	if err == nil && old.Version != in.Version {
		err = &notify.Error{Kind: notify.KindConflict, Code: "caller_changed", Msg: "the caller was changed since it was read"}
	}
	if err != nil {
		unlock()
		return err
	}
	in.Version++
	v, err := json.Marshal(in)
	if err != nil {
		unlock()
		return notify.Invalid("bad_caller", "", "the caller cannot be stored")
	}
	return c.s.commit.write(ctx, func(tx tx) { tx.set(k, v) }, func(error) { unlock() })
}

func (c callers) List(ctx context.Context) (out []engine.Caller, err error) {
	err = c.s.each(under([]byte{tCaller}), func(k, v []byte) (bool, error) {
		var one engine.Caller
		if json.Unmarshal(v, &one) != nil {
			return false, corrupt("caller", k)
		}
		out = append(out, one)
		return true, ctx.Err()
	})
	if err != nil {
		return nil, translate(err)
	}
	return out, nil
}

// Meta returns the table of identity and versions.
func (s *Store) Meta() engine.Meta { return meta{s} }

type meta struct{ s *Store }

func (m meta) GetMeta(_ context.Context, name string) ([]byte, error) {
	return m.s.get(key(tMeta, name))
}

func (m meta) PutMeta(ctx context.Context, name string, value []byte) error {
	return m.s.commit.write(ctx, func(tx tx) { tx.set(key(tMeta, name), value) }, nil)
}

func (m meta) SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error) {
	k := key(tMeta, name)
	unlock, err := m.s.locks.lock(ctx, string(k))
	if err != nil {
		return false, err
	}
	have, err := m.s.get(k)
	stored := have != nil && bytes.Equal(have, value)
	if err != nil || stored || (have == nil) != (old == nil) || !bytes.Equal(have, old) {
		unlock()
		return stored, err
	}
	err = m.s.commit.write(ctx, func(tx tx) { tx.set(k, value) }, func(error) { unlock() })
	return err == nil, err
}
