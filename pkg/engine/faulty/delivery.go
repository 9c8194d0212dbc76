package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Status misbehaves as its plan says.
type Status struct {
	next engine.Status
	plan *Plan
}

// NewStatus wraps next.
func NewStatus(next engine.Status, p *Plan) engine.Status { return Status{next, p} }

func (w Status) Put(ctx context.Context, rows []notify.Row) error {
	return w.plan.do(ctx, "Status", "Put", func() error { return w.next.Put(ctx, rows) })
}

func (w Status) TakeOver(ctx context.Context, topic string, partition int32) (engine.Tenure, error) {
	return get(ctx, w.plan, "Status", "TakeOver", func() (engine.Tenure, error) { return w.next.TakeOver(ctx, topic, partition) })
}

func (w Status) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return get(ctx, w.plan, "Status", "Resume", func() ([]notify.Row, error) { return w.next.Resume(ctx, t, keys) })
}

func (w Status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return get(ctx, w.plan, "Status", "Get", func() ([]notify.Row, error) { return w.next.Get(ctx, keys) })
}

func (w Status) Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error) {
	return get(ctx, w.plan, "Status", "Chunk", func() ([]notify.Row, error) { return w.next.Chunk(ctx, c) })
}

func (w Status) Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error {
	return w.plan.do(ctx, "Status", "Request", func() error { return w.next.Request(ctx, base, fn) })
}

func (w Status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	return w.plan.do(ctx, "Status", "Scan", func() error { return w.next.Scan(ctx, from, to, fn) })
}

// Timers misbehaves as its plan says.
type Timers struct {
	next engine.Timers
	plan *Plan
}

// NewTimers wraps next.
func NewTimers(next engine.Timers, p *Plan) engine.Timers { return Timers{next, p} }

func (w Timers) Put(ctx context.Context, shards int, ts []engine.Timer) error {
	return w.plan.do(ctx, "Timers", "Put", func() error { return w.next.Put(ctx, shards, ts) })
}

func (w Timers) Scan(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "Timers", "Scan", func() ([]engine.Timer, error) { return w.next.Scan(ctx, p, after, until, max) })
}

func (w Timers) Outline(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	return get(ctx, w.plan, "Timers", "Outline", func() ([]engine.Timer, error) { return w.next.Outline(ctx, p, after, until, max) })
}

func (w Timers) Minutes(ctx context.Context, shard uint16, from, to int64) ([]int64, error) {
	return get(ctx, w.plan, "Timers", "Minutes", func() ([]int64, error) { return w.next.Minutes(ctx, shard, from, to) })
}

func (w Timers) Shard(ctx context.Context, shard uint16) (engine.ShardState, error) {
	return get(ctx, w.plan, "Timers", "Shard", func() (engine.ShardState, error) { return w.next.Shard(ctx, shard) })
}

func (w Timers) Closed(ctx context.Context, shard uint16) (int64, error) {
	return get(ctx, w.plan, "Timers", "Closed", func() (int64, error) { return w.next.Closed(ctx, shard) })
}

func (w Timers) TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (engine.ShardState, error) {
	return get(ctx, w.plan, "Timers", "TakeOver", func() (engine.ShardState, error) { return w.next.TakeOver(ctx, shard, term, owner) })
}

func (w Timers) Advance(ctx context.Context, shard uint16, s engine.ShardState) error {
	return w.plan.do(ctx, "Timers", "Advance", func() error { return w.next.Advance(ctx, shard, s) })
}

func (w Timers) Drop(ctx context.Context, p engine.TimerPartition) error {
	return w.plan.do(ctx, "Timers", "Drop", func() error { return w.next.Drop(ctx, p) })
}

func (w Timers) Pending(ctx context.Context, fn func(*engine.Timer) error) error {
	return w.plan.do(ctx, "Timers", "Pending", func() error { return w.next.Pending(ctx, fn) })
}

// DeadLetters misbehaves as its plan says.
type DeadLetters struct {
	next engine.DeadLetters
	plan *Plan
}

// NewDeadLetters wraps next.
func NewDeadLetters(next engine.DeadLetters, p *Plan) engine.DeadLetters { return DeadLetters{next, p} }

func (w DeadLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	return w.plan.do(ctx, "DeadLetters", "Put", func() error { return w.next.Put(ctx, ds) })
}

func (w DeadLetters) Get(ctx context.Context, id notify.ID, epoch uint16) (engine.DeadLetter, error) {
	return get(ctx, w.plan, "DeadLetters", "Get", func() (engine.DeadLetter, error) { return w.next.Get(ctx, id, epoch) })
}

func (w DeadLetters) Feed(ctx context.Context, caller string, after uint64, max int) ([]engine.DeadLetter, error) {
	return get(ctx, w.plan, "DeadLetters", "Feed", func() ([]engine.DeadLetter, error) { return w.next.Feed(ctx, caller, after, max) })
}

func (w DeadLetters) List(ctx context.Context, f engine.DeadLetterFilter, cursor []byte, max int) ([]engine.DeadLetter, []byte, error) {
	return get2(ctx, w.plan, "DeadLetters", "List", func() ([]engine.DeadLetter, []byte, error) { return w.next.List(ctx, f, cursor, max) })
}

func (w DeadLetters) Walk(ctx context.Context, after, upTo uint64, fn func(*engine.DeadLetter) error) error {
	return w.plan.do(ctx, "DeadLetters", "Walk", func() error { return w.next.Walk(ctx, after, upTo, fn) })
}

func (w DeadLetters) Last(ctx context.Context) (uint64, error) {
	return get(ctx, w.plan, "DeadLetters", "Last", func() (uint64, error) { return w.next.Last(ctx) })
}

func (w DeadLetters) Move(ctx context.Context, ms []engine.LetterMove) ([]bool, error) {
	return get(ctx, w.plan, "DeadLetters", "Move", func() ([]bool, error) { return w.next.Move(ctx, ms) })
}

func (w DeadLetters) Purge(ctx context.Context, now int64) (int, error) {
	return get(ctx, w.plan, "DeadLetters", "Purge", func() (int, error) { return w.next.Purge(ctx, now) })
}

// Holds misbehaves as its plan says.
type Holds struct {
	next engine.Holds
	plan *Plan
}

// NewHolds wraps next.
func NewHolds(next engine.Holds, p *Plan) engine.Holds { return Holds{next, p} }

func (w Holds) Update(ctx context.Context, add, remove []engine.Hold) error {
	return w.plan.do(ctx, "Holds", "Update", func() error { return w.next.Update(ctx, add, remove) })
}

func (w Holds) Get(ctx context.Context, lane string, users []string) ([][]engine.Hold, error) {
	return get(ctx, w.plan, "Holds", "Get", func() ([][]engine.Hold, error) { return w.next.Get(ctx, lane, users) })
}
