package faulty

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

type idem struct {
	engine.Idem
	plan *Plan
}

// NewIdem wraps next.
func NewIdem(next engine.Idem, p *Plan) engine.Idem { return idem{next, p} }

func (w idem) Reserve(ctx context.Context, r engine.Reservation, now int64) (engine.Reservation, bool, error) {
	return Get2(ctx, w.plan, "Idem.Reserve", func() (engine.Reservation, bool, error) { return w.Idem.Reserve(ctx, r, now) })
}

func (w idem) TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (bool, error) {
	return Get(ctx, w.plan, "Idem.TakeOver", func() (bool, error) { return w.Idem.TakeOver(ctx, old, owner, leaseUntil) })
}

func (w idem) Freeze(ctx context.Context, r engine.Reservation) error {
	return w.plan.Do(ctx, "Idem.Freeze", func() error { return w.Idem.Freeze(ctx, r) })
}

func (w idem) Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error {
	return w.plan.Do(ctx, "Idem.Finish", func() error { return w.Idem.Finish(ctx, key, status, body, expires) })
}

func (w idem) Release(ctx context.Context, held engine.Reservation) error {
	return w.plan.Do(ctx, "Idem.Release", func() error { return w.Idem.Release(ctx, held) })
}

func (w idem) Purge(ctx context.Context, now int64) (int, error) {
	return Get(ctx, w.plan, "Idem.Purge", func() (int, error) { return w.Idem.Purge(ctx, now) })
}

type prefs struct {
	engine.Prefs
	plan *Plan
}

// NewPrefs wraps next.
func NewPrefs(next engine.Prefs, p *Plan) engine.Prefs { return prefs{next, p} }

func (w prefs) Put(ctx context.Context, p engine.Profile) (uint64, error) {
	return Get(ctx, w.plan, "Prefs.Put", func() (uint64, error) { return w.Prefs.Put(ctx, p) })
}
