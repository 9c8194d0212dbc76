package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// set makes a clock's last reading say that it is that far ahead.
func (c *clock) set(off time.Duration) {
	r := read(off)
	c.last.Store(&r)
}

// The reference is the median of the servers that answer: one that is wrong stops no
// process, and a clock that most of them find wrong is wrong.
func TestClockIsComparedWithTheMedian(t *testing.T) {
	t.Parallel()
	const away = time.Duration(1 << 62)
	for name, c := range map[string]struct {
		ahead []time.Duration // of the servers
		want  time.Duration   // how far ours is ahead
	}{
		"all agree":                        {[]time.Duration{0, 0, 0}, 0},
		"one is 10 s ahead":                {[]time.Duration{10 * time.Second, 0, 0}, 0},
		"one is 10 s behind":               {[]time.Duration{0, -10 * time.Second, 0}, 0},
		"one is wrong, one away":           {[]time.Duration{10 * time.Second, away, 0}, 0},
		"ours is 2 s ahead":                {[]time.Duration{-2 * time.Second, -2 * time.Second, -2 * time.Second}, 2 * time.Second},
		"ours is, and one agrees by error": {[]time.Duration{-2 * time.Second, 0, -2 * time.Second}, 2 * time.Second},
		"ours is, and one alone answers":   {[]time.Duration{away, -2 * time.Second, away}, 2 * time.Second},
		"none answers: what was known":     {[]time.Duration{away, away, away}, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var k clock
			k.set(7 * time.Second)
			var servers []askClock
			for _, ahead := range c.ahead {
				servers = append(servers, func(context.Context) (time.Duration, time.Duration, error) {
					if ahead == away {
						return 0, 0, errors.New("away")
					}
					return ahead, 0, nil
				})
			}
			k.ask(t.Context(), servers)
			if got := k.offset().Round(time.Millisecond); got != c.want {
				t.Errorf("off by %s, want %s", got, c.want)
			}
			e, refused := errors.AsType[*notify.Error](k.err())
			if refused != (c.want > maxClockOffset) || refused && (e.Kind != notify.KindUnavailable || e.Code != "clock" || e.RetryAfter <= 0) {
				t.Errorf("refuses with %v", k.err())
			}
		})
	}
}

// A server that answers too slowly, or not at all, counts with its last answer: a wrong
// one that alone is quick does not decide.
func TestClockRemembersServers(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	right := func(context.Context) (time.Duration, time.Duration, error) {
		if slow.Load() {
			return 0, clockSlow + 1, nil
		}
		return 0, 0, nil
	}
	wrong := func(context.Context) (time.Duration, time.Duration, error) { return 10 * time.Second, 0, nil }
	var k clock
	for range 2 {
		k.ask(t.Context(), []askClock{right, wrong, right})
		if err := k.err(); err != nil {
			t.Errorf("the others are slow: %t: %v", slow.Load(), err)
		}
		slow.Store(true)
	}
}

// A clock that is set is known to be off at once, and not when servers are asked again.
func TestClockThatIsSet(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		var k clock
		k.set(0)
		k.last.Load().wall = k.last.Load().wall.Add(-by)
		if off := k.offset().Round(time.Minute); off != by || k.err() == nil {
			t.Errorf("set by %s: %s off, %v", by, off, k.err())
		}
	}
}

// A process whose clock is off refuses with 503 clock whatever depends on it, calls back
// nobody, and takes what is due now. When the clock is right again it does all of it.
func TestClockRefuses(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 10)
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	defer sink.Close()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	l := runAs(t, RoleAll, cfg, seams{servers: s.open})
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
		l.servers.clock.set(off)
		for _, try := range tries {
			err := try.do()
			if e, _ := errors.AsType[*notify.Error](err); e == nil || e.Kind != notify.KindUnavailable || e.Code != "clock" || e.RetryAfter != clockRetry {
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
	l.servers.clock.set(0)
	for _, try := range tries {
		if err := try.do(); err != nil {
			t.Errorf("the clock is right: %s: %v", try.name, err)
		}
	}
	if _, err := once.CancelTrigger(ctx, made.TriggerID); err != nil {
		t.Error(err)
	}
}

// clockMetric is what notifyd_clock_offset_seconds says.
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
