package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/worker"
)

// TestStandingLaneIsTold: while SendGrid refuses our key, the status of a mail says what the mail
// waits for, whether it was called before or never reached a worker.
func TestStandingLaneIsTold(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{Off: true})
	if _, err := sim.AddRule(simulator.Rule{Provider: simulator.SendGrid, Do: simulator.Fail, Status: 403, Count: 1}); err != nil {
		t.Fatal(err)
	}
	var ids [2]string
	for i, want := range []string{"DEFERRED", "ACCEPTED"} {
		m := email("ann", simulator.Mailbox(1))
		m.Category = notify.OTP.String()
		sent, err := l.client.Send(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = sent.NotificationID
		l.becomes(t, sent.NotificationID, want)
	}
	for i, want := range []string{"It waits until ", "It waits in notifications-email until "} {
		line, err := l.client.Timeline(t.Context(), ids[i])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(line.Next, want) || !strings.Contains(line.Next, ": the circuit of sendgrid") || !strings.Contains(line.Next, " is open (http_403).") {
			t.Errorf("%q, want %q and the circuit", line.Next, want)
		}
		if last := line.Events[len(line.Events)-1]; i == 0 && (last.Type != "deferred" || last.Code != "http_403" || last.Until == nil) {
			t.Errorf("%+v", last)
		}
	}
}

// TestReceiptEndsTheRetry: the connection is cut after Twilio has accepted the message. The receipt
// arrives before the retry, which then sends nothing.
func TestReceiptEndsTheRetry(t *testing.T) {
	t.Parallel()
	l, sim := simulated(t, simulator.Receipts{})
	told := func() bool {
		t.Helper()
		if _, err := sim.AddRule(simulator.Rule{Provider: simulator.Twilio, Do: simulator.Reset, Count: 1}); err != nil {
			t.Fatal(err)
		}
		sent, err := l.client.Send(t.Context(), sms("ann", simulator.Phone(1)), "")
		if err != nil {
			t.Fatal(err)
		}
		l.becomes(t, sent.NotificationID, "DELIVERED")
		var line api.Timeline
		eventually(t, "the retry is done", func() bool {
			var err error
			line, err = l.client.Timeline(t.Context(), sent.NotificationID)
			return err == nil && slices.ContainsFunc(line.Events, func(e api.TimelineEvent) bool { return e.Type == "outcome" || e.Type == "attempt" })
		})
		if last := line.Events[len(line.Events)-1]; last.Type != "outcome" || last.State != "DELIVERED" || line.Attempts != 1 {
			t.Logf("attempts %d, at last %+v", line.Attempts, last)
			return false
		}
		if calls := sim.Rules()[0].Matched; calls != 1 || line.Next != "It was delivered; nothing more happens." {
			t.Errorf("Twilio was called %d times; %s", calls, line.Next)
		}
		return true
	}
	// The retry comes after a second. On a very busy machine the receipt may be later than that.
	for range 5 {
		if told() {
			return
		}
	}
	t.Error("no retry finds the receipt")
}

// TestStandingLaneHoldsFewRecords: a lane that stands reads only a bounded number of records from
// the log, because every record that was read costs memory. The rest waits in the log.
func TestStandingLaneHoldsFewRecords(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	cfg.Providers.Stub = false                   // no provider is configured, so the lane stands
	l := runAs(t, cluster.RoleAPI, cfg, seams{}) // so that the workers find all records at once
	batch := make([]api.Notification, 1000)
	for n := range worker.MaxRecords/1000 + 2 {
		for i := range batch {
			batch[i] = email(fmt.Sprintf("user-%d-%d", n, i), simulator.Mailbox(1))
		}
		if _, err := l.client.SendBatch(t.Context(), batch, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	l = run(t, cfg, seams{})
	eventually(t, "the lane is at its cap", func() bool {
		for _, g := range l.groups.lags() {
			if g.Group == "email-workers" {
				return g.Paused == 1 && g.InFlight >= worker.MaxRecords && g.InFlight <= worker.MaxRecords+worker.MaxPoll
			}
		}
		return false
	})
}

// refusing is a provider that refuses our key.
type refusing struct{ worker.Provider }

func (refusing) Send(_ context.Context, call *notify.Call, report notify.Report) {
	report(0, len(call.Items), notify.Result{Class: notify.ClassConfig, Provider: "sendgrid", Code: "http_403"})
}

// TestStandingOfAnotherProcess: the circuit is open in the process of the worker. The process of
// the operator knows that before a replay, and the API reports it for messages that wait.
func TestStandingOfAnotherProcess(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	s := newShared(t, &cfg)
	seam := seams{servers: s.open, provider: func(p worker.Provider) worker.Provider { return refusing{p} }, settle: 100 * time.Millisecond}
	front, operator := runAs(t, "api", cfg, seam), runAs(t, "operator", cfg, seam)
	runAs(t, "worker:email", cfg, seam)
	lane := notify.LaneOf(notify.Email, notify.OTP)
	if why := operator.callStopText(lane); why != "" {
		t.Fatalf("held back before any call: %s", why)
	}
	send := func() string {
		t.Helper()
		m := email("ann", "ann@example.com")
		m.Category = notify.OTP.String()
		sent, err := front.client.Send(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		return sent.NotificationID
	}
	front.becomes(t, send(), "DEFERRED")
	const why = "the circuit of sendgrid is open (http_403)"
	eventually(t, "the operator's process knows of the circuit", func() bool { return operator.callStopText(lane) == why })
	waits := send()
	eventually(t, "the API says what it waits for", func() bool {
		line, err := front.client.Timeline(t.Context(), waits)
		if err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(line.Next, "It waits in notifications-email until ") && strings.Contains(line.Next, why)
	})
}
