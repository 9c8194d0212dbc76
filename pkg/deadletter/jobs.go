package deadletter

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/store"
)

// States of a job. A paused, stopped or failed job can be resumed.
const (
	JobWaiting   = "waiting" // waits for another operator's approval
	JobRunning   = "running"
	JobPaused    = "paused"  // an operator paused it
	JobStopped   = "stopped" // its guard or an open circuit stopped it; Why contains the reason
	JobFailed    = "failed"  // ended with an error that a retry does not solve
	JobDone      = "done"
	JobCancelled = "cancelled"
)

// jobSpec and jobResult are the JSON documents in engine.Job. Their fields have the same names as
// in api.Job, because apiJob decodes both documents into an api.Job.
type jobSpec struct {
	Spec     api.JobSpec `json:"spec"`
	Digest   string      `json:"digest"`
	By       string      `json:"by"`
	Context  string      `json:"context,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Planned  int         `json:"planned"`
	Approval bool        `json:"approval,omitempty"`
}

type jobResult struct {
	Why       string         `json:"why,omitempty"`
	Approved  string         `json:"approved_by,omitempty"`
	Done      int            `json:"done"`
	Skipped   map[string]int `json:"skipped"`
	Exhausted int            `json:"exhausted"`
	Failed    int            `json:"failed"`
	Outcomes  api.Outcomes   `json:"outcomes"`
	ActiveMs  int64          `json:"active_ms"`
	// From is the position at which an operator last started or resumed the job. The guard and the
	// canary start again at this position.
	From     int  `json:"from"`
	CanaryOK bool `json:"canary_ok"` // the canary after From was successful
	// Guarded counts the outcomes of the letters from the position From on. The guard checks only
	// these outcomes.
	Guarded api.Outcomes `json:"guarded"`
	// Known contains the counts of the latest save at which every letter before Known.To had an
	// outcome.
	Known knownOutcomes `json:"known"`
}

type knownOutcomes struct {
	To       int          `json:"to"` // position
	Outcomes api.Outcomes `json:"outcomes"`
	Guarded  api.Outcomes `json:"guarded"`
}

// Log appends records. Append returns nil once every record is durable.
type Log interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Finder finds the receiver of a notification. Find returns notify.KindNotFound or KindGone if the
// notification is no longer stored.
type Finder interface {
	Find(ctx context.Context, id notify.ID) (engine.Found, error)
}

// Triggers enqueues a FAILED trigger again. The result done is false if the trigger is not FAILED
// any more.
type Triggers interface {
	Requeue(ctx context.Context, id string) (done bool, err error)
}

// ManagerConfig configures a Manager. Jobs, Letters, Status, History, Log, Lease, Owner and
// Audit are required.
type ManagerConfig struct {
	Jobs     *store.Jobs
	Letters  engine.DeadLetters
	Status   engine.Status
	History  Finder
	Log      Log
	Triggers Triggers // nil: letters of triggers are skipped
	Lease    engine.Lease
	Owner    string // owner of the leases: this process
	Audit    *AuditLog
	// Reconcile finds and repairs drift. nil: jobs of this kind are refused.
	Reconcile Reconciler
	// Standing returns why no call can be made in a lane now, or "" if a call can be made. nil:
	// replays ignore circuit breakers.
	Standing func(notify.Lane) string
	// Unreachable returns why notifyd would not send to a letter's receiver now, as a code, or ""
	// if it knows no reason. A plan calls it for every letter, so it must not block. nil: plans do
	// not count unreachable receivers.
	Unreachable func(*engine.DeadLetter) string
	// ApproveAbove is a number of entries. If a plan has more entries, another operator must
	// approve it. 0: no plan needs approval.
	ApproveAbove int
	// Keep is how long an ended job is kept, with its report; 0: without limit. Most is how many
	// ended jobs are kept; 0: all.
	Keep time.Duration
	Most int
	// CanaryWait is the longest time to wait for the outcomes of a canary.
	CanaryWait time.Duration `default:"3m"`
	// Poll is the time between two reads of outcomes. The time between two searches for jobs is
	// four times as long.
	Poll   time.Duration `default:"250ms"`
	Logger *slog.Logger  `default:"discard"`
	Hit    func(string)  // called at named points, for tests; nil: not called
}

// Manager makes plans and runs their jobs. Replay, discard, export and reconcile are kinds of jobs.
// It is safe for concurrent use.
type Manager struct {
	cfg  ManagerConfig
	kick chan struct{} // capacity 1; a value makes Run search for jobs at once

	mu      sync.Mutex               // guards running
	running map[string]chan struct{} // by job: the runner in this process; the channel is closed when the runner has ended
}

// NewManager returns a Manager. It starts no goroutine. Run runs the jobs.
func NewManager(cfg ManagerConfig) (*Manager, error) {
	if cfg.Jobs == nil || cfg.Letters == nil || cfg.Status == nil || cfg.History == nil || cfg.Log == nil || cfg.Lease == nil || cfg.Owner == "" || cfg.Audit == nil {
		return nil, errors.New("deadletter.ManagerConfig: the fields Jobs, Letters, Status, History, Log, Lease, Owner and Audit must be set")
	}
	cfg = setting.Fill(cfg)
	if cfg.Hit == nil {
		cfg.Hit = func(string) {}
	}
	return &Manager{cfg: cfg, kick: make(chan struct{}, 1), running: map[string]chan struct{}{}}, nil
}

// Plan reads the index and returns what a job with this spec would do. It changes nothing.
func (m *Manager) Plan(ctx context.Context, spec api.JobSpec) (api.Plan, error) {
	if spec.Kind == KindReconcile {
		return planReconcile(ctx, m, spec)
	}
	p := planner{letters: m.cfg.Letters, now: time.Now, unreachable: m.cfg.Unreachable}
	s, err := p.buildSet(ctx, spec)
	if err != nil {
		return api.Plan{}, err
	}
	s.plan.Approval = m.cfg.ApproveAbove > 0 && s.plan.Entries > m.cfg.ApproveAbove
	return s.plan, nil
}

const maxName = 128

// Apply starts the job of a plan. It reads the set of letters again. If the digest of the set is
// not the plan's digest any more, it returns notify.KindConflict ("stale_plan") and changes
// nothing. If a job of this kind already has the name, Apply returns that job and false. If that job
// was made from another plan, Apply also returns notify.KindConflict ("name_taken").
func (m *Manager) Apply(ctx context.Context, r api.JobRequest, by By) (api.Job, bool, error) {
	if len(r.Name) > maxName {
		return api.Job{}, false, notify.Invalid("too_long", "name", fmt.Sprintf("has %d bytes; the maximum is %d", len(r.Name), maxName))
	}
	if r.Digest == "" {
		return api.Job{}, false, notify.Invalid("no_digest", "digest", "must be the digest of a plan; make a plan with POST /v1/ops/plans")
	}
	if r.Name == "" {
		r.Name = r.Digest
	}
	// Do this before the set is read again: a job with this name may have changed the set already.
	if old, ok, err := m.findByName(ctx, r.Spec.Kind, r.Name); err != nil || ok {
		if err == nil && old.Digest != r.Digest {
			err = &notify.Error{Kind: notify.KindConflict, Code: "name_taken", Field: "name", Msg: "the job " + old.ID + " already has this name, and it was made from another plan"}
		}
		return old, false, err
	}
	s, err := m.freeze(ctx, &r)
	if err != nil {
		return api.Job{}, false, err
	}
	spec := jobSpec{
		Spec: s.plan.Spec, Digest: r.Digest, By: by.Caller, Context: by.Context, Reason: by.Reason, Planned: s.plan.Entries,
		Approval: r.Approval || m.cfg.ApproveAbove > 0 && s.plan.Entries > m.cfg.ApproveAbove,
	}
	now := time.Now()
	j := engine.Job{ID: "job_" + notify.NewBase(now).String(), Kind: r.Spec.Kind, Name: r.Name, State: JobRunning, Created: now.UnixMilli(), Updated: now.UnixMilli()}
	if spec.Approval {
		j.State = JobWaiting
	}
	filter, _ := json.Marshal(spec.Spec.Filter) // strings and numbers always marshal
	if _, err := m.cfg.Audit.Record(ctx, api.AuditRow{
		Actor: by.Caller, Action: "job.apply " + j.Kind, Target: j.ID, Context: by.Context, Reason: by.Reason, Request: by.Request,
		Filter: filter, Digest: r.Digest, Counts: map[string]int{"entries": s.plan.Entries, "send": s.plan.Send},
	}); err != nil {
		return api.Job{}, false, err
	}
	if j.Spec, err = json.Marshal(spec); err != nil {
		return api.Job{}, false, err
	}
	if j.Result, err = json.Marshal(jobResult{Skipped: map[string]int{}}); err != nil {
		return api.Job{}, false, err
	}
	got, created, err := m.cfg.Jobs.Create(ctx, j, s.pages()...)
	if err != nil {
		return api.Job{}, false, err
	}
	m.wake()
	out, err := apiJob(&got)
	return out, created, err
}

// freeze builds the set of a plan again and compares its digest with the plan's digest. If they
// differ, it returns stale_plan.
func (m *Manager) freeze(ctx context.Context, r *api.JobRequest) (*frozenSet, error) {
	if r.Spec.Kind == KindReconcile {
		return freezeReport(m, r)
	}
	if r.Spec.UpTo == 0 {
		return nil, notify.Invalid("not_frozen", "spec.up_to", "must be the value from the spec of a plan; make a plan with POST /v1/ops/plans and send its spec unchanged")
	}
	p := planner{letters: m.cfg.Letters, now: time.Now, keep: true}
	s, err := p.buildSet(ctx, r.Spec)
	if err != nil {
		return nil, err
	}
	if s.plan.Digest != r.Digest {
		msg := "the plan is stale: the dead letters that it selects have changed; make another plan"
		if r.Entries > 0 && r.Entries != s.plan.Entries {
			msg = fmt.Sprintf("the plan is stale: it had %d entries, now %d entries are selected; make another plan", r.Entries, s.plan.Entries)
		}
		return nil, &notify.Error{Kind: notify.KindConflict, Code: "stale_plan", Field: "digest", Msg: msg}
	}
	return s, nil
}

// findByName returns the job with this kind and this name.
func (m *Manager) findByName(ctx context.Context, kind, name string) (api.Job, bool, error) {
	jobs, err := m.cfg.Jobs.List(ctx, 1<<20)
	if err != nil {
		return api.Job{}, false, err
	}
	for i := range jobs {
		if jobs[i].Kind == kind && jobs[i].Name == name {
			j, err := apiJob(&jobs[i])
			return j, true, err
		}
	}
	return api.Job{}, false, nil
}

// List returns jobs, newest first.
func (m *Manager) List(ctx context.Context, max int) ([]api.Job, error) {
	jobs, err := m.cfg.Jobs.List(ctx, max)
	if err != nil {
		return nil, err
	}
	out := make([]api.Job, 0, len(jobs))
	for i := range jobs {
		j, err := apiJob(&jobs[i])
		if err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, nil
}

// Get returns a job. It returns notify.KindNotFound if there is no such job.
func (m *Manager) Get(ctx context.Context, id string) (api.Job, error) {
	j, err := m.getJob(ctx, id)
	if err != nil {
		return api.Job{}, err
	}
	return apiJob(&j)
}

// Report returns up to max lines of a job's report, beginning after the position lastPos. Each line
// is a JSON document: a letter that was not replayed and why, or an exported letter. The result
// next is the value of lastPos for the next call, or 0 at the end.
func (m *Manager) Report(ctx context.Context, id string, lastPos uint64, max int) (lines []json.RawMessage, next uint64, err error) {
	if _, err := m.Get(ctx, id); err != nil {
		return nil, 0, err
	}
	es, err := m.cfg.Jobs.Entries(ctx, id, lastPos, max)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range es {
		if e.At >= setPagesFrom {
			return lines, 0, nil
		}
		lines, next = append(lines, e.Doc), e.At
	}
	if len(es) < max {
		next = 0
	}
	return lines, next, nil
}

// wake makes Run search for jobs at once. It does not block.
func (m *Manager) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// cursorPosition decodes a job's cursor. The result is how many entries of the job's set are done.
func cursorPosition(cursor []byte) int {
	if len(cursor) != 8 {
		return 0
	}
	return int(binary.BigEndian.Uint64(cursor))
}

// readJob decodes the documents of a job.
func readJob(j *engine.Job) (spec jobSpec, res jobResult, err error) {
	err = errors.Join(json.Unmarshal(j.Spec, &spec), json.Unmarshal(j.Result, &res))
	return spec, res, err
}

// apiJob returns a job as the API shows it.
func apiJob(j *engine.Job) (out api.Job, err error) {
	if err := errors.Join(json.Unmarshal(j.Spec, &out), json.Unmarshal(j.Result, &out)); err != nil {
		return api.Job{}, fmt.Errorf("the stored job %s cannot be decoded: %w", j.ID, err)
	}
	out.ID, out.Kind, out.Name, out.State, out.Position = j.ID, j.Kind, j.Name, j.State, cursorPosition(j.Cursor)
	out.Created, out.Updated = j.Created, j.Updated
	if out.ActiveMs > 0 {
		out.Reached = float64(out.Done) / (float64(out.ActiveMs) / 1000)
	}
	return out, nil
}

// getJob reads a job. It returns notify.KindNotFound if there is no such job.
func (m *Manager) getJob(ctx context.Context, id string) (engine.Job, error) {
	j, ok, err := m.cfg.Jobs.Get(ctx, id)
	if err == nil && !ok {
		err = notify.NotFound("job")
	}
	return j, err
}
