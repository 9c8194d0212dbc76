package cassandra

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Meta returns the contract of the small table of names and values. The last
// write of a name wins.
func (s *Store) Meta() engine.Meta { return meta{s} }

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
