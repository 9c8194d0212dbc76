package deadletter

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Purge forgets, with their reports, jobs that ended longer than Keep before now,
// and the oldest of those that are over while there are more than Most. What can
// still run, or be resumed, stays. It returns how many went, and records them in
// one row of the audit log.
func (m *Manager) Purge(ctx context.Context, now time.Time) (n int, err error) {
	jobs, err := m.cfg.Jobs.List(ctx, 1<<20) // newest first
	if err != nil {
		return 0, err
	}
	var old []int
	over := 0
	for i := range jobs {
		if s := jobs[i].State; s != JobDone && s != JobCancelled {
			continue
		}
		over++
		late := m.cfg.Keep > 0 && now.Sub(time.UnixMilli(jobs[i].Updated)) > m.cfg.Keep
		if late || m.cfg.Most > 0 && over > m.cfg.Most {
			old = append(old, i)
		}
	}
	if len(old) == 0 {
		return 0, nil
	}
	last := &jobs[old[0]]
	if _, err := m.cfg.Audit.Record(ctx, api.AuditRow{
		Actor: "notifyd", Action: "jobs.purge", Target: last.ID, Reason: "over for longer than jobs.keep, or more than jobs.most; the newest of them is named",
		Counts: map[string]int{"jobs": len(old)},
	}); err != nil {
		return 0, err
	}
	for _, i := range old {
		switch err := m.cfg.Jobs.Drop(ctx, jobs[i].ID, jobs[i].Version); {
		case err == nil:
			n++
		case notify.KindOf(err) == notify.KindConflict: // it changed meanwhile: the next time
		default:
			return n, err
		}
	}
	return n, nil
}
