package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// By says which operator asks for a change, in which context and request, and for what reason.
type By struct {
	Caller, Context, Reason, Request string
}

// Change is an operator's change of a job's state.
type Change string

// Values of Change.
const (
	Pause   Change = "pause"
	Resume  Change = "resume"
	Cancel  Change = "cancel"
	Approve Change = "approve"
)

// Changes lists all changes.
var Changes = []Change{Pause, Resume, Cancel, Approve}

// changeRules contains, for each change, the new state of the job. whyNo is the text of the error
// if the job's current state does not allow the change (api.JobChanges).
var changeRules = map[Change]struct{ to, whyNo string }{
	Pause:   {JobPaused, "only a running job can be paused"},
	Resume:  {JobRunning, "only a paused, stopped or failed job can be resumed"},
	Cancel:  {JobCancelled, "a job that has ended cannot be cancelled"},
	Approve: {JobRunning, "only a job that waits for an approval can be approved"},
}

// nextState returns the state of the job after the change c. It returns notify.KindConflict if the
// job's current state does not allow c. It returns notify.KindForbidden if c is Approve and the
// operator has made the job.
func (c Change) nextState(j *engine.Job, spec *jobSpec, by By) (string, error) {
	step, ok := changeRules[c]
	switch {
	case !ok:
		return "", notify.Invalid("bad_change", "change", fmt.Sprintf("must be pause, resume, cancel or approve, not %q", string(c)))
	case !slices.Contains(api.JobChanges[j.State], string(c)):
		return "", &notify.Error{Kind: notify.KindConflict, Code: "job_state", Field: "state", Msg: "the job is " + j.State + ": " + step.whyNo}
	case c == Approve && by.Caller == spec.By:
		return "", &notify.Error{Kind: notify.KindForbidden, Code: "own_job", Msg: "an operator other than " + spec.By + ", who made the job, must approve it"}
	}
	return step.to, nil
}

// ChangeState changes the state of a job. It returns notify.KindConflict if the job's current
// state does not allow the change c. It returns notify.KindForbidden if operators approve a job
// that they have made.
func (m *Manager) ChangeState(ctx context.Context, id string, c Change, by By) (api.Job, error) {
	audited := false
	for {
		j, err := m.getJob(ctx, id)
		if err != nil {
			return api.Job{}, err
		}
		spec, res, err := readJob(&j)
		if err != nil {
			return api.Job{}, err
		}
		state, err := c.nextState(&j, &spec, by)
		if err != nil {
			return api.Job{}, err
		}
		if !audited {
			if _, err := m.cfg.Audit.Record(ctx, api.AuditRow{
				Actor: by.Caller, Action: "job." + string(c), Target: id, Context: by.Context, Reason: by.Reason, Request: by.Request, Digest: spec.Digest,
			}); err != nil {
				return api.Job{}, err
			}
			audited = true
		}
		j.State, j.Updated = state, time.Now().UnixMilli()
		res.Why = ""
		switch c {
		case Resume:
			res.resetGuard(cursorPosition(j.Cursor))
		case Approve:
			res.Approved = by.Caller
		case Pause, Cancel:
			res.Why = "by " + by.Caller
		}
		if j.Result, err = json.Marshal(res); err != nil {
			return api.Job{}, err
		}
		j, err = m.cfg.Jobs.Put(ctx, j)
		if notify.KindOf(err) == notify.KindConflict && err != nil {
			continue // the job's runner has just saved the job: read it again
		}
		if err != nil {
			return api.Job{}, err
		}
		m.wake()
		if c == Cancel {
			if err := m.giveBackAfterRun(ctx, &j); err != nil {
				return api.Job{}, err // Run calls giveBackMarks again later
			}
		}
		return apiJob(&j)
	}
}

// giveBackAfterRun waits until the runner of a cancelled job has ended. Then it calls
// giveBackMarks.
func (m *Manager) giveBackAfterRun(ctx context.Context, j *engine.Job) error {
	if ended := m.runnerEnded(j.ID); ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err := m.giveBackMarks(ctx, j)
	return err
}

// runnerEnded returns a channel that is closed when the job's runner in this process has
// ended, or nil if there is no runner.
func (m *Manager) runnerEnded(id string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running[id]
}

// freeMarks calls giveBackMarks, but not while the cancelled job still runs in this process. It
// returns true when giveBackMarks has succeeded, so that it need not be called for this job again.
func (m *Manager) freeMarks(ctx context.Context, j *engine.Job) bool {
	if m.runnerEnded(j.ID) != nil {
		return false // when the runner ends, it wakes Run
	}
	done, err := m.giveBackMarks(ctx, j)
	if err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("dead letters of a cancelled job are still marked as replayed; the next round tries again", "job", j.ID, "err", err)
	}
	return done && err == nil
}

// giveBackMarks changes the state of dead letters from replayed back to dead. A cancelled job has
// marked these letters, but may not have published them: its process died in between, or the log
// was unreachable. While another process runs the job, giveBackMarks does nothing and returns done
// = false. The caller may call it again.
func (m *Manager) giveBackMarks(ctx context.Context, j *engine.Job) (done bool, err error) {
	if j.Kind != KindReplay {
		return true, nil
	}
	lease := leaseOf(j.ID)
	if done, err = m.cfg.Lease.Acquire(ctx, lease, m.cfg.Owner, leaseTime); err != nil || !done {
		return false, err
	}
	defer func() {
		_ = m.cfg.Lease.Release(context.WithoutCancel(ctx), lease, m.cfg.Owner) // if this fails, the lease expires
	}()
	return true, m.unmarkBatch(ctx, j)
}

// unmarkBatch changes letters that have the job's mark back to dead. It reads only the batch that
// begins at the job's cursor, because only in this batch a letter may be marked and not
// published. The caller holds the job's lease, so that no runner marks letters at the same time.
func (m *Manager) unmarkBatch(ctx context.Context, j *engine.Job) error {
	now, ok, err := m.cfg.Jobs.Get(ctx, j.ID)
	if err != nil || !ok {
		return err
	}
	at := cursorPosition(now.Cursor)
	es, err := readEntries(ctx, m, j.ID, at, maxBatch)
	if err != nil {
		return err
	}
	letters, err := readLetters(ctx, m, es)
	if err != nil {
		return err
	}
	var moves []engine.LetterMove
	for _, d := range letters {
		if d != nil && d.State == engine.LetterReplayed && markedByJob(d, j.ID) {
			moves = append(moves, engine.LetterMove{ID: d.ID, Epoch: d.Epoch, From: d.State, FromJob: d.Job, To: engine.LetterDead})
		}
	}
	_, err = m.cfg.Letters.Move(ctx, moves)
	return err
}

// Purge deletes ended jobs and their reports. It deletes each job that ended more than
// ManagerConfig.Keep before now, and then the oldest ended jobs until at most ManagerConfig.Most
// remain. It never deletes a job that runs or can be resumed. Purge writes one row to the audit log
// and returns the number of deleted jobs.
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
		Actor: "notifyd", Action: "jobs.purge", Target: last.ID, Reason: "the jobs ended longer ago than jobs.keep, or there were more ended jobs than jobs.most; the target is the newest deleted job",
		Counts: map[string]int{"jobs": len(old)},
	}); err != nil {
		return 0, err
	}
	for _, i := range old {
		switch err := m.cfg.Jobs.Drop(ctx, jobs[i].ID, jobs[i].Version); {
		case err == nil:
			n++
		case notify.KindOf(err) == notify.KindConflict: // the job has changed since it was listed: the next Purge checks it again
		default:
			return n, err
		}
	}
	return n, nil
}
