package deadletter

import (
	"context"
	"encoding/json"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Reconciler finds drift and repairs it. Package conserve implements it.
type Reconciler interface {
	// Report checks everything that was accepted after since (zero: everything that is stored). It
	// changes nothing.
	Report(ctx context.Context, since time.Time) (Findings, error)
	// Check decodes a report. It returns notify.KindInvalid if the report was changed, and
	// notify.KindConflict if the report is too old.
	Check(report json.RawMessage) (Findings, error)
	// Apply repairs n findings of a report that Check has accepted, beginning with the finding at
	// index first. It repairs a finding only if nothing has changed since the report, so the
	// caller may repeat Apply. It returns one result for each finding.
	Apply(ctx context.Context, report json.RawMessage, first, n int) ([]Repair, error)
}

// Findings is a report of a Reconciler, with its numbers.
type Findings struct {
	Report json.RawMessage
	Digest string         // digest of the report
	Counts map[string]int // number of findings, by class
	Listed int            // number of findings in the report
	Mend   int            // number of these findings that can be repaired
}

// Repair is the result for one finding. Why is empty if the finding was repaired.
type Repair struct {
	Kind  string `json:"kind"`
	Class string `json:"class"`
	ID    string `json:"id,omitempty"`
	Why   string `json:"why,omitempty"`
}

// Reasons why a finding was not repaired.
const (
	SkipChanged = "changed"        // the finding is not as in the report any more
	SkipPeople  = "left_as_it_is"  // the finding cannot be repaired automatically
	repairPage  = 2000             // findings between two saves of the cursor
	repairLease = "ops-job/repair" // all reconcile jobs share it, so that only one runs at a time
)

func planReconcile(ctx context.Context, m *Manager, spec api.JobSpec) (api.Plan, error) {
	if m.cfg.Reconcile == nil {
		return api.Plan{}, notify.Unavailable("reconcile", 0, nil)
	}
	var since time.Time
	if spec.Filter.Since != 0 {
		since = time.UnixMilli(spec.Filter.Since)
	}
	f, err := m.cfg.Reconcile.Report(ctx, since)
	if err != nil {
		return api.Plan{}, err
	}
	p := reconcilePlan(&f)
	p.Reconcile, p.Made = f.Report, time.Now().UnixMilli()
	p.Approval = m.cfg.ApproveAbove > 0 && p.Entries > m.cfg.ApproveAbove
	return p, nil
}

func reconcilePlan(f *Findings) api.Plan {
	p := api.Plan{
		Spec: api.JobSpec{Kind: KindReconcile, Report: f.Digest}, Digest: f.Digest, Skip: map[string]int{},
		Counts: map[string]map[string]int{"class": f.Counts}, Entries: f.Listed, Send: f.Mend,
	}
	if n := f.Listed - f.Mend; n > 0 {
		p.Skip[SkipPeople] = n
	}
	return p
}

func freezeReport(m *Manager, r *api.JobRequest) (*frozenSet, error) {
	if m.cfg.Reconcile == nil {
		return nil, notify.Unavailable("reconcile", 0, nil)
	}
	if len(r.Report) == 0 {
		return nil, notify.Invalid("no_report", "report", "must be the report of the plan, unchanged")
	}
	f, err := m.cfg.Reconcile.Check(r.Report)
	if err != nil {
		return nil, err
	}
	if f.Digest != r.Digest {
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "stale_plan", Field: "digest", Msg: "the report does not have this digest: send the digest and the report of the same plan"}
	}
	return &frozenSet{plan: reconcilePlan(&f), report: r.Report}, nil
}

// runReconcile repairs the findings of the report, page by page. After a crash it continues after
// the last saved page. If findings of the next page were repaired before the crash, they are then
// reported as changed.
func (r *runner) runReconcile(ctx context.Context) error {
	es, err := r.m.cfg.Jobs.Entries(ctx, r.j.ID, setPagesFrom, 1)
	if err != nil || len(es) == 0 {
		return err
	}
	for at := cursorPosition(r.j.Cursor); at < r.spec.Planned; at = cursorPosition(r.j.Cursor) {
		n := min(repairPage, r.spec.Planned-at)
		var done []Repair
		if err := r.retryWhileAway(ctx, func() error {
			return r.renewingLease(ctx, func(ctx context.Context) (err error) {
				done, err = r.m.cfg.Reconcile.Apply(ctx, es[0].Doc, at, n)
				return err
			})
		}); err != nil {
			return err
		}
		lines := make([]engine.JobEntry, len(done))
		for i := range done {
			if lines[i].Doc, err = json.Marshal(&done[i]); err != nil {
				return err
			}
			lines[i].At = uint64(at+i) + 1
			if done[i].Why == "" {
				r.res.Done++
			} else {
				r.res.Skipped[done[i].Why]++
			}
		}
		r.m.cfg.Hit("job-repaired-before-cursor")
		if err := r.saveCursor(ctx, at+n, lines); err != nil {
			return err
		}
	}
	return nil
}
