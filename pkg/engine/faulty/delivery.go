package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type status struct {
	engine.Status
	plan *Plan
}

// NewStatus wraps next.
func NewStatus(next engine.Status, p *Plan) engine.Status { return status{next, p} }

func (w status) Put(ctx context.Context, rows []notify.Row) error {
	return w.plan.do(ctx, "Status.Put", func() error { return w.Status.Put(ctx, rows) })
}

func (w status) TakeOver(ctx context.Context, topic string, partition int32) (engine.Tenure, error) {
	return get(ctx, w.plan, "Status.TakeOver", func() (engine.Tenure, error) { return w.Status.TakeOver(ctx, topic, partition) })
}

func (w status) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return get(ctx, w.plan, "Status.Resume", func() ([]notify.Row, error) { return w.Status.Resume(ctx, t, keys) })
}

func (w status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return get(ctx, w.plan, "Status.Get", func() ([]notify.Row, error) { return w.Status.Get(ctx, keys) })
}

func (w status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	return w.plan.do(ctx, "Status.Scan", func() error { return w.Status.Scan(ctx, from, to, fn) })
}

type timers struct {
	engine.Timers
	plan *Plan
}

// NewTimers wraps next.
func NewTimers(next engine.Timers, p *Plan) engine.Timers { return timers{next, p} }

func (w timers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	return w.plan.do(ctx, "Timers.Put", func() error { return w.Timers.Put(ctx, shards, ts) })
}

func (w timers) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "Timers.Scan", func() ([]engine.Timer, error) { return w.Timers.Scan(ctx, p, after, until, max) })
}

func (w timers) Outline(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "Timers.Outline", func() ([]engine.Timer, error) { return w.Timers.Outline(ctx, p, after, until, max) })
}

func (w timers) Minutes(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	return get(ctx, w.plan, "Timers.Minutes", func() ([]int64, error) { return w.Timers.Minutes(ctx, shard, from, to) })
}

func (w timers) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	return get(ctx, w.plan, "Timers.Shard", func() (engine.ShardState, error) { return w.Timers.Shard(ctx, shard) })
}

func (w timers) Closed(ctx context.Context, shard uint16) (int64, error) {
	return get(ctx, w.plan, "Timers.Closed", func() (int64, error) { return w.Timers.Closed(ctx, shard) })
}

func (w timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return get(ctx, w.plan, "Timers.TakeOver", func() (engine.ShardState, error) { return w.Timers.TakeOver(ctx, shard, term, owner) })
}

func (w timers) Advance(ctx context.Context, shard uint16, s engine.ShardState) error {
	return w.plan.do(ctx, "Timers.Advance", func() error { return w.Timers.Advance(ctx, shard, s) })
}

func (w timers) Drop(ctx context.Context, p engine.TimerPartition) error {
	return w.plan.do(ctx, "Timers.Drop", func() error { return w.Timers.Drop(ctx, p) })
}

type deadLetters struct {
	engine.DeadLetters
	plan *Plan
}

// NewDeadLetters wraps next.
func NewDeadLetters(next engine.DeadLetters, p *Plan) engine.DeadLetters { return deadLetters{next, p} }

func (w deadLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	return w.plan.do(ctx, "DeadLetters.Put", func() error { return w.DeadLetters.Put(ctx, ds) })
}

type holds struct {
	engine.Holds
	plan *Plan
}

// NewHolds wraps next.
func NewHolds(next engine.Holds, p *Plan) engine.Holds { return holds{next, p} }

func (w holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	return w.plan.do(ctx, "Holds.Update", func() error { return w.Holds.Update(ctx, add, remove) })
}

func (w holds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	return get(ctx, w.plan, "Holds.Get", func() ([][]engine.Hold, error) { return w.Holds.Get(ctx, lane, users) })
}
