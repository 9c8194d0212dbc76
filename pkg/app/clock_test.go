package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/notify"
)

// setClock makes a clock believe that it is ahead by off.
func setClock(t *testing.T, c *cluster.Clock, off time.Duration) {
	t.Helper()
	c.Servers = []cluster.AskClock{func(context.Context) (time.Duration, time.Duration, error) { return -off, 0, nil }}
	c.Ask(t.Context())
}

// A process whose clock is off refuses with 503 clock whatever depends on the clock. It makes no
// callbacks, and accepts what is due now. When the clock is right again, it does all of this again.
func TestClockRefuses(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 10)
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	defer sink.Close()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	l := runAs(t, cluster.RoleAll, cfg, seams{servers: s.open})
	once := *l.client
	once.Retries = 0
	ctx := t.Context()
	if err := l.SeedCaller(ctx, "test", []string{sink.URL + "/"}, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"); err != nil {
		t.Fatal(err)
	}
	later := func(in time.Duration) api.Notification {
		n, at := push("later", "hello"), time.Now().Add(in)
		n.ScheduledAt = &at
		return n
	}
	trigger := api.Trigger{CallbackURL: sink.URL + "/x", Exact: true}
	at := time.Now().Add(time.Hour)
	trigger.FireAt = &at
	sent, err := l.client.Send(ctx, later(time.Hour), "")
	if err != nil {
		t.Fatal(err)
	}
	made, err := l.client.Trigger(ctx, trigger, "")
	if err != nil {
		t.Fatal(err)
	}
	tries := []struct {
		name string
		do   func() error
	}{
		{"a schedule", func() error { _, err := once.Send(ctx, later(time.Hour), ""); return err }},
		{"a schedule whose time has passed", func() error { _, err := once.Send(ctx, later(-time.Minute), ""); return err }},
		{"a batch with one", func() error {
			_, err := once.SendBatch(ctx, []api.Notification{push("now", "hello"), later(-time.Minute)}, "")
			return err
		}},
		{"a trigger", func() error { _, err := once.Trigger(ctx, trigger, ""); return err }},
		{"another time of a schedule", func() error {
			_, err := once.Reschedule(ctx, sent.NotificationID, time.Now().Add(2*time.Hour))
			return err
		}},
		{"another time of a trigger", func() error {
			_, err := once.RescheduleTrigger(ctx, made.TriggerID, time.Now().Add(2*time.Hour))
			return err
		}},
		{"the end of a schedule", func() error { _, err := once.Cancel(ctx, sent.NotificationID); return err }},
	}
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		setClock(t, l.clock, off)
		for _, try := range tries {
			err := try.do()
			if e, _ := errors.AsType[*notify.Error](err); e == nil || e.Kind != notify.KindUnavailable || e.Code != "clock" || e.RetryAfter <= 0 {
				t.Errorf("%s off: %s: %v", off, try.name, err)
			}
		}
		now, err := l.client.Send(ctx, push("now", "hello"), "")
		if err != nil {
			t.Fatalf("%s off: what is due now: %v", off, err)
		}
		l.becomes(t, now.NotificationID, "DELIVERED")
		if one := l.find(t, "clock"); len(one) != 1 || one[0].Level != "fail" || one[0].Repair == "" {
			t.Errorf("%s off: the doctor: %+v", off, one)
		}
		if got := clockMetric(t, l); got.Round(time.Second) != off {
			t.Errorf("%s off: the metric says %s", off, got)
		}
	}
	select {
	case <-called:
		t.Error("a callback of a process whose clock is off")
	default:
	}
	setClock(t, l.clock, 0)
	for _, try := range tries {
		if err := try.do(); err != nil {
			t.Errorf("the clock is right: %s: %v", try.name, err)
		}
	}
	if _, err := once.CancelTrigger(ctx, made.TriggerID); err != nil {
		t.Error(err)
	}
}

// clockMetric returns the value of notifyd_clock_offset_seconds.
func clockMetric(t *testing.T, l *life) time.Duration {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(&nodeCollector{l.Node})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "notifyd_clock_offset_seconds" {
			return time.Duration(f.GetMetric()[0].GetGauge().GetValue() * float64(time.Second))
		}
	}
	t.Fatal("there is no notifyd_clock_offset_seconds")
	return 0
}
