package ops

import (
	"context"
	"encoding/json"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Reconciler finds what no longer fits together, and repairs it.
type Reconciler interface {
	// Report looks, and changes nothing. digest covers the report; found counts by
	// class.
	Report(ctx context.Context) (report json.RawMessage, digest string, found map[string]int, err error)
	// Check returns the digest a report carries, notify.KindInvalid if it is not
	// what it was when it was made, notify.KindConflict if it is stale.
	Check(ctx context.Context, report json.RawMessage) (digest string, found map[string]int, err error)
	// Apply repairs what the report lists and what is still as it lists it:
	// repeated, it changes nothing more.
	Apply(ctx context.Context, report json.RawMessage) (changed, skipped map[string]int, err error)
}

func (m *Manager) planReconcile(ctx context.Context) (Plan, error) {
	if m.cfg.Reconcile == nil {
		return Plan{}, notify.Unavailable("reconcile", 0, nil)
	}
	report, digest, found, err := m.cfg.Reconcile.Report(ctx)
	if err != nil {
		return Plan{}, err
	}
	return reconcilePlan(report, digest, found), nil
}

func reconcilePlan(report json.RawMessage, digest string, found map[string]int) Plan {
	p := Plan{
		Spec: Spec{Kind: KindReconcile, Report: digest}, Digest: digest, Skip: map[string]int{},
		Counts: map[string]map[string]int{"class": found}, Reconcile: report,
	}
	for _, n := range found {
		p.Entries += n
	}
	p.Send = p.Entries
	return p
}

func (m *Manager) freezeReport(ctx context.Context, r *Request) (*set, error) {
	if m.cfg.Reconcile == nil {
		return nil, notify.Unavailable("reconcile", 0, nil)
	}
	if len(r.Report) == 0 {
		return nil, notify.Invalid("no_report", "report", "the report of the plan, unchanged")
	}
	digest, found, err := m.cfg.Reconcile.Check(ctx, r.Report)
	if err != nil {
		return nil, err
	}
	if digest != r.Digest {
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "stale_plan", Field: "digest", Msg: "the report is another one than the digest's"}
	}
	return &set{plan: reconcilePlan(nil, digest, found), report: r.Report}, nil
}

// reconcile applies the report; a crash in the middle applies it again, which
// changes nothing more.
func (r *runner) reconcile(ctx context.Context) error {
	es, err := r.m.cfg.Jobs.Entries(ctx, r.j.ID, setAt, 1)
	if err != nil || len(es) == 0 {
		return err
	}
	var changed, skipped map[string]int
	if err := r.insist(ctx, func() (err error) {
		changed, skipped, err = r.m.cfg.Reconcile.Apply(ctx, es[0].Doc)
		return err
	}); err != nil {
		return err
	}
	var lines []engine.JobEntry
	doc, err := json.Marshal(map[string]any{"changed": changed, "skipped": skipped})
	if err != nil {
		return err
	}
	lines = append(lines, engine.JobEntry{At: 1, Doc: doc})
	for _, n := range changed {
		r.res.Done += n
	}
	for class, n := range skipped {
		r.res.Skipped[class] += n
	}
	return r.save(ctx, r.spec.Planned, lines)
}
