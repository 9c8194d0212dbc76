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

// NewStatus wraps inner.
func NewStatus(inner engine.Status, p *Plan) engine.Status { return status{inner, p} }

func (w status) Put(ctx context.Context, rows []notify.Row) error {
	return w.plan.Do(ctx, "Status.Put", func() error { return w.Status.Put(ctx, rows) })
}

func (w status) TakeOver(ctx context.Context, topic string, partition int32) (engine.Tenure, error) {
	return Get(ctx, w.plan, "Status.TakeOver", func() (engine.Tenure, error) { return w.Status.TakeOver(ctx, topic, partition) })
}

func (w status) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	return Get(ctx, w.plan, "Status.Resume", func() ([]notify.Row, error) { return w.Status.Resume(ctx, t, keys) })
}

func (w status) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	return Get(ctx, w.plan, "Status.Get", func() ([]notify.Row, error) { return w.Status.Get(ctx, keys) })
}

func (w status) Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error {
	return w.plan.Do(ctx, "Status.Scan", func() error { return w.Status.Scan(ctx, from, to, fn) })
}

type deadLetters struct {
	engine.DeadLetters
	plan *Plan
}

// NewDeadLetters wraps inner.
func NewDeadLetters(inner engine.DeadLetters, p *Plan) engine.DeadLetters {
	return deadLetters{inner, p}
}

func (w deadLetters) Put(ctx context.Context, ds []engine.DeadLetter) error {
	return w.plan.Do(ctx, "DeadLetters.Put", func() error { return w.DeadLetters.Put(ctx, ds) })
}
