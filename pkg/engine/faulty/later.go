package faulty

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Schedules misbehaves as its plan says.
type Schedules struct {
	next engine.Schedules
	plan *Plan
}

// NewSchedules wraps next.
func NewSchedules(next engine.Schedules, p *Plan) engine.Schedules { return Schedules{next, p} }

func (w Schedules) Put(ctx context.Context, ss []engine.Schedule) error {
	return w.plan.do(ctx, "Schedules", "Put", func() error { return w.next.Put(ctx, ss) })
}

func (w Schedules) Get(ctx context.Context, base notify.Base) (engine.Schedule, bool, error) {
	return get2(ctx, w.plan, "Schedules", "Get", func() (engine.Schedule, bool, error) { return w.next.Get(ctx, base) })
}

func (w Schedules) List(ctx context.Context, caller string, after notify.Base, max int) ([]engine.Schedule, error) {
	return get(ctx, w.plan, "Schedules", "List", func() ([]engine.Schedule, error) { return w.next.List(ctx, caller, after, max) })
}

func (w Schedules) Hint(ctx context.Context, hs []engine.Hint) error {
	return w.plan.do(ctx, "Schedules", "Hint", func() error { return w.next.Hint(ctx, hs) })
}

func (w Schedules) Hints(ctx context.Context, p engine.TimerPartition) ([]notify.Base, error) {
	return get(ctx, w.plan, "Schedules", "Hints", func() ([]notify.Base, error) { return w.next.Hints(ctx, p) })
}

func (w Schedules) Head(ctx context.Context, base notify.Base) (engine.ScheduleHead, bool, error) {
	return get2(ctx, w.plan, "Schedules", "Head", func() (engine.ScheduleHead, bool, error) { return w.next.Head(ctx, base) })
}

func (w Schedules) Swap(ctx context.Context, old uint64, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	return get2(ctx, w.plan, "Schedules", "Swap", func() (engine.ScheduleHead, bool, error) { return w.next.Swap(ctx, old, h) })
}

func (w Schedules) Purge(ctx context.Context, before int64, max int) (int, error) {
	return get(ctx, w.plan, "Schedules", "Purge", func() (int, error) { return w.next.Purge(ctx, before, max) })
}

// ColdTimers misbehaves as its plan says.
type ColdTimers struct {
	next engine.ColdTimers
	plan *Plan
}

// NewColdTimers wraps next.
func NewColdTimers(next engine.ColdTimers, p *Plan) engine.ColdTimers { return ColdTimers{next, p} }

func (w ColdTimers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	return w.plan.do(ctx, "ColdTimers", "Put", func() error { return w.next.Put(ctx, shards, ts) })
}

func (w ColdTimers) Scan(ctx context.Context, shard uint16, day int64, after engine.TimerCursor, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "ColdTimers", "Scan", func() ([]engine.Timer, error) { return w.next.Scan(ctx, shard, day, after, max) })
}

func (w ColdTimers) Outline(ctx context.Context, shard uint16, day int64, after engine.TimerCursor, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "ColdTimers", "Outline", func() ([]engine.Timer, error) { return w.next.Outline(ctx, shard, day, after, max) })
}

func (w ColdTimers) Days(ctx context.Context, shard uint16, to int64) ([]int64, error) {
	return get(ctx, w.plan, "ColdTimers", "Days", func() ([]int64, error) { return w.next.Days(ctx, shard, to) })
}

func (w ColdTimers) Drop(ctx context.Context, shard uint16, day int64) error {
	return w.plan.do(ctx, "ColdTimers", "Drop", func() error { return w.next.Drop(ctx, shard, day) })
}

func (w ColdTimers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return w.plan.do(ctx, "ColdTimers", "Pending", func() error { return w.next.Pending(ctx, fn) })
}

// Triggers misbehaves as its plan says.
type Triggers struct {
	next engine.Triggers
	plan *Plan
}

// NewTriggers wraps next.
func NewTriggers(next engine.Triggers, p *Plan) engine.Triggers { return Triggers{next, p} }

func (w Triggers) Create(ctx context.Context, ts []engine.Trigger) ([]bool, error) {
	return get(ctx, w.plan, "Triggers", "Create", func() ([]bool, error) { return w.next.Create(ctx, ts) })
}

func (w Triggers) Get(ctx context.Context, ids []string) ([]engine.Trigger, error) {
	return get(ctx, w.plan, "Triggers", "Get", func() ([]engine.Trigger, error) { return w.next.Get(ctx, ids) })
}

func (w Triggers) Swap(ctx context.Context, ss []engine.TriggerSwap) ([]bool, error) {
	return get(ctx, w.plan, "Triggers", "Swap", func() ([]bool, error) { return w.next.Swap(ctx, ss) })
}

func (w Triggers) List(ctx context.Context, caller string, state engine.TriggerState, after engine.TriggerCursor, max int) ([]engine.Trigger, error) {
	return get(ctx, w.plan, "Triggers", "List", func() ([]engine.Trigger, error) { return w.next.List(ctx, caller, state, after, max) })
}

func (w Triggers) CountOpen(ctx context.Context, caller string, most int) (int, error) {
	return get(ctx, w.plan, "Triggers", "CountOpen", func() (int, error) { return w.next.CountOpen(ctx, caller, most) })
}

func (w Triggers) Purge(ctx context.Context, before int64, max int) (int, error) {
	return get(ctx, w.plan, "Triggers", "Purge", func() (int, error) { return w.next.Purge(ctx, before, max) })
}

// Queue misbehaves as its plan says.
type Queue struct {
	next engine.Queue
	plan *Plan
}

// NewQueue wraps next. A Receive whose answer is lost has taken its messages:
// they are received again when their visibility ends.
func NewQueue(next engine.Queue, p *Plan) engine.Queue { return Queue{next, p} }

func (w Queue) Enqueue(ctx context.Context, ms []engine.Message) error {
	return w.plan.do(ctx, "Queue", "Enqueue", func() error { return w.next.Enqueue(ctx, ms) })
}

func (w Queue) Receive(ctx context.Context, max int, visibility time.Duration) ([]engine.Delivery, error) {
	ds, err := get(ctx, w.plan, "Queue", "Receive", func() ([]engine.Delivery, error) { return w.next.Receive(ctx, max, visibility) })
	if err != nil && ctx.Err() != nil { // an ended ctx is no error, also while a rule holds the call
		return nil, nil
	}
	return ds, err
}

func (w Queue) Extend(ctx context.Context, receipts []string, visibility time.Duration) error {
	return w.plan.do(ctx, "Queue", "Extend", func() error { return w.next.Extend(ctx, receipts, visibility) })
}

func (w Queue) Ack(ctx context.Context, receipts []string) error {
	return w.plan.do(ctx, "Queue", "Ack", func() error { return w.next.Ack(ctx, receipts) })
}

func (w Queue) Release(ctx context.Context, receipt string, delay time.Duration) error {
	return w.plan.do(ctx, "Queue", "Release", func() error { return w.next.Release(ctx, receipt, delay) })
}

func (w Queue) Depth(ctx context.Context) (engine.QueueDepth, error) {
	return get(ctx, w.plan, "Queue", "Depth", func() (engine.QueueDepth, error) { return w.next.Depth(ctx) })
}

func (w Queue) Dead(ctx context.Context, max int) ([]engine.Delivery, error) {
	return get(ctx, w.plan, "Queue", "Dead", func() ([]engine.Delivery, error) { return w.next.Dead(ctx, max) })
}
