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

// NewCallers wraps inner.
func NewCallers(inner engine.Callers, p *Plan) engine.Callers { return callers{inner, p} }

func (w callers) Put(ctx context.Context, c engine.Caller) error {
	return w.plan.Do(ctx, "Callers.Put", func() error { return w.Callers.Put(ctx, c) })
}

type lease struct {
	engine.Lease
	plan *Plan
}

// NewLease wraps inner.
func NewLease(inner engine.Lease, p *Plan) engine.Lease { return lease{inner, p} }

func (w lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return Get(ctx, w.plan, "Lease.Acquire", func() (bool, error) { return w.Lease.Acquire(ctx, name, owner, ttl) })
}

func (w lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return Get(ctx, w.plan, "Lease.Renew", func() (bool, error) { return w.Lease.Renew(ctx, name, owner, ttl) })
}

func (w lease) Release(ctx context.Context, name, owner string) error {
	return w.plan.Do(ctx, "Lease.Release", func() error { return w.Lease.Release(ctx, name, owner) })
}
