package store

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
)

// Hint implements engine.Schedules.
func (c *Contracts) Hint(ctx context.Context, hs []engine.Hint) error {
	add := make([]rows.Row, len(hs))
	for i := range hs {
		if hs[i].Base.IsZero() {
			return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head have a base")
		}
		add[i] = rows.Row{Key: bucketKey(hs[i].Partition) + string(hs[i].Base[:]), Value: []byte{}}
	}
	if len(add) == 0 {
		return nil
	}
	_, err := c.rows.Swap(ctx, rows.Change{Part: tableHints, Add: add})
	return err
}

// Hints implements engine.Schedules.
func (c *Contracts) Hints(ctx context.Context, p engine.TimerPartition) (out []notify.Base, err error) {
	err = c.rows.Scan(ctx, tableHints, rows.Range{Prefix: bucketKey(p)}, func(r rows.Row) (bool, error) {
		if len(r.Key) != bucketLen+len(notify.Base{}) {
			return false, corrupt(r.Key)
		}
		out = append(out, notify.Base([]byte(r.Key[bucketLen:])))
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// AddTimers returns the change that Timers.Put makes.
func AddTimers(shards int, ts []engine.Timer) (rows.Change, error) {
	t := hotTimers(nil)
	add, err := t.adds(shards, ts)
	return rows.Change{Part: t.part, Add: add}, err
}

// ForgetTimers implements engine.Scheduled. It removes single rows: those of moved
// schedules, few beside those that are dropped with their minutes.
func (c *Contracts) ForgetTimers(ctx context.Context, shards int, ts []engine.Timer) error {
	if len(ts) == 0 {
		return nil
	}
	var cs []rows.Change
	for _, t := range []timerTable{hotTimers(c.rows), coldTimers(c.rows)} {
		gone := make([]rows.Row, len(ts))
		for i := range ts {
			gone[i].Key = string(t.appendKey(nil, engine.ShardOf(ts[i].ID, shards), ts[i].FireAt, ts[i].ID))
		}
		cs = append(cs, rows.Change{Part: t.part, Do: gone})
	}
	_, err := c.rows.Swap(ctx, cs...)
	return err
}
