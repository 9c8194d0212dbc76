package faulty

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

type callers struct {
	engine.Callers
	plan *Plan
}

// NewCallers wraps next.
func NewCallers(next engine.Callers, p *Plan) engine.Callers { return callers{next, p} }

func (w callers) Put(ctx context.Context, c engine.Caller) error {
	return w.plan.Do(ctx, "Callers.Put", func() error { return w.Callers.Put(ctx, c) })
}

type lease struct {
	engine.Lease
	plan *Plan
}

// NewLease wraps next.
func NewLease(next engine.Lease, p *Plan) engine.Lease { return lease{next, p} }

func (w lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return Get(ctx, w.plan, "Lease.Acquire", func() (bool, error) { return w.Lease.Acquire(ctx, name, owner, ttl) })
}

func (w lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return Get(ctx, w.plan, "Lease.Renew", func() (bool, error) { return w.Lease.Renew(ctx, name, owner, ttl) })
}

func (w lease) Release(ctx context.Context, name, owner string) error {
	return w.plan.Do(ctx, "Lease.Release", func() error { return w.Lease.Release(ctx, name, owner) })
}

type limits struct {
	engine.Limits
	plan *Plan
}

// NewLimits wraps next.
func NewLimits(next engine.Limits, p *Plan) engine.Limits { return limits{next, p} }

func (w limits) Take(ctx context.Context, bucket string, n int, rate float64, burst int) (int, time.Duration, error) {
	return Get2(ctx, w.plan, "Limits.Take", func() (int, time.Duration, error) { return w.Limits.Take(ctx, bucket, n, rate, burst) })
}

func (w limits) Block(ctx context.Context, account string, until time.Time) error {
	return w.plan.Do(ctx, "Limits.Block", func() error { return w.Limits.Block(ctx, account, until) })
}

func (w limits) Blocked(ctx context.Context, accounts []string) ([]time.Time, error) {
	return Get(ctx, w.plan, "Limits.Blocked", func() ([]time.Time, error) { return w.Limits.Blocked(ctx, accounts) })
}
