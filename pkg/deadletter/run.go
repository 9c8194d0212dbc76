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
	maxBatch   = 500              // letters
	leaseTime  = 30 * time.Second // duration of a job's lease
	leaseRenew = 10 * time.Second // between two renewals
)

// Run runs every job whose state is "running", until ctx ends. This includes jobs that an earlier
// process did not finish. When ctx ends, each runner ends after its batch, and Run returns.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	t := time.NewTicker(4 * m.cfg.Poll)
	defer t.Stop()
	free := map[string]bool{} // by id: cancelled jobs for which freeMarks has returned true
	for {
		jobs, err := m.cfg.Jobs.List(ctx, 1<<20)
		if err != nil && ctx.Err() == nil {
			m.cfg.Logger.Warn("the jobs cannot be listed; the next round tries again", "err", err)
		}
		for i := range jobs {
			switch j := &jobs[i]; {
			case j.State == JobRunning:
				m.startRunner(ctx, &wg, *j)
			case j.State == JobCancelled && !free[j.ID]:
				// Normally ChangeState has removed the marks, but not if its request or its process
				// ended too early.
				free[j.ID] = m.freeMarks(ctx, j)
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

// startRunner starts a runner for a job, unless this process or another process already has one.
func (m *Manager) startRunner(ctx context.Context, wg *sync.WaitGroup, j engine.Job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[j.ID] != nil {
		return
	}
	// The owner contains the job's id, so that two jobs of this process cannot hold the same lease
	// at the same time.
	lease, owner := leaseOf(j.ID), m.cfg.Owner+"/"+j.ID
	if j.Kind == KindReconcile {
		lease = repairLease
	}
	got, err := m.cfg.Lease.Acquire(ctx, lease, owner, leaseTime)
	if err != nil || !got {
		return // another process or job has the lease
	}
	ended := make(chan struct{})
	m.running[j.ID] = ended
	wg.Go(func() {
		defer func() {
			// Release the lease before the job is removed from m.running. Otherwise the call could
			// release the lease of the job's next runner, which has the same owner.
			_ = m.cfg.Lease.Release(context.WithoutCancel(ctx), lease, owner) // if this fails, the lease expires
			m.mu.Lock()
			delete(m.running, j.ID)
			m.mu.Unlock()
			close(ended)
			m.wake() // an operator may have resumed the job in the meantime
		}()
		r := runner{m: m, j: j, lease: lease, owner: owner, renewed: time.Now()}
		if err := r.run(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Error("the runner of a job ended with an error; it is started again", "job", j.ID, "err", err)
		}
	})
}

// runner runs one job. Its goroutine owns all fields. j is a copy of the job. The runner writes
// the job by compare and swap, so it never overwrites an operator's change.
type runner struct {
	m       *Manager
	j       engine.Job // the job as it was last saved
	spec    jobSpec
	res     jobResult
	lease   string
	owner   string
	renewed time.Time // when the lease was last renewed
	began   time.Time // ActiveMs includes the time until began
	watch   outcomeWatch
	pace    *rate.Limiter
	ramp    time.Time // when the ramp of the rate began
}

var (
	errLeft = errors.New("the job is not running any more, or another process runs it")
)

// guardStop is an error of the guard or of an open circuit breaker. It stops the job, and its text
// becomes the job's Why.
type guardStop struct{ why string }

func (s guardStop) Error() string { return s.why }

func (r *runner) run(ctx context.Context) error {
	// Read the job again now that the runner has the lease. The listed copy may be old.
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
	r.watch = outcomeWatch{m: r.m}
	switch r.spec.Spec.Kind {
	case KindReconcile:
		err = r.runReconcile(ctx)
	default:
		err = r.runLetters(ctx)
	}
	switch why := (guardStop{}); {
	case errors.Is(err, errLeft), ctx.Err() != nil:
		return nil // the next runner continues at the cursor
	case errors.As(err, &why):
		return r.endJob(ctx, JobStopped, why.why)
	case err != nil:
		return r.endJob(ctx, JobFailed, err.Error())
	}
	return r.endJob(ctx, JobDone, "")
}

// endJob records the end of the job and its counts in the audit log, and saves the last state of
// the job.
func (r *runner) endJob(ctx context.Context, state, why string) error {
	r.res.Why = why
	counts := map[string]int{"planned": r.spec.Planned, "done": r.res.Done, "exhausted": r.res.Exhausted, "failed": r.res.Failed, "refailed": r.res.Outcomes.Refailed}
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
	r.began = time.Now() // the wait for outcomes after the last batch does not count as active
	err := r.saveCursor(ctx, cursorPosition(r.j.Cursor), nil)
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// saveCursor sets the cursor to the given position. In the same write it stores the counts and the
// report's lines. If an operator has changed the job's state, that change is kept, and saveCursor
// returns errLeft, which ends the runner.
func (r *runner) saveCursor(ctx context.Context, position int, lines []engine.JobEntry) error {
	now := time.Now()
	r.res.ActiveMs += now.Sub(r.began).Milliseconds()
	r.began = now
	if r.res.Outcomes.Open = len(r.watch.open); r.res.Outcomes.Open == 0 {
		r.res.Known = knownOutcomes{position, r.res.Outcomes, r.res.Guarded}
	}
	mine := r.j
	mine.Cursor = binary.BigEndian.AppendUint64(nil, uint64(position))
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
			return r.keepLease(ctx)
		case notify.KindOf(err) == notify.KindConflict:
			was, ok, gerr := r.m.cfg.Jobs.Get(ctx, mine.ID)
			if gerr != nil || !ok {
				return errors.Join(errLeft, gerr)
			}
			if cursorPosition(was.Cursor) != cursorPosition(r.j.Cursor) {
				return errLeft // another runner has the job now
			}
			var theirs jobResult
			if err := json.Unmarshal(was.Result, &theirs); err != nil {
				return err
			}
			if was.State != JobRunning && mine.State != JobDone { // a job that has finished stays done
				mine.State, r.res.Why = was.State, theirs.Why
			}
			r.res.Approved = theirs.Approved
			if theirs.From != r.res.From { // an operator paused and resumed the job before this runner noticed the pause
				r.res.resetGuard(theirs.From)
				for i := range r.watch.open {
					r.watch.open[i].unguarded = true
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

// keepLease renews the lease if leaseRenew has passed since the last renewal. It returns errLeft if
// the lease is lost, or if it could not be renewed for leaseTime.
func (r *runner) keepLease(ctx context.Context) error {
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

// renewingLease runs f and renews the lease during that time, because f may take longer than the
// lease lasts. If the lease is lost, it cancels f's context and returns errLeft.
func (r *runner) renewingLease(ctx context.Context, f func(context.Context) error) error {
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
	if context.Cause(ctx) == errLeft { //nolint:errorlint // stop was called with errLeft itself
		err = errLeft
	}
	stop(nil)
	wg.Wait()
	return err
}

// checkStillRunning returns errLeft if an operator has changed the job's state, or if the lease
// is lost.
func (r *runner) checkStillRunning(ctx context.Context) error {
	j, ok, err := r.m.cfg.Jobs.Get(ctx, r.j.ID)
	if err == nil && (!ok || j.State != JobRunning) {
		return errLeft
	}
	if err != nil {
		return nil // the store is unreachable: the next check tries again
	}
	return r.keepLease(ctx)
}

// waitAndCheck waits for d and then calls checkStillRunning.
func (r *runner) waitAndCheck(ctx context.Context, d time.Duration) error {
	return errors.Join(pause(ctx, d), r.checkStillRunning(ctx))
}

// runLetters acts on the letters of the frozen set, batch by batch.
func (r *runner) runLetters(ctx context.Context) error {
	spec := &r.spec.Spec
	r.resetPace()
	if err := r.rewatch(ctx); err != nil {
		return err
	}
	for at := cursorPosition(r.j.Cursor); at < r.spec.Planned; at = cursorPosition(r.j.Cursor) {
		n := r.batchSize(at)
		if n == 0 {
			if err := r.awaitCanary(ctx); err != nil {
				return err
			}
			continue
		}
		es, err := readEntries(ctx, r.m, r.j.ID, at, n)
		if err != nil {
			return err
		}
		if len(es) == 0 {
			return fmt.Errorf("the stored set of the job has only %d of its %d entries", at, r.spec.Planned)
		}
		if err := r.waitPace(ctx, len(es)); err != nil {
			return err
		}
		var lines []engine.JobEntry
		err = r.retryWhileAway(ctx, func() (err error) { lines, err = r.runBatch(ctx, at, es); return err })
		if err != nil {
			return err
		}
		r.m.cfg.Hit("job-published-before-cursor")
		if err := r.saveCursor(ctx, at+len(es), lines); err != nil {
			return err
		}
		if err := r.checkGuard(ctx); err != nil {
			return err
		}
	}
	if spec.Kind != KindReplay {
		return nil
	}
	if !r.res.CanaryOK && spec.Canary > 0 {
		if err := r.awaitCanary(ctx); err != nil {
			return err
		}
	}
	return r.awaitLastOutcomes(ctx)
}

// retryWhileAway calls f again while f fails because a store or the log is unreachable. Each call
// starts with the same counts. A batch may be repeated, because its letters are marked and its
// records have the same keys.
func (r *runner) retryWhileAway(ctx context.Context, f func() error) error {
	was := r.res.copy()
	for {
		err := f()
		if err == nil || notify.KindOf(err) != notify.KindUnavailable && notify.KindOf(err) != notify.KindThrottled {
			return err
		}
		r.res = was.copy()
		r.m.cfg.Logger.Warn("the job waits because a store or the log is unreachable or refuses more requests", "job", r.j.ID, "err", err)
		if err := r.waitAndCheck(ctx, max(r.m.cfg.Poll, notify.RetryAfterOf(err))); err != nil {
			return err
		}
	}
}

// resetGuard makes the guard and the canary start again at a position.
func (r *jobResult) resetGuard(position int) {
	r.From, r.CanaryOK, r.Guarded, r.Known.Guarded = position, false, api.Outcomes{}, api.Outcomes{}
}

func (r jobResult) copy() jobResult {
	r.Skipped = maps.Clone(r.Skipped)
	return r
}
