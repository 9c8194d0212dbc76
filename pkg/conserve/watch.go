package conserve

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// Audit is Run, and keeps what it found for Latest.
func (a *Auditor) Audit(ctx context.Context, since time.Time) (api.Conservation, error) {
	rep, err := a.Run(ctx, since)
	if err == nil {
		a.latest.Store(&rep)
	}
	return rep, err
}

// Latest returns what the latest Audit found; nil: there was none since the start.
func (a *Auditor) Latest() *api.Conservation { return a.latest.Load() }

// Watch audits the window before now every so often until ctx ends, and warns of drift.
// every 0: never; window 0: all that is kept.
func (a *Auditor) Watch(ctx context.Context, every, window time.Duration) error {
	if every == 0 {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		var since time.Time
		if window > 0 {
			since = time.Now().Add(-window)
		}
		rep, err := a.Audit(ctx, since)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			a.cfg.Logger.Warn("audit", "err", err)
		case rep.Drift > 0:
			a.cfg.Logger.Error("audit found drift: what was accepted is neither ended nor on its way", "drift", rep.Drift, "classes", rep.Classes, "first", rep.Findings[0].ID)
		}
	}
}
