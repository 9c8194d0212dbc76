package disk_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
)

// TestLogAtItsCap fills the log up to its cap. Intake then refuses requests with Retry-After. After
// a restart with all roles, notifyd delivers everything that it accepted before. Intake accepts
// requests again after the log was trimmed.
func TestLogAtItsCap(t *testing.T) {
	w := newWorld(t, simulator.Config{}, func(c *app.Config) { c.Log.CapMiB, c.Intake.SpillMiB = 2, 1 })
	n := w.start(cluster.RoleAPI) // the API role alone delivers nothing, so the log is not trimmed
	var accepted []string
	var refused *notify.Error
	big := push(0)
	big.Content.Body = strings.Repeat("x", 3000)
	n.eventually("the log is full", func() bool {
		for range 20 {
			a, err := n.Send(t.Context(), big, "")
			if err != nil {
				refused = refusal(t, err)
				return true
			}
			accepted = append(accepted, a.NotificationID)
		}
		return false
	})
	if refused.Kind != notify.KindUnavailable || refused.Code != "log_full" || refused.RetryAfter <= 0 {
		t.Fatalf("%+v", refused)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n = w.start(cluster.RoleAll)
	for _, id := range accepted {
		n.status(id, func(s notify.State) bool { return s == notify.Delivered })
	}
	began := time.Now()
	n.eventually("it takes requests again", func() bool { _, err := n.Send(t.Context(), push(1), ""); return err == nil })
	sum := w.sim.Ledger().Summary()
	t.Logf("accepted=%d refused=%s retry_after=%v delivered=%d duplicates=%d open_again=%v",
		len(accepted), refused.Code, refused.RetryAfter, sum.IDs, sum.Duplicates, time.Since(began).Round(time.Millisecond))
	if sum.Duplicates != 0 {
		t.Errorf("%d duplicates", sum.Duplicates)
	}
}

// TestFullDisk starts a node with too little free space on the volume. The node refuses every
// request and stores nothing, not even the idempotency key. With enough space, notifyd delivers
// the request with the same key.
func TestFullDisk(t *testing.T) {
	w := newWorld(t, simulator.Config{})
	free := w.cfg.Log.MinFreeMiB
	w.cfg.Log.MinFreeMiB = 1 << 30 // a PiB
	n := w.start(cluster.RoleAPI)
	var refused *notify.Error
	n.eventually("intake is closed", func() bool {
		_, err := n.Send(t.Context(), push(0), "key")
		if err == nil {
			return false
		}
		refused = refusal(t, err)
		return true
	})
	if refused.Kind != notify.KindUnavailable || refused.Code != "disk_full" || refused.RetryAfter <= 0 {
		t.Fatalf("%+v", refused)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	w.cfg.Log.MinFreeMiB = free
	n = w.start(cluster.RoleAll)
	a, err := n.Send(t.Context(), push(0), "key")
	if err != nil {
		t.Fatal(err)
	}
	n.status(a.NotificationID, func(s notify.State) bool { return s == notify.Delivered })
}

// TestStopUnderLoad stops a node under load and starts it again. It checks that every acknowledged
// notification is delivered exactly once, before or after the restart.
func TestStopUnderLoad(t *testing.T) {
	w := newWorld(t, simulator.Config{APNs: simulator.APNsConfig{Latency: simulator.Constant(50 * time.Millisecond)}})
	n := w.start(cluster.RoleAll)
	ctx, halt := context.WithCancel(t.Context())
	defer halt()
	var mu sync.Mutex
	var acked []string
	var senders sync.WaitGroup
	enough := make(chan struct{})
	for s := range 8 {
		senders.Go(func() {
			for i := s; ctx.Err() == nil; i += 8 {
				a, err := n.Send(ctx, push(i), fmt.Sprint(i))
				if err != nil {
					return
				}
				mu.Lock()
				if acked = append(acked, a.NotificationID); len(acked) == 500 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	fan, err := n.Fanout(t.Context(), api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Body: "b"}, Receivers: receivers(5000)}, "")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-enough:
	case <-time.After(patience):
		t.Fatal("no load")
	}
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	stopped := time.Since(began)
	halt()
	senders.Wait()
	before := w.sim.Ledger().Summary().IDs
	n = w.start(cluster.RoleAll)
	if c := n.counts(fan.FirstID); c["DELIVERED"] != 5000 {
		t.Errorf("%v", c)
	}
	for _, id := range acked {
		n.status(id, func(s notify.State) bool { return s == notify.Delivered })
	}
	sum := w.sim.Ledger().Summary()
	t.Logf("acknowledged=%d delivered=%d (%d before the stop) lost=0 duplicates=%d stop=%v",
		len(acked)+5000, sum.IDs, before, sum.Duplicates, stopped.Round(time.Millisecond))
	if sum.Duplicates != 0 {
		t.Errorf("%d duplicates", sum.Duplicates)
	}
}

// TestBadCredentials lets the provider refuse the credentials. The refusal opens the circuit
// breaker with the reason "configuration". notifyd sends at most 3 requests, and no notification
// loses an attempt. After a restart, and with accepted credentials, notifyd sends everything.
func TestBadCredentials(t *testing.T) {
	w := newWorld(t, simulator.Config{})
	rule, err := w.sim.AddRule(simulator.Rule{Provider: simulator.SendGrid, Do: simulator.Deny})
	if err != nil {
		t.Fatal(err)
	}
	n := w.start(cluster.RoleAll)
	var ids []string
	for range 20 {
		a, err := n.Send(t.Context(), mail("otp"), "")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.NotificationID)
	}
	n.eventually("the provider was asked", func() bool { return w.sim.Ledger().Summary().Providers["sendgrid"].Requests > 0 })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	asked := w.sim.Ledger().Summary().Providers["sendgrid"].Requests
	w.sim.RemoveRule(rule.Number)
	n = w.start(cluster.RoleAll)
	for _, id := range ids {
		st := n.status(id, func(s notify.State) bool { return s == notify.Sent || s == notify.Delivered || s == notify.Failed })
		if st.Status == "FAILED" || st.Attempts > 1 {
			t.Fatalf("%+v", st)
		}
	}
	t.Logf("20 codes, %d requests while the credentials were wrong, failed=0", asked)
	if asked > 3 {
		t.Errorf("%d requests with bad credentials", asked)
	}
}

// TestRefusedCredentialsAreTriedAgain lets each provider refuse the credentials four times and
// accept them afterwards. The route and each of its accounts try the credentials again after
// providers.config_open_for, without a restart.
func TestRefusedCredentialsAreTriedAgain(t *testing.T) {
	w := newWorld(t, simulator.Config{}, func(c *app.Config) { c.Providers.ConfigOpenFor = 100 * time.Millisecond })
	for _, p := range []simulator.Provider{simulator.SendGrid, simulator.Twilio, simulator.APNs} {
		if _, err := w.sim.AddRule(simulator.Rule{Provider: p, Do: simulator.Deny, Count: 4}); err != nil {
			t.Fatal(err)
		}
	}
	n := w.start(cluster.RoleAll)
	sms := push(2)
	sms.Channel, sms.Category, sms.To.Address = "sms", "otp", "+15550100"
	sms.Content.Title = ""
	for _, m := range []api.Notification{mail("otp"), sms, push(1)} {
		a, err := n.Send(t.Context(), m, "")
		if err != nil {
			t.Fatal(err)
		}
		st := n.status(a.NotificationID, func(s notify.State) bool { return s == notify.Sent || s == notify.Delivered || s == notify.Failed })
		if st.Status == "FAILED" || st.Attempts > 1 {
			t.Errorf("%+v", st)
		}
	}
}

// TestAmbiguousAnswers checks calls that the provider executes but does not answer. A marketing
// e-mail becomes UNKNOWN and is not sent again. An e-mail with an otp code is sent again with the
// same id, and the ledger counts a duplicate.
func TestAmbiguousAnswers(t *testing.T) {
	for _, do := range []simulator.Action{simulator.Hang, simulator.Reset} {
		t.Run(string(do), func(t *testing.T) {
			w := newWorld(t, simulator.Config{}, func(c *app.Config) {
				c.Workers.CallLimit, c.Workers.BatchAge = 5*time.Second, 10*time.Millisecond // 5 s, so that calls that are only slow do not time out
			})
			n := w.start(cluster.RoleAll)
			for category, want := range map[string]notify.State{"marketing": notify.Unknown, "otp": notify.Sent} {
				w.sim.Ledger().Reset()
				if _, err := w.sim.AddRule(simulator.Rule{Provider: simulator.SendGrid, Do: do, Count: 1}); err != nil {
					t.Fatal(err)
				}
				a, err := n.Send(t.Context(), mail(category), "")
				if err != nil {
					t.Fatal(err)
				}
				n.status(a.NotificationID, func(s notify.State) bool { return s == want })
				sum := w.sim.Ledger().Summary()
				wantDup := uint64(0)
				if want == notify.Sent {
					wantDup = 1
				}
				t.Logf("%s: %v, takes=%d duplicates=%d", category, want, sum.Deliveries, sum.Duplicates)
				if sum.IDs != 1 || sum.Duplicates != wantDup {
					t.Errorf("ids %d, duplicates %d, want 1 and %d", sum.IDs, sum.Duplicates, wantDup)
				}
			}
		})
	}
}

// TestOptOutDuringAFanout stores opt-outs while a fan-out to 20,000 receivers runs. It checks that
// the fan-out respects opt-outs that notifyd has answered with 200. A call may start up to a minute
// after the answer, because a call that was checked before the opt-out may wait for the processor.
// pkg/worker tests the limit of one second on a simulated clock.
func TestOptOutDuringAFanout(t *testing.T) {
	const latency = 200 * time.Millisecond
	w := newWorld(t, simulator.Config{APNs: simulator.APNsConfig{Latency: simulator.Constant(latency)}}, func(c *app.Config) {
		c.Workers.Push.InFlight, c.Workers.Push.Window = 1000, 250
	})
	n := w.start(cluster.RoleAll)
	fan, err := n.Fanout(t.Context(), api.Fanout{Channel: "push", Category: "transactional", Content: api.Content{Body: "b"}, Receivers: receivers(20_000)}, "")
	if err != nil {
		t.Fatal(err)
	}
	n.eventually("the fan-out runs", func() bool { return w.sim.Ledger().Summary().Receivers > 1000 })
	answered := map[int]time.Time{}
	var mu sync.Mutex
	var writers sync.WaitGroup
	for s := range 8 {
		writers.Go(func() {
			// The 8 writers together opt out a tenth of the second half of the receivers.
			for i := 10_000 + s; i < 20_000; i += 8 * 10 {
				if _, err := n.PutUser(t.Context(), api.User{UserID: push(i).To.UserID, OptOut: []string{"push"}}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				answered[i] = time.Now()
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	counts := n.counts(fan.FirstID)
	base, err := notify.ParseID(fan.FirstID)
	if err != nil {
		t.Fatal(err)
	}
	worst := time.Duration(0)
	for i, at := range answered {
		id := base
		id.Index = uint32(i)
		for _, d := range w.sim.Ledger().Lookup(id.String()) {
			worst = max(worst, d.At.Sub(at))
		}
	}
	t.Logf("opt_outs=%d suppressed=%d delivered=%d; the last call that was made all the same started %v after the 200",
		len(answered), counts["SUPPRESSED"], counts["DELIVERED"], worst.Round(time.Millisecond))
	if worst > time.Minute {
		t.Errorf("a call started %v after the opt-out was answered", worst)
	}
	if counts["SUPPRESSED"] < len(answered)/4 || counts["SUPPRESSED"]+counts["DELIVERED"] != 20_000 {
		t.Errorf("%v", counts)
	}
}
