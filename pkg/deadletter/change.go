package deadletter

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// By is who asks for a change, and why.
type By struct {
	Caller, Context, Reason, Request string
}

// Change is what an operator does to a job.
type Change string

// The changes.
const (
	Pause   Change = "pause"
	Resume  Change = "resume"
	Cancel  Change = "cancel"
	Approve Change = "approve"
)

// Changes are all of them.
var Changes = []Change{Pause, Resume, Cancel, Approve}

// steps say of each change what the state is then, and what is said where the job's
// state does not allow it (api.JobChanges).
var steps = map[Change]struct{ to, whyNo string }{
	Pause:   {JobPaused, "only a running one can be paused"},
	Resume:  {JobRunning, "only a paused, stopped or failed one can be resumed"},
	Cancel:  {JobCancelled, "it is over"},
	Approve: {JobRunning, "it waits for no approval"},
}

// next returns the next state, or the error of one that is not possible.
func (c Change) next(j *engine.Job, spec *jobSpec, by By) (string, error) {
	step, ok := steps[c]
	switch {
	case !ok:
		return "", notify.Invalid("bad_change", "change", "pause, resume, cancel or approve")
	case !slices.Contains(api.JobChanges[j.State], string(c)):
		return "", &notify.Error{Kind: notify.KindConflict, Code: "job_state", Field: "state", Msg: "the job is " + j.State + ": " + step.whyNo}
	case c == Approve && by.Caller == spec.By:
		return "", &notify.Error{Kind: notify.KindForbidden, Code: "own_job", Msg: "another operator than " + spec.By + ", who made it, must approve it"}
	}
	return step.to, nil
}

// Do changes a job. notify.KindConflict: its state does not allow that;
// notify.KindForbidden: an approval by who made it.
func (m *Manager) Do(ctx context.Context, id string, c Change, by By) (api.Job, error) {
	audited := false
	for {
		j, err := m.job(ctx, id)
		if err != nil {
			return api.Job{}, err
		}
		spec, res, err := readJob(&j)
		if err != nil {
			return api.Job{}, err
		}
		state, err := c.next(&j, &spec, by)
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
			res.begin(position(j.Cursor))
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
			continue // its runner has just moved on
		}
		if err != nil {
			return api.Job{}, err
		}
		m.wake()
		if c == Cancel {
			if err := m.release(ctx, &j); err != nil {
				return api.Job{}, err // Run does it
			}
		}
		return view(&j)
	}
}

// release gives back what a cancelled job holds, once its runner has ended.
func (m *Manager) release(ctx context.Context, j *engine.Job) error {
	if ended := m.runs(j.ID); ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	_, err := m.giveBack(ctx, j)
	return err
}

// runs returns what is closed when the job's runner in this process has ended; nil:
// there is none.
func (m *Manager) runs(id string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running[id]
}

// freed reports whether a cancelled job holds no marks any more.
func (m *Manager) freed(ctx context.Context, j *engine.Job) bool {
	if m.runs(j.ID) != nil {
		return false // its end wakes Run
	}
	done, err := m.giveBack(ctx, j)
	if err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("letters of a cancelled job are still marked as replayed, will try again", "job", j.ID, "err", err)
	}
	return done && err == nil
}

// giveBack makes letters dead again that a job had marked which will never run
// again, and may not have published: its process died in between, or the log was
// away. done is false while another process runs it. Repeated, it changes nothing.
func (m *Manager) giveBack(ctx context.Context, j *engine.Job) (done bool, err error) {
	if j.Kind != KindReplay {
		return true, nil
	}
	lease := leaseOf(j.ID)
	if done, err = m.cfg.Lease.Acquire(ctx, lease, m.cfg.Owner, leaseTime); err != nil || !done {
		return false, err
	}
	defer func() {
		_ = m.cfg.Lease.Release(context.WithoutCancel(ctx), lease, m.cfg.Owner) // else it runs out
	}()
	return true, m.unmark(ctx, j)
}

// unmark moves the letters of the batch behind the cursor back that carry a job's
// mark. Nobody may run it meanwhile.
func (m *Manager) unmark(ctx context.Context, j *engine.Job) error {
	now, ok, err := m.cfg.Jobs.Get(ctx, j.ID)
	if err != nil || !ok {
		return err
	}
	at := position(now.Cursor)
	es, err := entries(ctx, m, j.ID, at, maxBatch)
	if err != nil {
		return err
	}
	letters, err := letters(ctx, m, es)
	if err != nil {
		return err
	}
	var moves []engine.LetterMove
	for _, d := range letters {
		if d != nil && d.State == engine.LetterReplayed && ours(d, j.ID) {
			moves = append(moves, engine.LetterMove{ID: d.ID, Epoch: d.Epoch, From: d.State, FromJob: d.Job, To: engine.LetterDead})
		}
	}
	_, err = m.cfg.Letters.Move(ctx, moves)
	return err
}

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
