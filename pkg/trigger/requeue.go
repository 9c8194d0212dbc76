package trigger

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Requeue makes a trigger that failed for good due once more, under the next
// generation, with all its attempts and without a limit to how late it may be: an
// operator asks for it. done is false when it is not FAILED, or not there.
func (r *Reconciler) Requeue(ctx context.Context, id string) (done bool, err error) {
	base, err := parseID(id)
	if err != nil {
		return false, nil //nolint:nilerr // it is not there
	}
	rows, err := r.cfg.Triggers.Get(ctx, []string{id})
	if err != nil {
		return false, unavailable("trigger_store", err)
	}
	t := rows[0]
	if t.ID == "" || t.State != engine.TriggerFailed {
		return false, nil
	}
	old := t.Version
	t = enqueueAnew(t, ceilMillis(time.Now()))
	t.Reason, t.Ended, t.Attempts, t.Deferrals, t.MaxLateness = "replayed", 0, 0, 0, 0
	// Before the swap: a row without one never fires.
	if err := r.cfg.Later.Put(ctx, []engine.Timer{indexRow(base, &t)}); err != nil {
		return false, unavailable("timer_store", err)
	}
	won, err := r.cfg.Triggers.Swap(ctx, []engine.TriggerSwap{{Old: old, New: t}})
	if err != nil {
		return false, unavailable("trigger_store", err)
	}
	r.cfg.Events.swaps(1)
	return won[0], nil
}
