package deadletter

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

const (
	maxBatch   = 500
	leaseTime  = 30 * time.Second
	leaseRenew = 10 * time.Second
)

// Run carries out every job that is running, also those that an earlier process
// left, until ctx ends; then each ends behind its batch.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	t := time.NewTicker(4 * m.cfg.Poll)
	defer t.Stop()
	free := map[string]bool{} // cancelled jobs that hold no marks any more
	for {
		jobs, err := m.cfg.Jobs.List(ctx, 1<<20)
		if err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("jobs cannot be listed", "err", err)
		}
		for i := range jobs {
			switch j := &jobs[i]; {
			case j.State == JobRunning:
				m.start(ctx, &wg, *j)
			case j.State == JobCancelled && !free[j.ID]:
				// Who cancelled it has gone, or the process has died, in between.
				free[j.ID] = m.freed(ctx, j)
			}
		}
		select {
		case <-m.kick:
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func leaseOf(job string) string { return "ops-job/" + job }

// start runs a job unless somebody does.
func (m *Manager) start(ctx context.Context, wg *sync.WaitGroup, j engine.Job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[j.ID] != nil {
		return
	}
	// The job is its owner: two of one lease exclude each other here as well.
	lease, owner := leaseOf(j.ID), m.cfg.Owner+"/"+j.ID
	if j.Kind == KindReconcile {
		lease = repairLease
	}
	got, err := m.cfg.Lease.Acquire(ctx, lease, owner, leaseTime)
	if err != nil || !got {
		return // another process, or job, has it
	}
	ended := make(chan struct{})
	m.running[j.ID] = ended
	wg.Go(func() {
		defer func() {
			// While it still counts as running: the next runner's lease, of the same
			// owner, must not be given away.
			_ = m.cfg.Lease.Release(context.WithoutCancel(ctx), lease, owner) // else it runs out
			m.mu.Lock()
			delete(m.running, j.ID)
			m.mu.Unlock()
			close(ended)
			m.wake() // it may have been resumed meanwhile
		}()
		r := runner{m: m, j: j, lease: lease, owner: owner, renewed: time.Now()}
		if err := r.run(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Error("job", "job", j.ID, "err", err)
		}
	})
}

// runner carries out one job. j is its own copy: every write of it is a compare
// and swap, so an operator's change is never overwritten.
type runner struct {
	m       *Manager
	j       engine.Job
	spec    jobSpec
	res     jobResult
	lease   string
	owner   string
	renewed time.Time
	began   time.Time // of the ActiveMs under way
	watch   watch
	pace    *rate.Limiter
	ramp    time.Time
}

var (
	errLeft = errors.New("the job is not running any more, or not here")
)

// stop is a guard's reason to stop a job.
type stop struct{ why string }

func (s stop) Error() string { return s.why }

func (r *runner) run(ctx context.Context) error {
	// Under the lease: what was listed may be old.
	j, ok, err := r.m.cfg.Jobs.Get(ctx, r.j.ID)
	if err != nil || !ok || j.State != JobRunning {
		return err
	}
	r.j = j
	if r.spec, r.res, err = readJob(&j); err != nil {
		return err
	}
	if r.res.Skipped == nil {
		r.res.Skipped = map[string]int{}
	}
	r.began, r.ramp = time.Now(), time.Now()
	r.watch = watch{m: r.m}
	switch r.spec.Spec.Kind {
	case KindReconcile:
		err = r.reconcile(ctx)
	default:
		err = r.letters(ctx)
	}
	switch why := (stop{}); {
	case errors.Is(err, errLeft), ctx.Err() != nil:
		return nil // it goes on where its cursor is
	case errors.As(err, &why):
		return r.end(ctx, JobStopped, why.why)
	case err != nil:
		return r.end(ctx, JobFailed, err.Error())
	}
	return r.end(ctx, JobDone, "")
}

// end writes the last state, and a row of the audit log with the counts.
func (r *runner) end(ctx context.Context, state, why string) error {
	r.res.Why = why
	counts := map[string]int{"planned": r.spec.Planned, "done": r.res.Done, "exhausted": r.res.Exhaust, "failed": r.res.Failed, "refailed": r.res.Outcomes.Refailed}
	for k, n := range map[string]int{"suppressed": r.res.Outcomes.Suppressed, "expired": r.res.Outcomes.Expired, "cancelled": r.res.Outcomes.Cancelled, "unknown": r.res.Outcomes.Unknown} {
		if n > 0 {
			counts[k] = n
		}
	}
	for k, n := range r.res.Skipped {
		counts["skipped_"+k] = n
	}
	if _, err := r.m.cfg.Audit.Record(ctx, api.AuditRow{
		Actor: "notifyd", Action: "job.end " + r.j.Kind, Target: r.j.ID, Digest: r.spec.Digest, Counts: counts, Result: state, Reason: why,
	}); err != nil {
		return err
	}
	r.j.State = state
	r.began = time.Now() // behind the last batch only outcomes were awaited
	err := r.save(ctx, position(r.j.Cursor), nil)
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// save moves the cursor: with the counts and the report's lines, both or none.
// An operator's change stands, and ends the runner.
func (r *runner) save(ctx context.Context, at int, lines []engine.JobEntry) error {
	now := time.Now()
	r.res.ActiveMs += now.Sub(r.began).Milliseconds()
	r.began = now
	if r.res.Outcomes.Open = len(r.watch.open); r.res.Outcomes.Open == 0 {
		r.res.Known = known{at, r.res.Outcomes, r.res.Guarded}
	}
	mine := r.j
	mine.Cursor = binary.BigEndian.AppendUint64(nil, uint64(at))
	mine.Updated = now.UnixMilli()
	for {
		var err error
		if mine.Result, err = json.Marshal(r.res); err != nil {
			return err
		}
		got, err := r.m.cfg.Jobs.Put(ctx, mine, lines...)
		switch {
		case err == nil:
			r.j = got
			if got.State != JobRunning {
				return errLeft
			}
			return r.keep(ctx)
		case notify.KindOf(err) == notify.KindConflict:
			was, ok, gerr := r.m.cfg.Jobs.Get(ctx, mine.ID)
			if gerr != nil || !ok {
				return errors.Join(errLeft, gerr)
			}
			if position(was.Cursor) != position(r.j.Cursor) {
				return errLeft // somebody else runs it
			}
			var theirs jobResult
			if err := json.Unmarshal(was.Result, &theirs); err != nil {
				return err
			}
			if was.State != JobRunning && mine.State != JobDone { // what is done is done
				mine.State, r.res.Why = was.State, theirs.Why
			}
			r.res.Approved = theirs.Approved
			if theirs.From != r.res.From { // resumed, before this runner had noticed the pause
				r.res.begin(theirs.From)
				for i := range r.watch.open {
					r.watch.open[i].old = true
				}
			}
			mine.Version = was.Version
		case notify.KindOf(err) == notify.KindUnavailable:
			if err := pause(ctx, r.m.cfg.Poll); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// keep renews the lease now and then. Who lost it leaves.
func (r *runner) keep(ctx context.Context) error {
	if time.Since(r.renewed) < leaseRenew {
		return nil
	}
	ok, err := r.m.cfg.Lease.Renew(ctx, r.lease, r.owner, leaseTime)
	if err == nil && !ok {
		ok, err = r.m.cfg.Lease.Acquire(ctx, r.lease, r.owner, leaseTime)
	}
	if err == nil && !ok {
		return errLeft
	}
	if err == nil {
		r.renewed = time.Now()
	}
	if time.Since(r.renewed) > leaseTime {
		return errLeft
	}
	return nil
}

// holding renews the lease while f runs, which may take longer than it lasts.
func (r *runner) holding(ctx context.Context, f func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(leaseRenew)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			if ok, err := r.m.cfg.Lease.Renew(ctx, r.lease, r.owner, leaseTime); err == nil && !ok {
				stop(errLeft)
				return
			}
		}
	})
	err := f(ctx)
	if err == nil {
		r.renewed = time.Now()
	}
	if context.Cause(ctx) == errLeft { //nolint:errorlint // as stop was given it
		err = errLeft
	}
	stop(nil)
	wg.Wait()
	return err
}

// alive reports what an operator did while the job only waited.
func (r *runner) alive(ctx context.Context) error {
	j, ok, err := r.m.cfg.Jobs.Get(ctx, r.j.ID)
	if err == nil && (!ok || j.State != JobRunning) {
		return errLeft
	}
	if err != nil {
		return nil // the store is away: asked again
	}
	return r.keep(ctx)
}

// idle waits, and reports what an operator did meanwhile.
func (r *runner) idle(ctx context.Context, d time.Duration) error {
	return errors.Join(pause(ctx, d), r.alive(ctx))
}

// letters goes through the frozen set in batches.
func (r *runner) letters(ctx context.Context) error {
	spec := &r.spec.Spec
	r.startPace()
	if err := r.again(ctx); err != nil {
		return err
	}
	for at := position(r.j.Cursor); at < r.spec.Planned; at = position(r.j.Cursor) {
		n := r.batchSize(at)
		if n == 0 {
			if err := r.canary(ctx); err != nil {
				return err
			}
			continue
		}
		es, err := entries(ctx, r.m, r.j.ID, at, n)
		if err != nil {
			return err
		}
		if len(es) == 0 {
			return fmt.Errorf("the job's set ends at %d of %d", at, r.spec.Planned)
		}
		if err := r.wait(ctx, len(es)); err != nil {
			return err
		}
		var lines []engine.JobEntry
		err = r.insist(ctx, func() (err error) { lines, err = r.batch(ctx, at, es); return err })
		if err != nil {
			return err
		}
		r.m.cfg.Hit("job-published-before-cursor")
		if err := r.save(ctx, at+len(es), lines); err != nil {
			return err
		}
		if err := r.guard(ctx); err != nil {
			return err
		}
	}
	if spec.Kind != KindReplay {
		return nil
	}
	if !r.res.CanaryOK && spec.Canary > 0 {
		if err := r.canary(ctx); err != nil {
			return err
		}
	}
	return r.settle(ctx)
}

// insist repeats f while something it needs is away. A batch that is repeated
// does the same again: its letters are marked, and its records have the same keys.
func (r *runner) insist(ctx context.Context, f func() error) error {
	was := r.res.copy()
	for {
		err := f()
		if err == nil || notify.KindOf(err) != notify.KindUnavailable && notify.KindOf(err) != notify.KindThrottled {
			return err
		}
		r.res = was.copy()
		r.m.cfg.Logger.Warn("job waits", "job", r.j.ID, "err", err)
		if err := r.idle(ctx, max(r.m.cfg.Poll, notify.RetryAfterOf(err))); err != nil {
			return err
		}
	}
}

// begin makes the guard begin anew at a position.
func (r *jobResult) begin(at int) {
	r.From, r.CanaryOK, r.Guarded, r.Known.Guarded = at, false, api.Outcomes{}, api.Outcomes{}
}

func (r jobResult) copy() jobResult {
	r.Skipped = maps.Clone(r.Skipped)
	return r
}
