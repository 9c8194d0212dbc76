package deadletter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestCancelIsCut: the log is away, so a batch is marked and not published; who
// cancels the job hangs up before its runner has ended. Its marks are given back
// all the same.
func TestCancelIsCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(100, nil)
		r.refuse = func() error { return notify.Unavailable("log_away", 0, nil) }
		r.run()
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 250, Canary: -1}), "")
		time.Sleep(time.Second + 10*time.Millisecond) // between two of the runner's looks
		if s := r.states(); s["replayed/0"] != 50 {
			t.Fatalf("%v", s)
		}
		ctx, hangUp := context.WithTimeout(t.Context(), time.Millisecond)
		defer hangUp()
		if _, err := r.m.ChangeState(ctx, j.ID, Cancel, By{Caller: "bob"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if s := r.states(); s["dead/0"] != 100 {
			t.Errorf("%v", s)
		}
		if j := r.until(j.ID, JobCancelled); j.Position != 0 || j.Done != 0 {
			t.Errorf("%+v", j)
		}
	})
}

// TestKilledInACancel: the job is cancelled durably, and the process dies before
// it gives back what an earlier death has left marked. The next start does, but
// not while another process may still run the job.
func TestKilledInACancel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(300, nil)
		j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 250, Canary: -1}), "")
		dead := r.dies("job-marked-before-publish", 2)
		r.run()
		<-dead
		r.halt()
		row, _, err := r.store.Jobs().Get(t.Context(), j.ID)
		if err != nil {
			t.Fatal(err)
		}
		row.State = JobCancelled
		if _, err := r.store.Jobs().Put(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		if ok, err := r.cfg.Lease.Acquire(t.Context(), leaseOf(j.ID), "other", time.Minute); err != nil || !ok {
			t.Fatal(ok, err)
		}
		r.cfg.Owner = "next"
		r.manager()
		r.run()
		time.Sleep(30 * time.Second)
		if s := r.states(); s["replayed/0"] != 100 {
			t.Fatalf("%v: another process has the job", s)
		}
		time.Sleep(time.Minute)
		if s := r.states(); s["replayed/0"] != 50 || s["dead/0"] != 250 {
			t.Errorf("%v: 50 were published", s)
		}
	})
}

// leaseWatch tells of each release.
type leaseWatch struct {
	engine.Lease
	released func(name string)
}

func (l leaseWatch) Release(ctx context.Context, name, owner string) error {
	l.released(name)
	return l.Lease.Release(ctx, name, owner)
}

// TestLeaseOfTheNextRunner: a runner has given its lease back before the next one
// of the job may take it, under the same owner.
func TestLeaseOfTheNextRunner(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.fail(3, nil)
		released := 0
		r.m.cfg.Lease = leaseWatch{r.cfg.Lease, func(name string) {
			released++
			r.m.mu.Lock()
			defer r.m.mu.Unlock()
			for id := range r.m.running {
				if leaseOf(id) == name {
					return
				}
			}
			t.Errorf("%s is given back when the next runner may have it", name)
		}}
		r.run()
		r.until(r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 250, Canary: -1}), "").ID, JobDone)
		synctest.Wait()
		if released != 1 {
			t.Errorf("given back %d times", released)
		}
	})
}
