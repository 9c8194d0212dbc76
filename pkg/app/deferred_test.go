package app

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/worker"
)

// unwell answers every call with a Retry-After of 12 s while down: longer than a
// worker holds a retry in memory, so every receiver is deferred in the timer store.
type unwell struct {
	worker.Provider
	down *atomic.Bool
}

func (u unwell) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	if !u.down.Load() {
		u.Provider.Send(ctx, call, report)
		return
	}
	for i := range call.Items {
		report.One(i, notify.Result{Class: notify.ClassRetry, Code: "apns_internal", Provider: "stub", RetryAfter: 12 * time.Second})
	}
}

// deferred returns what GET /v1/ops/lag says is deferred of a topic, and what the
// metrics say of all lanes, by lane and reason.
func (l *life) deferredOf(t *testing.T, topic string) (of []Deferred, metrics map[string]float64) {
	t.Helper()
	raw, err := l.client.Lag(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lags []Lag
	if err := json.Unmarshal(raw, &lags); err != nil {
		t.Fatal(err)
	}
	for _, lag := range lags {
		if lag.Topic == topic {
			of = lag.Deferred
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&nodeCollector{l.Node})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	metrics = map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			metrics[name] = m.GetGauge().GetValue()
		}
	}
	return of, metrics
}

// TestDeferredAreCounted: while the provider is down, lag and the metrics show the
// receivers that wait, why, and since when. A restarted process shows them again,
// from the rows of the timer store. After the recovery they are 0.
func TestDeferredAreCounted(t *testing.T) {
	t.Parallel()
	down := &atomic.Bool{}
	down.Store(true)
	s := seams{recount: 20 * time.Millisecond, provider: func(p worker.Provider) worker.Provider { return unwell{p, down} }}
	cfg := testConfig(t, t.TempDir())
	cfg.Workers.MaxRetries = 20
	l := run(t, cfg, s)
	const all = 300
	began := time.Now()
	res, err := l.client.Fanout(t.Context(), fanout(all), "")
	if err != nil {
		t.Fatal(err)
	}
	const count, age = "notifyd_deferred_receivers push apns_internal", "notifyd_deferred_oldest_seconds push apns_internal"
	shown := func(when string) {
		t.Helper()
		eventually(t, when+" the deferred receivers are shown", func() bool {
			of, m := l.deferredOf(t, "notifications-push-dlq")
			if len(of) != 1 || of[0].Receivers != all || m[count] != all {
				return false
			}
			d, since := of[0], time.Since(began)
			if d.Reason != "apns_internal" || d.Oldest.Before(began.Add(-time.Second)) || d.Oldest.After(began.Add(since)) || !d.Next.After(d.Oldest.Add(5*time.Second)) {
				t.Errorf("%s: %+v", when, d)
			}
			if m[age] <= 0 || m[age] > since.Seconds()+1 {
				t.Errorf("%s: the oldest is %v s old, %v after the request", when, m[age], since)
			}
			return true
		})
	}
	shown("in the outage")
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = run(t, cfg, s)
	shown("after a restart")
	down.Store(false)
	l.delivered(t, res.FirstID, all)
	eventually(t, "nothing is deferred after the recovery", func() bool {
		of, m := l.deferredOf(t, "notifications-push-dlq")
		n, ok := m[count]
		return of != nil && len(of) == 0 && ok && n == 0
	})
}

// apart is a timer store whose Outline has no payloads.
type apart struct{ engine.Timers }

func (a apart) Outline(ctx context.Context, p engine.TimerPartition, after engine.TimerCursor, until int64, max int) ([]engine.Timer, error) {
	rows, err := a.Timers.Outline(ctx, p, after, until, max)
	rows = slices.Clone(rows)
	for i := range rows {
		rows[i].Payload = nil
	}
	return rows, err
}

// TestDeferredRows: of the rows of a store, those that a worker has put off count, by
// the topic to which they return and by reason, whatever page they are on and
// whether Outline gives payloads or not. What has been due does not.
func TestDeferredRows(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Minute).Add(30 * time.Second)
	topic := notify.Lane{Channel: notify.SMS}.DLQTopic()
	var rows []engine.Timer
	row := func(in time.Duration, cause string, change func(*engine.Timer)) {
		e := notify.Envelope{
			Chunk: notify.Chunk{Base: notify.NewBase(now).Item(len(rows))}, Channel: notify.SMS, Category: notify.OTP, Caller: "shop",
			Accepted: now.Add(-time.Duration(len(rows)) * time.Second).UnixMilli(), Attempt: 1, Cause: cause, Count: 2,
		}
		var w notify.ReceiverWriter
		w.Append(notify.Receiver{User: []byte("ann")})
		w.Append(notify.Receiver{Index: 1, User: []byte("bob")})
		e.Receivers = w.Bytes()
		r := engine.Timer{FireAt: now.Add(in).UnixMilli(), ID: []byte(fmt.Sprint("row ", len(rows))), Kind: timer.KindEnvelope, Target: topic, Payload: notify.AppendEnvelope(nil, &e)}
		if change != nil {
			change(&r)
		}
		rows = append(rows, r)
	}
	row(-time.Millisecond, "quiet_hours", nil)                                                             // released
	row(time.Minute, "quiet_hours", func(r *engine.Timer) { r.Head = notify.NewBase(now) })                // scheduled
	row(time.Minute, "quiet_hours", func(r *engine.Timer) { r.Kind, r.Payload = 77, []byte("a trigger") }) // another kind
	row(time.Hour, "", nil)
	for range 3 * deferredPage {
		row(time.Minute, "called:account_blocked", nil)
	}
	for k := range deferredReasons + 4 {
		for range 30 - k {
			row(time.Duration(k)*time.Minute+time.Second, fmt.Sprintf("maybe:code_%02d", k), nil)
		}
	}
	mem := memory.New().Timers()
	if err := mem.Put(t.Context(), 4, rows); err != nil {
		t.Fatal(err)
	}
	for name, timers := range map[string]engine.Timers{"with payloads": mem, "without payloads": apart{mem}} {
		n := &Node{}
		n.cfg.Timers.Shards, n.st.timers = 4, timers
		c, err := n.countDeferred(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		got := c.topics[topic]
		sum := int64(0)
		for _, d := range got {
			sum += d.Receivers
		}
		if len(c.topics) != 1 || len(got) != deferredReasons || sum != int64(2*(len(rows)-3)) {
			t.Errorf("%s: %d topics, %d reasons, %d receivers of %d rows", name, len(c.topics), len(got), sum, len(rows))
			continue
		}
		oldest := now.Add(-time.Duration(3+3*deferredPage) * time.Second)
		if d := got[0]; d.Reason != "account_blocked" || d.Receivers != 6*deferredPage || d.Oldest.UnixMilli() != oldest.UnixMilli() || d.Next.UnixMilli() != now.Add(time.Minute).UnixMilli() {
			t.Errorf("%s: the largest is %+v", name, d)
		}
		if d := got[1]; d.Reason != "code_00" || d.Receivers != 60 {
			t.Errorf("%s: the second is %+v", name, d)
		}
		if d := got[deferredReasons-1]; d.Reason != otherReasons {
			t.Errorf("%s: the last is %+v", name, d)
		}
	}
}
