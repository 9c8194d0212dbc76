package deadletter

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// TestPurge: jobs that are over go with their reports when their time is over, and
// the oldest when there are too many; what can still run stays.
func TestPurge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const keep = 30 * 24 * time.Hour
		r := newRig(t, func(c *ManagerConfig) { c.Keep, c.Most = keep, 3 })
		now := time.Now()
		add := func(name, state string, ago time.Duration) {
			t.Helper()
			at := now.Add(-ago).UnixMilli()
			j := engine.Job{ID: name, Kind: KindExport, Name: name, State: state, Created: at, Updated: at, Spec: []byte("{}"), Result: []byte("{}")}
			if _, _, err := r.store.Jobs().Create(t.Context(), j, engine.JobEntry{At: 1, Doc: []byte(`{}`)}, engine.JobEntry{At: setPagesFrom + 1, Doc: []byte{2}}); err != nil {
				t.Fatal(err)
			}
		}
		add("old-done", JobDone, keep+time.Minute)
		add("old-cancelled", JobCancelled, 2*keep)
		for _, state := range []string{JobWaiting, JobRunning, JobPaused, JobStopped, JobFailed} {
			add("old-"+state, state, 2*keep)
		}
		for i := range 3 {
			add(fmt.Sprint("done-", i), JobDone, keep-time.Duration(i+1)*time.Minute)
		}
		purged := func(want int, left ...string) {
			t.Helper()
			n, err := r.m.Purge(t.Context(), now)
			if err != nil || n != want {
				t.Errorf("%d went, want %d: %v", n, want, err)
			}
			var ids []string
			jobs, err := r.m.List(t.Context(), math.MaxInt)
			if err != nil {
				t.Fatal(err)
			}
			for i := range jobs {
				ids = append(ids, jobs[i].ID)
				if es, err := r.store.Jobs().Entries(t.Context(), jobs[i].ID, 0, 10); err != nil || len(es) != 2 {
					t.Errorf("%s has %d entries, %v", jobs[i].ID, len(es), err)
				}
			}
			if slices.Sort(ids); !slices.Equal(ids, left) {
				t.Errorf("left are %s, want %s", strings.Join(ids, " "), strings.Join(left, " "))
			}
		}
		open := []string{"old-failed", "old-paused", "old-running", "old-stopped", "old-waiting"}
		purged(2, append([]string{"done-0", "done-1", "done-2"}, open...)...)
		purged(0, append([]string{"done-0", "done-1", "done-2"}, open...)...)
		add("new", JobDone, 0)
		purged(1, append([]string{"done-1", "done-2", "new"}, open...)...) // one too many
		for _, id := range []string{"old-done", "old-cancelled"} {
			if es, err := r.store.Jobs().Entries(t.Context(), id, 0, 10); err != nil || len(es) != 0 {
				t.Errorf("%s: %d entries are left, %v", id, len(es), err)
			}
		}
		acts, err := r.cfg.Audit.Acts(t.Context(), 0, 10)
		if err != nil || len(acts) != 2 || acts[0].Action != "jobs.purge" || acts[0].Counts["jobs"] != 2 || acts[1].Counts["jobs"] != 1 {
			t.Errorf("%+v, %v", acts, err)
		}
	})
}
