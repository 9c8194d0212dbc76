package app

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/conserve"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/worker"
)

// quick makes an audit check a second time soon. That is enough, because commits are made every
// second.
var quick = seams{settle: 1200 * time.Millisecond}

func (l *life) audited(t *testing.T) api.Conservation {
	t.Helper()
	rep, err := l.client.Conservation(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Accepted != rep.Terminal+rep.Pending+rep.Lost {
		t.Errorf("accepted %d is not terminal %d + pending %d + lost %d", rep.Accepted, rep.Terminal, rep.Pending, rep.Lost)
	}
	return rep
}

// agrees fails the test if the audit has drift or other counts than these.
func (l *life) agrees(t *testing.T, accepted, terminal, pending int64) api.Conservation {
	t.Helper()
	rep := l.audited(t)
	if rep.Drift != 0 || rep.Accepted != accepted || rep.Terminal != terminal || rep.Pending != pending {
		t.Errorf("accepted=%d terminal=%d pending=%d drift=%d %v, want %d %d %d 0\n%+v",
			rep.Accepted, rep.Terminal, rep.Pending, rep.Drift, rep.Waiting, accepted, terminal, pending, rep.Findings)
	}
	return rep
}

// drifts fails the test if the audit does not have this drift, of one class and id.
func (l *life) drifts(t *testing.T, class string, n int64, id string) {
	t.Helper()
	rep := l.audited(t)
	if rep.Drift != n || rep.Classes[class] != n || len(rep.Findings) == 0 || rep.Findings[0].ID != id {
		t.Errorf("drift %d, classes %v, %+v; want %d of %s, %s", rep.Drift, rep.Classes, rep.Findings, n, class, id)
	}
}

func (l *life) delivered(t *testing.T, id string, want int) {
	t.Helper()
	eventually(t, id+" is delivered", func() bool {
		sum, err := l.client.Summary(t.Context(), strings.TrimSuffix(id, "-0"), api.Page{Limit: 10_000})
		return err == nil && sum.Counts["DELIVERED"] == want
	})
}

func fanout(n int) api.Fanout {
	f := api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Title: "t", Body: "b"}}
	for i := range n {
		f.Receivers = append(f.Receivers, api.Receiver{UserID: fmt.Sprint("user-", i), Address: "apns:" + device})
	}
	return f
}

// TestAuditAgrees has all kinds of accepted notifications, in every place where they can be.
func TestAuditAgrees(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), quick)
	l.agrees(t, 0, 0, 0)
	res, err := l.client.Fanout(t.Context(), fanout(3000), "")
	if err != nil {
		t.Fatal(err)
	}
	l.delivered(t, res.FirstID, 3000)
	one, err := l.client.Send(t.Context(), push("ann", "now"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, one.NotificationID, "DELIVERED")
	later := push("ann", "later")
	at := time.Now().Add(time.Hour)
	later.ScheduledAt = &at
	if _, err := l.client.Send(t.Context(), later, ""); err != nil {
		t.Fatal(err)
	}
	rep := l.agrees(t, 3002, 3001, 1)
	if rep.Waiting["scheduled"] != 1 || rep.States["DELIVERED"] != 3001 {
		t.Errorf("%v %v", rep.Waiting, rep.States)
	}
}

// TestAuditFindsDrift removes, one after the other, the data in which an outcome is stored, and the
// data that leads to an outcome.
func TestAuditFindsDrift(t *testing.T) {
	t.Parallel()
	l := run(t, testConfig(t, t.TempDir()), quick)
	ctx := t.Context()
	one, err := l.client.Send(ctx, push("ann", "now"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, one.NotificationID, "DELIVERED")
	l.agrees(t, 1, 1, 0)
	id, err := notify.ParseID(one.NotificationID)
	if err != nil {
		t.Fatal(err)
	}
	found, err := l.embedded.history.Find(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its record is committed", func() bool {
		b, err := conserve.WorkerLog{Admin: l.admin, Reader: l.reader}.Bounds(ctx)
		return err == nil && b[log.TopicPartition{Topic: found.Topic, Partition: found.LogPart}].Committed > found.Offset
	})
	rows, err := l.embedded.store.Status().Chunk(ctx, found.Envelope.Chunk)
	if err != nil || len(rows) != 1 {
		t.Fatal(len(rows), err)
	}
	whole := rows[0]
	change := func(edit func(*notify.Row)) {
		t.Helper()
		r := whole
		edit(&r)
		if err := l.embedded.store.Status().Put(ctx, []notify.Row{r}); err != nil {
			t.Fatal(err)
		}
	}

	t.Log("its outcome is taken out of the row: it was never called")
	change(func(r *notify.Row) { r.Done, r.DoneUpTo, r.StartedUpTo, r.Default = false, 0, 0, notify.Exception{} })
	l.drifts(t, api.DriftRecordGone, 1, one.NotificationID)

	t.Log("the claim stands, its record was passed")
	change(func(r *notify.Row) {
		r.Done, r.DoneUpTo, r.StartedUpTo, r.Starts, r.Default = false, 0, 1, 1, notify.Exception{}
	})
	l.drifts(t, api.DriftClaimGone, 1, one.NotificationID)

	t.Log("it was put off, and its timer is not there")
	wake := time.Now().Add(time.Hour).UnixMilli()
	change(func(r *notify.Row) {
		r.Default = notify.Exception{State: notify.Deferred, Wake: wake, Code: "quiet_hours"}
	})
	l.drifts(t, api.DriftHandonGone, 1, one.NotificationID)

	t.Log("its timer is there, and holds another receiver")
	env := found.Envelope
	env.Deferrals, env.NotBefore, env.Parent = 1, wake, whole.Digest
	k := env.Key()
	park := func(e *notify.Envelope, fire int64) {
		t.Helper()
		tid := e.Chunk.TimerID(0)
		for _, n := range []uint16{k.Epoch, k.Attempt, k.Deferrals} {
			tid = append(tid, byte(n>>8), byte(n))
		}
		tid = append(tid, 0, 0, 0, 0)
		tm := engine.Timer{FireAt: fire, ID: tid, Kind: timer.KindEnvelope, Target: notify.LaneOf(e.Channel, e.Category).Topic(), Payload: notify.AppendEnvelope(nil, e)}
		if err := l.embedded.store.Timers().Put(ctx, notify.SpreadOver(l.cfg.Timers.Shards), []engine.Timer{tm}); err != nil {
			t.Fatal(err)
		}
	}
	other := env
	var w notify.ReceiverWriter
	w.Append(notify.Receiver{Index: 7, User: []byte("bob")})
	other.Receivers = w.Bytes()
	park(&other, wake)
	l.drifts(t, api.DriftHandonGone, 1, one.NotificationID)

	t.Log("its timer lies at another time, as one that was stored late: only the second look finds it")
	park(&env, wake+60_000)
	rep := l.agrees(t, 1, 0, 1)
	if rep.Waiting["parked"] != 1 || rep.Confirmed != 1 {
		t.Errorf("%v, confirmed %d", rep.Waiting, rep.Confirmed)
	}
	change(func(*notify.Row) {})
	l.agrees(t, 1, 1, 0)

	t.Log("an outcome of what nobody accepted")
	alone := notify.NewBase(time.Now())
	change(func(r *notify.Row) { r.Key.Chunk.Base = alone })
	l.drifts(t, api.DriftRowAlone, 1, notify.ID{Base: alone}.String())
}

// TestAuditFindsALostRecord: an API process makes a record durable, and the log loses the record
// before a worker reads it.
func TestAuditFindsALostRecord(t *testing.T) {
	t.Parallel()
	// No worker makes progress, because the lane's only route is shut.
	release := make(chan struct{})
	held := quick
	held.provider = func(p worker.Provider) worker.Provider { return stuck{p, release} }
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, held)
	defer close(release)
	ctx := t.Context()
	one, err := l.client.Send(ctx, push("ann", "now"), "")
	if err != nil {
		t.Fatal(err)
	}
	id, _ := notify.ParseID(one.NotificationID)
	found, err := l.embedded.history.Find(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is claimed", func() bool {
		rows, err := l.embedded.store.Status().Chunk(ctx, found.Envelope.Chunk)
		return err == nil && len(rows) == 1 && rows[0].StartedUpTo == 1
	})
	rep := l.agrees(t, 1, 0, 1)
	if rep.Waiting["claimed"] != 1 {
		t.Errorf("%v", rep.Waiting)
	}
	if err := l.admin.DeleteRecords(ctx, map[log.TopicPartition]int64{{Topic: found.Topic, Partition: found.LogPart}: found.Offset + 1}); err != nil {
		t.Fatal(err)
	}
	l.drifts(t, api.DriftClaimGone, 1, one.NotificationID)
}

// stuck is a provider whose calls last until released.
type stuck struct {
	worker.Provider
	release chan struct{}
}

func (s stuck) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	select {
	case <-s.release:
	case <-ctx.Done():
	}
	s.Provider.Send(ctx, call, report)
}

// TestAuditOfTriggersAndSchedules: an audit finds triggers and schedules whose timers were dropped.
func TestAuditOfTriggersAndSchedules(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	cfg.Triggers.Plain, cfg.Triggers.Allow, cfg.Triggers.Ports = true, []string{"127.0.0.0/8"}, []int{0}
	l := run(t, cfg, quick, func(n *Node) {
		if err := n.SeedCaller(t.Context(), "test", []string{"http://127.0.0.1:9"}, "whsec_"+strings.Repeat("A", 32)); err != nil {
			t.Fatal(err)
		}
	})
	ctx := t.Context()
	at := time.Now().Add(3 * time.Hour)
	made, err := l.client.Trigger(ctx, api.Trigger{CallbackURL: "http://127.0.0.1:9/x", FireAt: &at, Exact: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	later := push("ann", "later")
	later.ScheduledAt = &at
	sent, err := l.client.Send(ctx, later, "")
	if err != nil {
		t.Fatal(err)
	}
	rep := l.agrees(t, 2, 0, 2)
	if rep.Waiting["scheduled"] != 1 || rep.Waiting["trigger_timer"] != 1 {
		t.Errorf("%v", rep.Waiting)
	}
	var ps []engine.TimerPartition
	if err := l.embedded.store.Timers().Pending(ctx, func(tm *engine.Timer) error {
		ps = append(ps, engine.TimerPartition{Bucket: tm.FireAt / 60_000, Shard: engine.ShardOf(tm.ID, notify.SpreadOver(cfg.Timers.Shards))})
		return nil
	}); err != nil || len(ps) != 2 {
		t.Fatal(ps, err)
	}
	for _, p := range ps {
		if err := l.embedded.store.Timers().Drop(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	rep = l.audited(t)
	if rep.Drift != 2 || rep.Classes[api.DriftTriggerGone] != 1 || rep.Classes[api.DriftScheduleGone] != 1 {
		t.Errorf("%d %v", rep.Drift, rep.Classes)
	}
	ids := map[string]bool{}
	for _, f := range rep.Findings {
		ids[f.ID] = true
	}
	if !ids[made.TriggerID] || !ids[sent.NotificationID] {
		t.Errorf("%+v, want %s and %s", rep.Findings, made.TriggerID, sent.NotificationID)
	}
}

// TestReadOfTheLogEnds: an audit reads the log only up to the offsets that it asked for, although
// the log returns later records in the same piece.
func TestReadOfTheLogEnds(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := runAs(t, cluster.RoleAPI, cfg, seams{}) // nobody trims
	for i := range 20 {
		if _, err := l.client.Send(t.Context(), push(fmt.Sprint("user-", i), "x"), ""); err != nil {
			t.Fatal(err)
		}
	}
	ends, err := l.firstTopicEnds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	from, to := map[log.TopicPartition]int64{}, map[log.TopicPartition]int64{}
	want := 0
	for p, end := range ends {
		if end > 2 {
			from[log.TopicPartition(p)], to[log.TopicPartition(p)] = 0, 2
			want += 2
		}
	}
	if want < 4 {
		t.Fatalf("the log ends at %v", ends)
	}
	n := 0
	err = conserve.WorkerLog{Admin: l.admin, Reader: l.reader}.Read(ctx, from, to, func(tp log.TopicPartition, rec *log.Record) error {
		if n++; rec.Offset >= to[tp] {
			t.Errorf("%s@%d, asked for those below %d", tp, rec.Offset, to[tp])
		}
		return nil
	})
	if err != nil || n != want {
		t.Errorf("%d records, %v; want %d", n, err, want)
	}
}

// TestAuditUnderLoad audits again and again while fan-outs, singles, retries and scheduled
// notifications are on their way. There is no drift, and in the end all of them are terminal.
func TestAuditUnderLoad(t *testing.T) {
	t.Parallel()
	s := quick
	s.historyAge = 2 * time.Second // tails are sealed, and the log trimmed, while it is read
	s.provider = func(p worker.Provider) worker.Provider { return &flaky{Provider: p} }
	l := run(t, testConfig(t, t.TempDir()), s)
	ctx := t.Context()
	const rounds = 8
	accepted := int64(0)
	for i := range rounds {
		res, err := l.client.Fanout(ctx, fanout(500), "")
		if err != nil {
			t.Fatal(err)
		}
		accepted += int64(res.Accepted)
		for range 20 {
			n := push(fmt.Sprint("u", i), "x")
			if i%2 == 0 {
				at := time.Now().Add(500 * time.Millisecond)
				n.ScheduledAt = &at
			}
			if _, err := l.client.Send(ctx, n, ""); err != nil {
				t.Fatal(err)
			}
			accepted++
		}
		if rep := l.audited(t); rep.Drift != 0 {
			t.Fatalf("drift under load: %v %+v", rep.Classes, rep.Findings)
		}
	}
	var rep api.Conservation
	eventually(t, "all is terminal", func() bool {
		rep = l.audited(t)
		return rep.Drift != 0 || rep.Terminal == accepted
	})
	if rep.Drift != 0 || rep.Accepted != accepted || rep.Pending != 0 {
		t.Errorf("accepted=%d terminal=%d pending=%d drift=%d %+v, want %d", rep.Accepted, rep.Terminal, rep.Pending, rep.Drift, rep.Findings, accepted)
	}
}

// flaky is a provider that answers every other call so that a retry or a wait follows.
type flaky struct {
	worker.Provider
	n atomic.Int64
}

func (f *flaky) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	bad := f.n.Add(1)%3 == 0
	f.Provider.Send(ctx, call, notify.Each(func(i int, r notify.Result) {
		if bad && i%2 == 0 {
			r = notify.Result{Class: notify.ClassRetry, Code: "flaky", Provider: "stub"}
		}
		report.One(i, r)
	}))
}
