package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/provider"
)

// TestAuditSeesWhatCameDue: an audit of a time window counts notifications that became due in it,
// however long before they were accepted. This works with engines inside the process and with
// servers.
func TestAuditSeesWhatCameDue(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *life{
		"embedded": func(t *testing.T) *life { return run(t, testConfig(t, t.TempDir()), seams{}) },
		"sealed": func(t *testing.T) *life {
			return run(t, testConfig(t, t.TempDir()), seams{historyAge: 200 * time.Millisecond})
		},
		"servers": func(t *testing.T) *life {
			cfg := sharing(t)
			return runAs(t, cluster.RoleAll, cfg, seams{servers: newShared(t, &cfg).open})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := start(t)
			at := time.Now().Add(2 * time.Second)
			n := push("late", "hello")
			n.ScheduledAt = &at
			sent, err := l.client.Send(t.Context(), n, "")
			if err != nil {
				t.Fatal(err)
			}
			since := time.Now().Add(10 * time.Millisecond)
			l.becomes(t, sent.NotificationID, "DELIVERED")
			if name == "sealed" {
				eventually(t, "the history has sealed it", func() bool {
					for _, at := range l.embedded.history.Sealed() {
						if at > 0 {
							return true
						}
					}
					return false
				})
			}
			var rep api.Conservation
			if rep, err = l.client.Conservation(t.Context(), since); err != nil || rep.Accepted != 1 || rep.Terminal != 1 {
				t.Errorf("%+v, %v", rep, err)
			}
		})
	}
}

// TestOnlySchedulersNeedTheClock: if its clock differs from the clocks of the servers, only a
// process that owns timers becomes unready. An API still accepts what is due now.
func TestOnlySchedulersNeedTheClock(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	for role, ready := range map[string]bool{"api": true, "dispatcher": true, "operator": true, "scheduler": false, "api,scheduler": false} {
		l := runAs(t, role, cfg, seams{servers: s.open})
		eventually(t, role+" has begun", func() bool { _, err := l.client.Conservation(t.Context(), time.Now()); return err == nil })
		setClock(t, l.clock, -2*time.Second)
		if err := l.Ready(t.Context()); (err == nil) != ready {
			t.Errorf("%s: %v", role, err)
		}
	}
}

// TestTailShowsOtherProcesses: a process without workers shows the outcomes of the processes that
// have workers, and names these processes.
func TestTailShowsOtherProcesses(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	start := func(name, role string) *life {
		c := cfg
		c.Instance = name
		return runAs(t, role, c, seams{servers: s.open})
	}
	front := start("front", "api")
	start("pushes", "worker:push")
	start("mails", "worker:email")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	enough := errors.New("enough")
	var names []string
	sent := ""
	err := front.client.Tail(ctx, api.TailFilter{Channel: "push"}, func(e api.Event) error {
		switch {
		case e.Type == api.EventProcesses:
			names = e.Processes
			if len(names) < 2 || sent != "" {
				return nil
			}
			got, err := front.client.Send(ctx, push("ann", "hello"), "")
			if err == nil {
				sent = got.NotificationID
			}
			return err
		case e.Type == api.EventOutcome && e.NotificationID == sent:
			if e.Process != "pushes" || e.Status != "DELIVERED" || e.Channel != "push" {
				t.Errorf("%+v", e)
			}
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || !slices.Equal(names, []string{"mails", "pushes"}) {
		t.Errorf("%v; it shows %v", err, names)
	}
}

// TestCallsOfAnAccountAreDivided: the number of calls that an account accepts at a time is divided
// between the workers by their partitions, and moves with the partitions. Whichever process is
// asked lists the account once for each worker.
func TestCallsOfAnAccountAreDivided(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	cfg.Log.Partitions = map[string]int{"push": 1, "sms": 4, "email": 1}
	cfg.Providers.Stub = false
	cfg.Providers.Twilio.URL = "http://127.0.0.1:1"
	cfg.Providers.Twilio.Concurrency = 100
	cfg.Providers.Twilio.Accounts = []provider.TwilioAccount{{SID: "AC1", Token: "t", From: "+15550000000"}}
	s := newShared(t, &cfg)
	start := func(name, role string) *life {
		c := cfg
		c.Instance = name
		return runAs(t, role, c, seams{servers: s.open})
	}
	front := start("front", "api,worker:push")
	start("a", "worker:sms")
	wants := func(want ...string) {
		t.Helper()
		eventually(t, strings.Join(want, ", "), func() bool {
			as, err := front.client.Accounts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range as.Items {
				got = append(got, fmt.Sprintf("%s of %s: %d", a.Account, a.Process, a.Limit))
			}
			return slices.Equal(got, want)
		})
	}
	wants("twilio:AC1 of a: 100")
	b := start("b", "worker:sms")
	wants("twilio:AC1 of a: 50", "twilio:AC1 of b: 50")
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	wants("twilio:AC1 of a: 100")
}
