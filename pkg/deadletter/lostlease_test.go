package deadletter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// TestRunnerThatLostItsLease: a runner stands still between its batch and its save,
// and its lease is emptied. Another process takes the job over. The first runner must
// not overwrite the second runner's cursor and counts with its older ones, whether the second
// is in the middle of the job or has ended it.
func TestRunnerThatLostItsLease(t *testing.T) {
	for name, wake := range map[string]string{"runs": JobRunning, "ended": JobDone} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.fail(1000, nil)
				j := r.apply(r.plan(api.JobSpec{Kind: KindReplay, Filter: all, Rate: 250, Canary: -1}), "")
				held, resume := make(chan struct{}), make(chan struct{})
				batches := 0 // of the first runner
				r.m.cfg.Hit = func(at string) {
					if at != "job-published-before-cursor" {
						return
					}
					if batches++; batches == 2 {
						close(held)
						<-resume
					}
				}
				r.run()
				<-held
				if err := r.cfg.Lease.Release(t.Context(), leaseOf(j.ID), "me/"+j.ID); err != nil {
					t.Fatal(err)
				}
				r.cfg.Owner = "other"
				second := r.manager()
				r.run()
				before := r.until(j.ID, wake)
				for before.Position < 500 { // the second runner is ahead
					time.Sleep(100 * time.Millisecond)
					before = r.until(j.ID, wake)
				}
				close(resume)
				synctest.Wait()
				if batches != 2 {
					t.Errorf("the first runner went on: %d batches", batches)
				}
				after, err := second.Get(t.Context(), j.ID)
				if err != nil || after.Position < before.Position || after.State != before.State {
					t.Errorf("cursor %d in state %s became %d in state %s: %v", before.Position, before.State, after.Position, after.State, err)
				}
				j = r.until(j.ID, JobDone)
				r.sums(j)
				r.once(1000)
				if j.Done != 1000 {
					t.Errorf("%d of 1,000 are counted as replayed", j.Done)
				}
			})
		})
	}
}
