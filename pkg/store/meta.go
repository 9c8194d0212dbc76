package store

import (
	"bytes"
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// meta implements engine.Meta, a table of names and values. Each name has a separate partition,
// with one row that contains the value.
type meta struct{ rows rows.Partitions }

// MetaOver returns an engine.Meta whose names and values are stored in p.
func MetaOver(p rows.Partitions) engine.Meta { return meta{p} }

const metaKey = "v"

func partOfMeta(name string) rows.Partition {
	return rows.Partition{Table: tableMeta.Table, Name: name}
}

func (m meta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	got, err := m.rows.Get(ctx, partOfMeta(name), metaKey)
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

func (m meta) PutMeta(ctx context.Context, name string, value []byte) error {
	_, err := m.rows.Swap(ctx, rows.Change{Part: partOfMeta(name), Set: []rows.Row{{Key: metaKey, Value: nonNil(value)}}})
	return err
}

func (m meta) SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error) {
	value = nonNil(value)
	won, err := m.rows.Swap(ctx, rows.Change{
		Part: partOfMeta(name), Expect: []rows.Row{{Key: metaKey, Value: old}}, Set: []rows.Row{{Key: metaKey, Value: value}},
	})
	if won || err != nil {
		return won, err
	}
	have, err := m.GetMeta(ctx, name)
	return have != nil && bytes.Equal(have, value), err
}
