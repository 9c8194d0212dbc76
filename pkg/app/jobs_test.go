package app

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
)

// TestReplayATrigger: a trigger whose receiver refused for good is a dead letter like others. Its
// replay calls the receiver again, under the same id.
func TestReplayATrigger(t *testing.T) {
	t.Parallel()
	var good atomic.Bool
	var calls atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		if !good.Load() {
			w.WriteHeader(http.StatusGone)
		}
	}))
	defer receiver.Close()
	cfg := testConfig(t, t.TempDir())
	cfg.Triggers.Plain, cfg.Triggers.Allow, cfg.Triggers.Ports = true, []string{"127.0.0.0/8"}, []int{0}
	l := run(t, cfg, seams{}, func(n *Node) {
		if err := n.SeedCaller(t.Context(), "test", []string{receiver.URL}, "whsec_"+strings.Repeat("A", 32)); err != nil {
			t.Fatal(err)
		}
	})
	soon := time.Now().Add(50 * time.Millisecond)
	made, err := l.client.Trigger(t.Context(), api.Trigger{CallbackURL: receiver.URL + "/x", FireAt: &soon, Exact: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	var ds api.DeadLetterPage
	eventually(t, "its dead letter", func() bool {
		ds, err = l.client.DeadLetters(t.Context(), api.LetterFilter{Channel: "trigger"}, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(ds.Items) == 1
	})
	d := ds.Items[0]
	if d.NotificationID != made.TriggerID || d.Caller != "test" || d.State != "dead" || !strings.HasPrefix(d.Origin, "triggers-dlq/0/") {
		t.Errorf("%+v", d)
	}
	good.Store(true)
	plan, err := l.client.Plan(t.Context(), api.JobSpec{Kind: "replay", Filter: api.LetterFilter{IDs: []string{made.TriggerID}}})
	if err != nil || plan.Entries != 1 {
		t.Fatal(plan, err)
	}
	job, err := l.client.StartJob(t.Context(), api.JobRequest{Spec: plan.Spec, Digest: plan.Digest})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is done", func() bool {
		job, err = l.client.Job(t.Context(), job.ID)
		return err == nil && job.State == "done"
	})
	if job.Done != 1 {
		t.Errorf("%+v", job)
	}
	eventually(t, "it fires", func() bool {
		st, err := l.client.TriggerStatus(t.Context(), made.TriggerID)
		return err == nil && st.Status == "FIRED"
	})
	if n := calls.Load(); n != 2 {
		t.Errorf("%d calls", n)
	}
	// A second plan finds nothing to do.
	again, err := l.client.Plan(t.Context(), plan.Spec)
	if err != nil || again.Entries != 0 {
		t.Errorf("%+v, %v", again, err)
	}
}
