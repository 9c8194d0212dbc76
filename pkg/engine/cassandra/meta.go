package cassandra

import (
	"bytes"
	"context"
)

type meta struct{ s *Store }

func (m meta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	var at int64
	var v []byte
	ok, err := m.s.get(ctx, `SELECT writetime(value), value FROM meta WHERE name = ?`, []any{name}, &at, &v)
	if err != nil || !ok {
		return nil, err
	}
	m.s.clock.see(at)
	if v == nil {
		v = []byte{}
	}
	return v, nil
}

func (m meta) PutMeta(ctx context.Context, name string, value []byte) error {
	if value == nil {
		value = []byte{} // null would remove it
	}
	return m.s.write(ctx, m.s.clock.now(), stmt{`INSERT INTO meta (name, value) VALUES (?, ?)`, []any{name, value}})
}

func (m meta) SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error) {
	if value == nil {
		value = []byte{} // null would remove it
	}
	look := func() (verdict, error) {
		var have []byte
		ok, err := m.s.getSerial(ctx, `SELECT value FROM meta WHERE name = ?`, []any{name}, &have)
		switch {
		case err != nil:
			return 0, err
		case ok && bytes.Equal(have, value):
			return done, nil
		case ok == (old != nil) && bytes.Equal(have, old):
			return undone, nil
		}
		return unknown, nil
	}
	won, err := m.s.settle(ctx, "row "+name, look, stmt{`UPDATE meta SET value = ? WHERE name = ? IF value = ?`, []any{value, name, old}})
	if err != nil || won {
		return won, err
	}
	now, err := look()
	return now == done, err
}
