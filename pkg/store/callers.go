package store

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

type callers struct{ rows rows.Rows }

func (c callers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	caller, stored, err := loadRecord[engine.Caller](ctx, c.rows, tableCallers, id)
	return caller, stored != nil && err == nil, err
}

func (c callers) Put(ctx context.Context, in engine.Caller) error {
	if in.ID == "" {
		return notify.Invalid("bad_caller", "id", "a caller must have an id")
	}
	old, stored, err := loadRecord[engine.Caller](ctx, c.rows, tableCallers, in.ID)
	if err == nil && old.Version != in.Version {
		err = errChanged("caller_changed", "caller")
	}
	if err != nil {
		return err
	}
	in.Version++
	v, err := pack("bad_caller", "caller", in)
	if err != nil {
		return err
	}
	won, err := c.rows.Swap(ctx, rows.Change{
		Part: tableCallers, Expect: []rows.Row{{Key: in.ID, Value: stored}}, Set: []rows.Row{{Key: in.ID, Value: v}},
	})
	if err == nil && !won {
		err = errChanged("caller_changed", "caller")
	}
	return err
}

func (c callers) List(ctx context.Context) ([]engine.Caller, error) {
	return scanList(ctx, c.rows, tableCallers, rows.Range{}, math.MaxInt, unpack[engine.Caller])
}
