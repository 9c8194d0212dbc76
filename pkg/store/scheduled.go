package store

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

// PutScheduled implements engine.Scheduled in one change: a registration waits for one
// fsync instead of two. BenchmarkPutScheduled of pkg/engine/pebble has the numbers.
func (c *Contracts) PutScheduled(ctx context.Context, ss []engine.Schedule, shards int, ts []engine.Timer) error {
	schedules, err := addSchedules(ss)
	if err != nil {
		return err
	}
	timers, err := addTimers(shards, ts)
	if err != nil || len(ss)+len(ts) == 0 {
		return err
	}
	_, err = c.rows.Swap(ctx, schedules, timers)
	return err
}

// addTimers returns the change that Timers.Put makes.
func addTimers(shards int, ts []engine.Timer) (rows.Change, error) {
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
