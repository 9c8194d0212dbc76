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

// NewSchedules wraps next.
func NewSchedules(next engine.Schedules, p *Plan) engine.Schedules { return schedules{next, p} }

func (w schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	return w.plan.do(ctx, "Schedules.Put", func() error { return w.Schedules.Put(ctx, ss) })
}

func (w schedules) Get(ctx context.Context, base notify.Base) (engine.Schedule, bool, error) {
	return get2(ctx, w.plan, "Schedules.Get", func() (engine.Schedule, bool, error) { return w.Schedules.Get(ctx, base) })
}

func (w schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	return w.plan.do(ctx, "Schedules.Hint", func() error { return w.Schedules.Hint(ctx, hs) })
}

func (w schedules) Hints(ctx context.Context, p engine.TimerPartition) ([]notify.Base, error) {
	return get(ctx, w.plan, "Schedules.Hints", func() ([]notify.Base, error) { return w.Schedules.Hints(ctx, p) })
}

func (w schedules) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	return get2(ctx, w.plan, "Schedules.Head", func() (engine.ScheduleHead, bool, error) { return w.Schedules.Head(ctx, base) })
}

func (w schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	return get2(ctx, w.plan, "Schedules.Swap", func() (engine.ScheduleHead, bool, error) { return w.Schedules.Swap(ctx, old, h) })
}

type coldTimers struct {
	engine.ColdTimers
	plan *Plan
}

// NewColdTimers wraps next.
func NewColdTimers(next engine.ColdTimers, p *Plan) engine.ColdTimers { return coldTimers{next, p} }

func (w coldTimers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	return w.plan.do(ctx, "ColdTimers.Put", func() error { return w.ColdTimers.Put(ctx, shards, ts) })
}

func (w coldTimers) Scan(ctx context.Context, shard uint16, day int64, after engine.TimerCursor, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "ColdTimers.Scan", func() ([]engine.Timer, error) { return w.ColdTimers.Scan(ctx, shard, day, after, max) })
}

func (w coldTimers) Outline(ctx context.Context, shard uint16, day int64, after engine.TimerCursor, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "ColdTimers.Outline", func() ([]engine.Timer, error) { return w.ColdTimers.Outline(ctx, shard, day, after, max) })
}

func (w coldTimers) Days(ctx context.Context, shard uint16, to int64) ([]int64, error) {
	return get(ctx, w.plan, "ColdTimers.Days", func() ([]int64, error) { return w.ColdTimers.Days(ctx, shard, to) })
}

func (w coldTimers) Drop(ctx context.Context, shard uint16, day int64) error {
	return w.plan.do(ctx, "ColdTimers.Drop", func() error { return w.ColdTimers.Drop(ctx, shard, day) })
}

type queue struct {
	engine.Queue
	plan *Plan
}

// NewQueue wraps next. A Receive whose answer is lost has taken its
// messages: they are received again when their visibility ends.
func NewQueue(next engine.Queue, p *Plan) engine.Queue { return queue{next, p} }

func (w queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	return w.plan.do(ctx, "Queue.Enqueue", func() error { return w.Queue.Enqueue(ctx, ms) })
}

func (w queue) Receive(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	ds, err := get(ctx, w.plan, "Queue.Receive", func() ([]engine.Delivery, error) { return w.Queue.Receive(ctx, max, visibility) })
	if err != nil && ctx.Err() != nil { // an ended ctx is no error, also while a rule holds the call
		return nil, nil
	}
	return ds, err
}

func (w queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	return w.plan.do(ctx, "Queue.Extend", func() error { return w.Queue.Extend(ctx, receipts, visibility) })
}

func (w queue) Ack(ctx context.Context, receipts []string) error {
	return w.plan.do(ctx, "Queue.Ack", func() error { return w.Queue.Ack(ctx, receipts) })
}

func (w queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	return w.plan.do(ctx, "Queue.Release", func() error { return w.Queue.Release(ctx, receipt, delay) })
}

func (w queue) Depth(ctx context.Context) (engine.QueueDepth, error) {
	return get(ctx, w.plan, "Queue.Depth", func() (engine.QueueDepth, error) { return w.Queue.Depth(ctx) })
}

func (w queue) Dead(ctx context.Context, max int) ([]engine.Delivery, error) {
	return get(ctx, w.plan, "Queue.Dead", func() ([]engine.Delivery, error) { return w.Queue.Dead(ctx, max) })
}
