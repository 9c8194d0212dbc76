package conserve

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// Audit calls Run, and stores the result for Latest.
func (a *Auditor) Audit(ctx context.Context, since time.Time) (api.Conservation, error) {
	rep, err := a.Run(ctx, since)
	if err == nil {
		a.latest.Store(&rep)
	}
	return rep, err
}

// Latest returns the result of the latest successful Audit, or nil if there was none since the
// start.
func (a *Auditor) Latest() *api.Conservation { return a.latest.Load() }

// Watch audits once per interval until ctx ends, and logs drift. Each audit checks what was accepted
// in the time window before the audit. If window is 0, it checks everything that is stored. If
// interval is 0, Watch never audits.
func (a *Auditor) Watch(ctx context.Context, interval, window time.Duration) error {
	if interval == 0 {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(interval)
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
			a.cfg.Logger.Warn("the audit failed; the next audit tries again", "err", err)
		case rep.Drift > 0:
			a.cfg.Logger.Error("the audit found drift: accepted notifications or triggers have neither an outcome nor a record or timer", "drift", rep.Drift, "classes", rep.Classes, "first", rep.Findings[0].ID)
		}
	}
}
