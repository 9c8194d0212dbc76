package worker

import (
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// remarkFrom is how long a wait must be for the rows to tell of it: the first
// one of a breaker that opens, and no wait for a probe's answer.
const remarkFrom = 2 * time.Second

// remark makes the rows of the items' envelopes tell readers of a wait until at,
// unless they do already.
func (r *round) remark(refs []ref, at time.Time) {
	now := time.Now()
	if at.Sub(now) < remarkFrom || at.Before(r.remarked.Add(remarkFrom)) {
		return
	}
	c, ok := r.w.cfg.Health.Standing(&r.w.cfg.Routes, now)
	if !ok {
		return
	}
	r.remarked = at
	x := notify.Exception{State: notify.Deferred, Class: c.class, Code: c.Code, Provider: c.Account, Wake: c.RetryAt.UnixMilli()}
	for i := range refs {
		if i == 0 || refs[i].part != refs[i-1].part {
			r.parts[refs[i].part].job.remark(x)
		}
	}
}

// goOn ends what remark made the rows say.
func (r *round) goOn() {
	if r.remarked.IsZero() {
		return
	}
	for _, p := range r.parts {
		p.job.goOn()
	}
}

// remark says in the row what the started receivers wait for, so that readers
// know. It does not wait until that is durable: nothing depends on it.
func (j *job) remark(x notify.Exception) {
	j.handIn.Lock()
	defer j.handIn.Unlock()
	stamp, err := j.p.stamp()
	if err != nil {
		return
	}
	j.mu.Lock()
	j.waits = x
	row := j.snapshotLocked()
	j.mu.Unlock()
	row.Stamp = stamp
	_ = j.p.w.cfg.Committer.Commit(j.p.soft, row, func() {}) // not, when the partition goes
}

// goOn ends what remark said, for the rows to come.
func (j *job) goOn() {
	j.mu.Lock()
	j.waits = notify.Exception{}
	j.mu.Unlock()
}
