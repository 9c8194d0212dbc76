package app

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/worker"
)

// unwell is a provider. While down is true, it answers every call with a Retry-After of 12 s. That
// is longer than a worker holds a retry in memory, so every receiver is deferred in the timer
// store.
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

// deferredOf returns what GET /v1/ops/lag says about the deferred receivers of a topic, and what
// the metrics say about all lanes, by lane and reason.
func (l *life) deferredOf(t *testing.T, topic string) (of []api.Deferred, metrics map[string]float64) {
	t.Helper()
	lags, err := l.client.Lag(t.Context())
	if err != nil {
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
