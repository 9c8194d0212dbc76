package faulty

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type schedules struct {
	engine.Schedules
	plan *Plan
}

// NewSchedules wraps inner.
func NewSchedules(inner engine.Schedules, p *Plan) engine.Schedules { return schedules{inner, p} }

func (w schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	return w.plan.Do(ctx, "Schedules.Put", func() error { return w.Schedules.Put(ctx, ss) })
}

func (w schedules) Get(ctx context.Context, base notify.Base) (engine.Schedule, bool, error) {
	return Get2(ctx, w.plan, "Schedules.Get", func() (engine.Schedule, bool, error) { return w.Schedules.Get(ctx, base) })
}

func (w schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	return w.plan.Do(ctx, "Schedules.Hint", func() error { return w.Schedules.Hint(ctx, hs) })
}

func (w schedules) Hints(ctx context.Context, p engine.TimerPartition) ([]notify.Base, error) {
	return Get(ctx, w.plan, "Schedules.Hints", func() ([]notify.Base, error) { return w.Schedules.Hints(ctx, p) })
}

func (w schedules) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	return Get2(ctx, w.plan, "Schedules.Head", func() (engine.ScheduleHead, bool, error) { return w.Schedules.Head(ctx, base) })
}

func (w schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	return Get2(ctx, w.plan, "Schedules.Swap", func() (engine.ScheduleHead, bool, error) { return w.Schedules.Swap(ctx, old, h) })
}

// timerTable wraps the table of Timers or of ColdTimers.
type timerTable struct {
	engine.TimerTable
	plan   *Plan
	prefix string // first part of the method names: "Timers." or "ColdTimers."
}

// NewColdTimers wraps inner.
func NewColdTimers(inner engine.ColdTimers, p *Plan) engine.ColdTimers {
	return timerTable{inner, p, "ColdTimers."}
}

func (w timerTable) Put(ctx context.Context, shards notify.Spread, ts []engine.Timer) error {
	return w.plan.Do(ctx, w.prefix+"Put", func() error { return w.TimerTable.Put(ctx, shards, ts) })
}

func (w timerTable) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return Get(ctx, w.plan, w.prefix+"Scan", func() ([]engine.Timer, error) { return w.TimerTable.Scan(ctx, p, after, until, max) })
}

func (w timerTable) ScanWithoutPayload(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return Get(ctx, w.plan, w.prefix+"ScanWithoutPayload", func() ([]engine.Timer, error) { return w.TimerTable.ScanWithoutPayload(ctx, p, after, until, max) })
}

func (w timerTable) Buckets(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	return Get(ctx, w.plan, w.prefix+"Buckets", func() ([]int64, error) { return w.TimerTable.Buckets(ctx, shard, from, to) })
}

func (w timerTable) Drop(ctx context.Context, p engine.TimerPartition) error {
	return w.plan.Do(ctx, w.prefix+"Drop", func() error { return w.TimerTable.Drop(ctx, p) })
}

type timers struct {
	timerTable
	shards engine.Timers
}

// NewTimers wraps inner.
func NewTimers(inner engine.Timers, p *Plan) engine.Timers {
	return timers{timerTable{inner, p, "Timers."}, inner}
}

func (w timers) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	return Get(ctx, w.plan, "Timers.Shard", func() (engine.ShardState, error) { return w.shards.Shard(ctx, shard) })
}

func (w timers) Closed(ctx context.Context, shard uint16) (int64, error) {
	return Get(ctx, w.plan, "Timers.Closed", func() (int64, error) { return w.shards.Closed(ctx, shard) })
}

func (w timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return Get(ctx, w.plan, "Timers.TakeOver", func() (engine.ShardState, error) { return w.shards.TakeOver(ctx, shard, term, owner) })
}

func (w timers) Advance(ctx context.Context, shard uint16, s engine.ShardState) error {
	return w.plan.Do(ctx, "Timers.Advance", func() error { return w.shards.Advance(ctx, shard, s) })
}

type queue struct {
	engine.Queue
	plan *Plan
}

// NewQueue wraps inner. If a rule with the Loss Applied lets a Receive fail, the messages are in
// flight although no caller has them. They can be received again when their visibility ends.
func NewQueue(inner engine.Queue, p *Plan) engine.Queue { return queue{inner, p} }

func (w queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	return w.plan.Do(ctx, "Queue.Enqueue", func() error { return w.Queue.Enqueue(ctx, ms) })
}

func (w queue) Receive(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	ds, err := Get(ctx, w.plan, "Queue.Receive", func() ([]engine.Delivery, error) { return w.Queue.Receive(ctx, max, visibility) })
	if err != nil && ctx.Err() != nil { // if ctx ends, Receive returns no error, even while a rule holds the call
		return nil, nil
	}
	return ds, err
}

func (w queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	return w.plan.Do(ctx, "Queue.Extend", func() error { return w.Queue.Extend(ctx, receipts, visibility) })
}

func (w queue) Ack(ctx context.Context, receipts []string) error {
	return w.plan.Do(ctx, "Queue.Ack", func() error { return w.Queue.Ack(ctx, receipts) })
}

func (w queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	return w.plan.Do(ctx, "Queue.Release", func() error { return w.Queue.Release(ctx, receipt, delay) })
}

func (w queue) Depth(ctx context.Context) (engine.QueueDepth, error) {
	return Get(ctx, w.plan, "Queue.Depth", func() (engine.QueueDepth, error) { return w.Queue.Depth(ctx) })
}
