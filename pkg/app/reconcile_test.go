package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// callCount counts calls by receiver and user.
type callCount struct {
	mu sync.Mutex
	of map[string]int
}

func (c *callCount) get(user string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[user]
}

type countedCalls struct {
	worker.Provider
	c *callCount
}

func (p countedCalls) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	p.c.mu.Lock()
	for i := range call.Items {
		p.c.of[string(call.Items[i].User)]++
	}
	p.c.mu.Unlock()
	p.Provider.Send(ctx, call, report)
}

func (l *life) reported(t *testing.T) (api.Plan, api.ReconcileReport) {
	t.Helper()
	plan, err := l.client.Plan(t.Context(), api.JobSpec{Kind: "reconcile"})
	if err != nil {
		t.Fatal(err)
	}
	var rep api.ReconcileReport
	if err := json.Unmarshal(plan.Reconcile, &rep); err != nil {
		t.Fatal(err)
	}
	return plan, rep
}

// repaired starts the job of a plan under a name, and waits until the job has ended.
func (l *life) repaired(t *testing.T, plan api.Plan, name string) api.Job {
	t.Helper()
	var row string
	asked := *l.client
	asked.OnAudit = func(id string) { row = id }
	job, err := asked.StartJob(t.Context(), api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Name: name, Report: plan.Reconcile})
	if err != nil {
		t.Fatal(err)
	}
	// The answer names the row of the audit log that says who began the job.
	seq, err := strconv.ParseUint(row, 10, 64)
	if err != nil {
		t.Fatalf("audit id %q", row)
	}
	seq--
	acts, err := l.client.Audit(t.Context(), &seq, 1)
	if err != nil || len(acts) != 1 || acts[0].Target != job.ID || acts[0].Action != "job.apply reconcile" {
		t.Errorf("row %s: %+v, %v", row, acts, err)
	}
	eventually(t, "the job ends", func() bool {
		job, err = l.client.Job(t.Context(), job.ID)
		if err != nil || job.State == deadletter.JobFailed {
			t.Fatal(job, err)
		}
		return job.State == deadletter.JobDone
	})
	return job
}

// TestReconcileNotifications makes each fault, and repairs what the report lists. Each receiver is
// called as often as the policy says. A second pass finds nothing and changes nothing.
func TestReconcileNotifications(t *testing.T) {
	t.Parallel()
	calls := &callCount{of: map[string]int{}}
	s := quick
	s.provider = func(p worker.Provider) worker.Provider { return countedCalls{p, calls} }
	l := run(t, testConfig(t, t.TempDir()), s)
	ctx := t.Context()

	// Six notifications are delivered. Then the data about five of them is damaged.
	made := map[string]string{} // ids by user
	whole := map[string]notify.Row{}
	send := func(user string, n api.Notification) {
		t.Helper()
		res, err := l.client.Send(ctx, n, "")
		if err != nil {
			t.Fatal(err)
		}
		made[user] = res.NotificationID
	}
	users := []string{"stuck", "claimed", "alone", "mailed", "rows", "fine"}
	for _, user := range users {
		n := push(user, "now")
		if user == "mailed" {
			n.Channel, n.Category, n.To.Address = "email", "marketing", "mail@shop.example"
			n.Content.Title = "Hello"
		}
		send(user, n)
	}
	for _, user := range users {
		eventually(t, user+" is sent", func() bool {
			st, err := l.client.Notification(ctx, made[user])
			state, _ := notify.ParseState(st.Status)
			return err == nil && state.Terminal()
		})
		id, err := notify.ParseID(made[user])
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.embedded.history.Find(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, user+" is committed", func() bool {
			b, err := conserve.WorkerLog{Admin: l.Node.admin, Reader: l.Node.reader}.Bounds(ctx)
			return err == nil && b[log.TopicPartition{Topic: f.Topic, Partition: f.LogPart}].Committed > f.Offset
		})
		rows, err := l.embedded.store.Status().Chunk(ctx, f.Envelope.Chunk)
		if err != nil || len(rows) == 0 {
			t.Fatal(len(rows), err)
		}
		whole[user] = rows[0]
	}
	fan, err := l.client.Fanout(ctx, fanout(300), "")
	if err != nil {
		t.Fatal(err)
	}
	l.delivered(t, fan.FirstID, 300)
	plan, rep := l.reported(t)
	if plan.Entries != 0 || len(rep.Findings) != 0 || rep.Notifications != 306 {
		t.Fatalf("before any fault: %+v", rep)
	}
	change := func(user string, edit func(*notify.Row)) {
		t.Helper()
		r := whole[user]
		edit(&r)
		if err := l.embedded.store.Status().Put(ctx, []notify.Row{r}); err != nil {
			t.Fatal(err)
		}
	}
	// This receiver was deferred, and its timer is gone.
	wake := time.Now().Add(time.Second).UnixMilli()
	change("stuck", func(r *notify.Row) {
		r.Default = notify.Exception{State: notify.Deferred, Wake: wake, Code: "quiet_hours"}
	})
	// This receiver was claimed, and the group's position is already past its record.
	change("claimed", func(r *notify.Row) {
		r.Done, r.DoneUpTo, r.StartedUpTo, r.Starts, r.Default = false, 0, 1, 1, notify.Exception{}
	})
	// The group's position is past the record, and the row says nothing.
	unknown := func(r *notify.Row) { r.Done, r.DoneUpTo, r.StartedUpTo, r.Default = false, 0, 0, notify.Exception{} }
	change("alone", unknown)
	change("mailed", unknown)
	// The same for a fan-out, in the middle of each chunk.
	base, err := notify.ParseID(fan.FirstID)
	if err != nil {
		t.Fatal(err)
	}
	var chunks []notify.Row
	if err := l.embedded.store.Status().Request(ctx, base.Base, func(r *notify.Row) error {
		chunks = append(chunks, *r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	claimed, passed := 0, 0
	for i := range chunks {
		r := &chunks[i]
		r.Done, r.DoneUpTo, r.StartedUpTo, r.Starts = false, r.Count/3, 2*r.Count/3, 1
		claimed += int(r.StartedUpTo - r.DoneUpTo)
		passed += int(r.Count - r.StartedUpTo)
	}
	eventually(t, "the fan-out is committed", func() bool {
		b, err := conserve.WorkerLog{Admin: l.Node.admin, Reader: l.Node.reader}.Bounds(ctx)
		return err == nil && !slices.ContainsFunc(chunks, func(r notify.Row) bool {
			return b[log.TopicPartition{Topic: r.Topic, Partition: r.LogPart}].Committed <= r.Offset
		})
	})
	if err := l.embedded.store.Status().Put(ctx, chunks); err != nil {
		t.Fatal(err)
	}
	// A row of a notification that nobody has accepted.
	orphan := notify.NewBase(time.Now())
	change("rows", func(r *notify.Row) { r.Key.Chunk.Base = orphan })
	// This notification was scheduled, and its timer is gone.
	later := push("missing", "later")
	at := time.Now().Add(3 * time.Hour)
	later.ScheduledAt = &at
	send("missing", later)
	drop := map[engine.TimerPartition]bool{}
	if err := l.embedded.store.Timers().Pending(ctx, func(tm *engine.Timer) error {
		drop[engine.TimerPartition{Bucket: tm.FireAt / 60_000, Shard: engine.ShardOf(tm.ID, notify.SpreadOver(l.cfg.Timers.Shards))}] = true
		return nil
	}); err != nil || len(drop) != 1 {
		t.Fatal(drop, err)
	}
	for p := range drop {
		if err := l.embedded.store.Timers().Drop(ctx, p); err != nil {
			t.Fatal(err)
		}
	}

	plan, rep = l.reported(t)
	want := map[string]string{
		made["stuck"]: conserve.Stuck, made["claimed"]: conserve.ClaimExpired, made["alone"]: conserve.RecordAlone,
		made["mailed"]: conserve.RecordAlone, made["missing"]: conserve.Missing, notify.ID{Base: orphan}.String(): conserve.StatusAlone,
	}
	got := map[string]string{}
	for _, f := range rep.Findings {
		if !strings.HasPrefix(f.ID, "ntf_"+base.Base.String()) {
			got[f.ID] = f.Class
		}
	}
	if !maps.Equal(got, want) || plan.Entries != len(want)+claimed+passed || plan.Send != 4+claimed+passed ||
		rep.Counts[conserve.RecordAlone] != 2+passed || rep.Counts[conserve.ClaimExpired] != 1+claimed {
		t.Fatalf("found %v, want %v\n%+v", got, want, plan)
	}

	job := l.repaired(t, plan, "first")
	if job.Done != 4+claimed+passed || job.Skipped[deadletter.SkipPeople] != 2 || job.Planned != 6+claimed+passed {
		t.Errorf("%+v", job)
	}
	for _, user := range []string{"stuck", "claimed", "alone"} {
		l.becomes(t, made[user], "DELIVERED")
	}
	// A notification that may have been sent is not sent again if that would be worse than not to
	// know.
	l.becomes(t, made["mailed"], "UNKNOWN")
	l.delivered(t, fan.FirstID, 300)
	called := func(when string) {
		t.Helper()
		for user, n := range map[string]int{"stuck": 2, "claimed": 2, "alone": 2, "mailed": 1, "fine": 1} {
			if calls.get(user) != n {
				t.Errorf("%s: %s was called %d times, want %d", when, user, calls.get(user), n)
			}
		}
		sum := 0
		for i := range 300 {
			sum += calls.get(fmt.Sprint("user-", i))
		}
		if sum != 300+claimed+passed {
			t.Errorf("%s: the fan-out's receivers were called %d times, want %d", when, sum, 300+claimed+passed)
		}
	}
	called("repaired")
	var lines []deadletter.Repair
	if err := l.client.JobReport(ctx, job.ID, func(b json.RawMessage) error {
		var r deadletter.Repair
		err := json.Unmarshal(b, &r)
		lines = append(lines, r)
		return err
	}); err != nil || len(lines) != job.Planned {
		t.Errorf("%+v, %v", lines, err)
	}

	// Neither the same report nor a new one changes anything.
	job = l.repaired(t, plan, "again")
	if job.Done != 0 || job.Skipped[deadletter.SkipChanged] != 4+claimed+passed {
		t.Errorf("a second apply: %+v", job)
	}
	plan, rep = l.reported(t)
	if plan.Send != 0 || plan.Entries != 2 {
		t.Errorf("a second pass: %+v", rep)
	}
	if job = l.repaired(t, plan, "second"); job.Done != 0 {
		t.Errorf("%+v", job)
	}
	called("a second pass")
	acts, err := l.client.Audit(ctx, new(uint64), 100)
	if err != nil {
		t.Fatal(err)
	}
	ofJobs := 0
	for i := range acts {
		if strings.HasSuffix(acts[i].Action, " reconcile") {
			ofJobs++
		}
	}
	if ofJobs != 6 { // each job has a row for its begin and one for its end
		t.Errorf("%d rows of the audit log: %+v", ofJobs, acts)
	}

	// A report that was changed is refused, and so is a missing report.
	bad := json.RawMessage(strings.Replace(string(plan.Reconcile), `"rows":`, `"rows":1`, 1))
	for code, report := range map[string]json.RawMessage{"bad_digest": bad, "bad_report": json.RawMessage(`{"x":1}`), "no_report": nil} {
		_, err := l.client.StartJob(ctx, api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Name: code, Report: report})
		if e, ok := errors.AsType[*notify.Error](err); !ok || e.Code != code {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// TestReconcileBehindAPausedLane: a finding that was repaired, but whose new record was not read
// yet, is not found a second time. This is so although the outcome of the same envelope exists.
func TestReconcileBehindAPausedLane(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), quick)
	ctx := t.Context()
	one, err := l.client.Send(ctx, push("ann", "now"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, one.NotificationID, "DELIVERED")
	id, err := notify.ParseID(one.NotificationID)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.embedded.history.Find(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its record is committed", func() bool {
		b, err := conserve.WorkerLog{Admin: l.Node.admin, Reader: l.Node.reader}.Bounds(ctx)
		return err == nil && b[log.TopicPartition{Topic: f.Topic, Partition: f.LogPart}].Committed > f.Offset
	})
	if _, err := l.client.SetLane(ctx, "push", true, ""); err != nil {
		t.Fatal(err)
	}
	rows, err := l.embedded.store.Status().Chunk(ctx, f.Envelope.Chunk)
	if err != nil || len(rows) != 1 {
		t.Fatal(len(rows), err)
	}
	rows[0].Default = notify.Exception{State: notify.Deferred, Wake: time.Now().UnixMilli(), Code: "quiet_hours"}
	if err := l.embedded.store.Status().Put(ctx, rows); err != nil {
		t.Fatal(err)
	}
	plan, rep := l.reported(t)
	if plan.Send != 1 || rep.Counts[conserve.Stuck] != 1 {
		t.Fatalf("%+v", rep)
	}
	if job := l.repaired(t, plan, ""); job.Done != 1 {
		t.Errorf("%+v", job)
	}
	if plan, rep := l.reported(t); plan.Entries != 0 {
		t.Errorf("found again, and its record is not read yet: %+v", rep)
	}
	if _, err := l.client.SetLane(ctx, "push", false, ""); err != nil {
		t.Fatal(err)
	}
	l.becomes(t, one.NotificationID, "DELIVERED")
}
