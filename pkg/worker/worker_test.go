package worker

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

var (
	pushLane  = notify.Lane{Channel: notify.Push}
	smsLane   = notify.Lane{Channel: notify.SMS}
	bulkMail  = notify.Lane{Channel: notify.Email, Bulk: true}
	emailLane = notify.Lane{Channel: notify.Email}
)

func TestDeliversASingle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		e := r.envelope(notify.OTP, "ann")
		at := r.feed(e)
		synctest.Wait()
		if got := r.state(&e, 0); got.State != notify.Delivered {
			t.Fatalf("state %v", got)
		}
		if !r.isMarked(at[0]) {
			t.Fatal("not marked")
		}
		if n := r.prov.count()["ann"]; n != 1 {
			t.Fatalf("%d calls", n)
		}
		r.crash()
		r.start()
		r.feed(e) // the mark was not committed: the record comes again
		synctest.Wait()
		if n := r.prov.count()["ann"]; n != 1 {
			t.Fatalf("%d calls after a redelivery", n)
		}
	})
}

func TestDeliversAChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		r.prov.latency = 50 * time.Millisecond
		e := r.envelope(notify.Transactional, userIDs(8300)...)
		at := r.feed(e)
		synctest.Wait()
		if r.isMarked(at[0]) {
			t.Fatal("marked before the outcome")
		}
		time.Sleep(time.Second) // of the bubble: the provider answers
		synctest.Wait()
		if !r.isMarked(at[0]) {
			t.Fatal("not marked")
		}
		for _, i := range []uint32{0, 999, 1000, 8299} {
			if got := r.state(&e, i); got.State != notify.Delivered {
				t.Fatalf("receiver %d: %v", i, got)
			}
		}
		if n := len(r.prov.count()); n != 8300 || len(r.prov.order()) != 8300 {
			t.Fatalf("%d users in %d calls", n, len(r.prov.order()))
		}
	})
}

// answersIn is a provider that answers for many items at once.
type answersIn func(report notify.Report, n int)

func (f answersIn) Send(_ context.Context, call *notify.Call, report notify.Report) {
	f(report, len(call.Items))
}

// Only the first answer for an item counts, however many items a report is about.
func TestReportsOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "prov"}
		never := notify.Result{Class: notify.ClassPermanent, Code: "bad", Provider: "prov"}
		told := 0
		r := newRig(t, pushLane, func(c *Config) {
			c.Events.Settled = func(s SettledInfo) { told += s.Count }
			c.Provider = answersIn(func(report notify.Report, n int) {
				report(0, n/2, ok)
				report(n/4, n*3/4, never)
				report(0, n, ok)
			})
		})
		e := r.envelope(notify.Transactional, userIDs(400)...)
		at := r.feed(e)
		synctest.Wait()
		if !r.isMarked(at[0]) {
			t.Fatal("not marked")
		}
		if told != 400 {
			t.Errorf("%d outcomes", told)
		}
		for i := range uint32(400) {
			want := notify.Delivered
			if i >= 200 && i < 300 {
				want = notify.Failed
			}
			if got := r.state(&e, i).State; got != want {
				t.Fatalf("receiver %d: %v", i, got)
			}
		}
	})
}

// A provider that reports items out of range does not stop others. A report of no items does
// nothing.
func TestReportsOutOfRange(t *testing.T) {
	for _, c := range []struct{ from, past int }{{0, 1}, {-1, 0}, {1, -4}} {
		synctest.Test(t, func(t *testing.T) {
			wrong := true
			r := newRig(t, pushLane, func(cfg *Config) {
				cfg.Provider = answersIn(func(report notify.Report, n int) {
					ok := notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "prov"}
					report(0, 0, ok)
					report(n, n, ok)
					if wrong {
						wrong = false
						report(c.from, n+c.past, ok)
					}
					report(0, n, ok)
				})
			})
			e, f := r.envelope(notify.Transactional, userIDs(4)...), r.envelope(notify.Transactional, userIDs(4)...)
			r.feed(e)
			synctest.Wait()
			r.feed(f)
			time.Sleep(6 * time.Second) // of the bubble: the panic opened the circuit, for 5 s
			synctest.Wait()
			if got := r.state(&e, 0).State; got != notify.Deferred {
				t.Errorf("%+v: %v", c, got)
			}
			if got := r.state(&f, 0).State; got != notify.Delivered {
				t.Errorf("%+v: the next one %v", c, got)
			}
		})
	}
}

// Cancelled receivers are not called, and all others are.
func TestCancelledAreNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		e := r.envelope(notify.Transactional, userIDs(150)...)
		cancelled := map[notify.ID]bool{e.ID(3): true, e.ID(70): true, e.ID(149): true}
		r.cancel.ids = cancelled
		at := r.feed(e, r.envelope(notify.Transactional, "eve")) // nothing of eve's is cancelled
		synctest.Wait()
		if !r.isMarked(at[0]) {
			t.Fatal("not marked")
		}
		calls := r.prov.count()
		for i, u := range userIDs(150) {
			want, n := notify.Delivered, 1
			if cancelled[e.ID(uint32(i))] {
				want, n = notify.Cancelled, 0
			}
			if got := r.state(&e, uint32(i)).State; got != want || calls[u] != n {
				t.Fatalf("receiver %d: %v after %d calls", i, got, calls[u])
			}
		}
	})
}

// Windows that wait for earlier envelopes must not use up the budget that those envelopes need. The
// test has many large envelopes at once, and codes behind one of them.
func TestManyEnvelopesShareTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane, func(c *Config) { c.Window, c.Ahead = 200, 4 })
		r.prov.latency = 10 * time.Millisecond
		var envs []notify.Envelope
		for range 20 {
			envs = append(envs, r.envelope(notify.Transactional, userIDs(1000)...))
		}
		for _, u := range userIDs(1000) {
			envs = append(envs, r.envelope(notify.OTP, u))
		}
		at := r.feed(envs...)
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		for i, off := range at {
			if !r.isMarked(off) {
				t.Fatalf("envelope %d of %d stands", i, len(at))
			}
		}
	})
}

// A crash between the claim and the outcome leaves exactly the claimed receivers ambiguous. The
// row counts those that were called again.
func TestCrashAfterTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane, func(c *Config) { c.Window, c.Ahead = 100, 2 })
		r.prov.latency = time.Hour
		e := r.envelope(notify.Transactional, userIDs(1000)...)
		at := r.feed(e)
		synctest.Wait()
		if n := len(r.prov.order()); n != 200 {
			t.Fatalf("%d receivers called, want 2 windows of 100", n)
		}
		r.crash()
		r.prov.latency = 0
		r.start()
		r.feed(e)
		synctest.Wait()
		again := 0
		for u, n := range r.prov.count() {
			if n > 2 {
				t.Fatalf("%s called %d times", u, n)
			}
			again += n - 1
		}
		rows, err := r.status.Chunk(context.Background(), e.Chunk)
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		if again != 200 || rows[0].Resent != 200 {
			t.Fatalf("called again %d, row says %d, want 200", again, rows[0].Resent)
		}
		if !r.isMarked(at[0] + 1) {
			t.Fatal("not marked")
		}
	})
}

// Marketing by SMS and mail is not sent a second time if the provider may have processed it: it
// becomes UNKNOWN.
func TestCrashMakesMarketingMailUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, bulkMail, func(c *Config) { c.Window = 100; c.Ahead = 1 })
		r.prov.latency = time.Hour
		e := r.envelope(notify.Marketing, userIDs(300)...)
		r.feed(e)
		synctest.Wait()
		r.crash()
		r.prov.latency = 0
		r.start()
		r.feed(e)
		synctest.Wait()
		for u, n := range r.prov.count() {
			if n != 1 {
				t.Fatalf("%s called %d times", u, n)
			}
		}
		if s := r.state(&e, 0).State; s != notify.Unknown {
			t.Fatalf("started: %v", s)
		}
		if s := r.state(&e, 299).State; s != notify.Delivered {
			t.Fatalf("not started: %v", s)
		}
	})
}

// A receiver that kills the process is found, and only this receiver is given up.
func TestFindsTheReceiverThatKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane, func(c *Config) { c.Window, c.Ahead = 10, 1 })
		killed := false
		r.prov.before = func(call *notify.Call) {
			if slices.ContainsFunc(call.Items, func(i notify.Item) bool { return string(i.User) == "u00013" }) {
				killed = true
				r.stop() // the process dies before the provider answers
				<-r.ctx.Done()
			}
		}
		e := r.envelope(notify.Transactional, userIDs(30)...)
		lives := 0
		for {
			lives++
			killed = false
			r.feed(e)
			synctest.Wait()
			if !killed {
				break
			}
			if lives > 10 {
				t.Fatal("the receiver is never given up")
			}
			r.crash()
			r.start()
		}
		for i := range uint32(30) {
			want := notify.Delivered
			if i == 13 {
				want = notify.Failed
			}
			if got := r.state(&e, i); got.State != want {
				t.Errorf("receiver %d: %+v", i, got)
			}
		}
		fs := failures(t, r.log.take())
		if len(fs) != 1 || fs[0].User != "u00013" || fs[0].Code != "killed_worker" {
			t.Fatalf("failures %+v", fs)
		}
		t.Logf("found in %d lives", lives)
	})
}

func TestRetryThenFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		r.prov.set(answer(notify.ClassRetry, "apns_500"))
		e := r.envelope(notify.OTP, "ann")
		r.feed(e)
		synctest.Wait()
		for attempt := 1; attempt <= 3; attempt++ {
			recs := r.log.take()
			if len(recs) != 1 || recs[0].Topic != pushLane.DLQTopic() {
				t.Fatalf("attempt %d: %d records", attempt, len(recs))
			}
			d := decode(t, recs[0].Value)
			if int(d.Attempt) != attempt {
				t.Fatalf("attempt %d, want %d", d.Attempt, attempt)
			}
			if wait := d.NotBefore - time.Now().UnixMilli(); wait < 1000<<(attempt-1) {
				t.Fatalf("attempt %d comes after %d ms", attempt, wait)
			}
			if s := r.state(&e, 0).State; s != notify.Deferred {
				t.Fatalf("state %v", s)
			}
			r.retries(func() { r.feed(d); time.Sleep(time.Until(time.UnixMilli(d.NotBefore))); synctest.Wait() })
		}
		fs := failures(t, r.log.take())
		if len(fs) != 1 || fs[0].Code != "apns_500" || fs[0].Attempts != 4 || fs[0].Class != "retry" {
			t.Fatalf("failures %+v", fs)
		}
		if s := r.state(&e, 0).State; s != notify.Failed {
			t.Fatalf("state %v", s)
		}
	})
}

// retries runs f with the rig's worker in the role of the retry worker.
func (r *rig) retries(f func()) {
	r.crash()
	was := r.cfg.Role
	r.cfg.Role = Retries
	r.start()
	f()
	r.crash()
	r.cfg.Role = was
	r.start()
}

func TestOrderPerUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		r.prov.latency = 50 * time.Millisecond
		var envs []notify.Envelope
		for range 5 {
			envs = append(envs, r.envelope(notify.OTP, "ann"), r.envelope(notify.OTP, "bob"))
		}
		began := time.Now()
		r.feed(envs...)
		synctest.Wait()
		if n := len(r.prov.order()); n != 2 {
			t.Fatalf("%d calls at once, want one a user", n)
		}
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if n := len(r.prov.order()); n != 10 || time.Since(began) > time.Second {
			t.Fatalf("%d calls", n)
		}
	})
}

// A receiver whose quiet hours last until the deadline is EXPIRED at once. It is not deferred to
// a time that is too late.
func TestQuietUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		until := time.Now().Add(3 * time.Hour).UnixMilli()
		r.prefs.verdict = func(string) users.Verdict { return users.Verdict{Action: users.Quiet, Until: until} }
		e := r.envelope(notify.Transactional, "ann")
		e.Expires = until
		r.feed(e)
		synctest.Wait()
		if o := r.state(&e, 0); o.State != notify.Expired || o.Code != codeExpired {
			t.Errorf("%+v, want EXPIRED", o)
		}
	})
}

// A retry that would come at the deadline or later is not made: the receiver ends at once, as
// FAILED.
func TestRetryBehindTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		r.prov.set(answer(notify.ClassRetry, "not_now"))
		e := r.envelope(notify.Transactional, "ann")
		e.Expires = time.Now().Add(100 * time.Millisecond).UnixMilli()
		r.feed(e)
		synctest.Wait()
		if o := r.state(&e, 0); o.State != notify.Failed || o.Code != "not_now" {
			t.Errorf("%+v, want FAILED by the first answer", o)
		}
	})
}

// A retry that is read after its deadline ends FAILED. EXPIRED would say that no call was ever
// made.
func TestRetryReadBehindTheDeadline(t *testing.T) {
	for _, c := range []struct {
		role    Role
		attempt uint16
		cause   string
	}{{Retries, 1, "not_now"}, {First, 0, causeCalled + "not_now"}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, pushLane, func(cfg *Config) { cfg.Role = c.role })
			e := r.envelope(notify.Transactional, "ann")
			e.Attempt, e.Cause = c.attempt, c.cause
			e.Expires = time.Now().Add(-time.Second).UnixMilli()
			r.feed(e)
			synctest.Wait()
			if o := r.state(&e, 0); o.State != notify.Failed || o.Code != "deadline" {
				t.Errorf("attempt %d, %s: %+v, want FAILED deadline", c.attempt, c.cause, o)
			}
		})
	}
}

func TestQuietHoursDefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pushLane)
		wake := time.Now().Add(3 * time.Hour).Truncate(time.Second)
		r.prefs.verdict = func(u string) users.Verdict {
			if u < "u00010" {
				return users.Verdict{Action: users.Quiet, Until: wake.UnixMilli()}
			}
			return users.Verdict{}
		}
		e := r.envelope(notify.Transactional, userIDs(100)...)
		at := r.feed(e)
		synctest.Wait()
		if !r.isMarked(at[0]) {
			t.Fatal("waiting holds the mark")
		}
		ts := r.parked.take()
		if len(ts) != 1 || ts[0].FireAt != wake.UnixMilli() || ts[0].Target != pushLane.Topic() {
			t.Fatalf("parked %+v", ts)
		}
		d := decode(t, ts[0].Payload)
		if d.Count != 10 || d.Deferrals != 1 || d.Attempt != 0 {
			t.Fatalf("%+v", d)
		}
		time.Sleep(time.Until(wake))
		r.prefs.verdict = nil
		r.feed(d)
		synctest.Wait()
		for i := range uint32(100) {
			if s := r.state(&e, i).State; s != notify.Delivered {
				t.Fatalf("receiver %d: %v", i, s)
			}
		}
	})
}

// While all routes are shut, nothing fails and the lane waits. When a route opens, codes go first,
// and what has expired in the meantime is dropped.
func TestBlockedLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, smsLane, func(c *Config) { c.InFlight = 1 })
		blocked := time.Now().Add(10 * time.Minute)
		r.prov.set(func(*notify.Item) notify.Result {
			if d := time.Until(blocked); d > 0 {
				return notify.Result{Class: notify.ClassThrottled, RetryAfter: d, Code: "twilio_20429", Provider: "prov"}
			}
			return notify.Result{Class: notify.ClassAccepted, Provider: "prov", ProviderID: "SM1"}
		})
		first := r.envelope(notify.Alert, "first")
		r.feed(first)
		synctest.Wait()
		alert, short, code := r.envelope(notify.Alert, "alert"), r.envelope(notify.OTP, "short"), r.envelope(notify.OTP, "code")
		short.Expires = time.Now().Add(time.Minute).UnixMilli()
		r.feed(alert, short, code)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		order := r.prov.order()
		if !slices.Equal(order[len(order)-3:], []string{"first", "code", "alert"}) && !slices.Equal(order[len(order)-3:], []string{"code", "first", "alert"}) {
			t.Fatalf("order %v", order)
		}
		if slices.Contains(order, "short") {
			t.Fatal("an expired code was sent")
		}
		if s := r.state(&short, 0).State; s != notify.Expired {
			t.Fatalf("expired: %v", s)
		}
		for _, e := range []*notify.Envelope{&first, &alert, &code} {
			if s := r.state(e, 0).State; s != notify.Sent {
				t.Fatalf("state %v", s)
			}
		}
		if fs := failures(t, r.log.take()); len(fs) != 0 {
			t.Fatalf("failures %+v", fs)
		}
	})
}

func TestPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, emailLane)
		marked := false
		m := log.NewMsg(log.Record{Topic: emailLane.Topic(), Offset: 7, Value: []byte("garbage")}, func() { marked = true })
		if err := r.part.Handle(r.ctx, []*log.Msg{m}); err != nil {
			t.Fatal(err)
		}
		recs := r.log.take()
		if !marked || len(recs) != 1 || recs[0].Topic != notify.TopicPoison || string(recs[0].Value) != "garbage" {
			t.Fatalf("marked %v, records %+v", marked, recs)
		}
	})
}
