package worker

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A stop does not count as a death of the process. Receivers that one crash left ambiguous may
// go through any number of restarts, called or not, and are sent once that is possible.
// Otherwise they would be taken for receivers that kill the process.
func TestStopsAreNoCrashes(t *testing.T) {
	for name, c := range map[string]struct {
		paused bool
		resent uint32
	}{
		"the lane is paused":   {paused: true, resent: 1},
		"the provider is shut": {resent: 11},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				gate := &Gate{}
				p := newPlant(t, pushLane, func(cfg *Config) { cfg.Gate = gate })
				p.prov.set(time.Hour, nil)
				e := p.envelope(notify.OTP, "ann")
				p.send(e)
				pass(time.Second) // the call is under way
				p.crash()
				gate.Set(c.paused)
				p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
					return notify.Result{Class: notify.ClassThrottled, RetryAfter: time.Hour, Code: "http_429", Provider: "prov"}, false
				})
				for range 10 {
					p.start()
					pass(time.Second)
					p.drain()
				}
				gate.Set(false)
				p.prov.set(0, nil)
				p.start()
				pass(time.Minute)
				row := p.rows(&e)[0]
				if got := p.state(&e, 0); got.State != notify.Delivered || row.Starts > 2 || row.Resent != c.resent {
					t.Errorf("%+v after %d starts, %d sent again\n%+v", got, row.Starts, row.Resent, row)
				}
			})
		})
	}
}

// Mails that wait for other mails with the same content are dropped at their deadline, like all
// other mails, while operators pause the lane and while the provider is shut.
func TestHeldMailExpires(t *testing.T) {
	for name, paused := range map[string]bool{"paused": true, "shut": false} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				gate := &Gate{}
				p := newPlant(t, emailLane, func(cfg *Config) { cfg.Gate = gate })
				p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
					return notify.Result{Class: notify.ClassConfig, Code: "http_403", Provider: "prov"}, false
				})
				gate.Set(paused)
				if !paused {
					p.send(p.envelope(notify.OTP, "bob")) // this call finds out that the provider refuses
				}
				pass(time.Second)
				calls := p.prov.count()
				var held []notify.Envelope
				for _, user := range []string{"ann", "cid"} {
					e := p.envelope(notify.Transactional, user)
					e.Content.Template, e.Expires = "tpl", time.Now().Add(time.Minute).UnixMilli()
					held = append(held, e)
				}
				p.send(held...)
				pass(90 * time.Second)
				for i := range held {
					if got := p.state(&held[i], 0).State; got != notify.Expired {
						t.Errorf("%v half a minute after its deadline", got)
					}
				}
				if n := p.prov.count() - calls; n != 0 {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

// Receivers put into the timer store are reported, because metrics depend on it.
func TestParkedIsTold(t *testing.T) {
	in(t, func(t *testing.T) {
		var mu sync.Mutex
		parked := map[notify.Lane]int{}
		p := newPlant(t, pushLane, func(cfg *Config) {
			cfg.Events.Parked = func(l notify.Lane, n int) {
				mu.Lock()
				defer mu.Unlock()
				parked[l] += n
			}
		})
		first := map[string]bool{}
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			if user := string(item.User); user != name(0) && !first[user] {
				first[user] = true
				return notify.Result{Class: notify.ClassRetry, RetryAfter: time.Minute, Code: "later", Provider: "prov"}, false
			}
			return accepted, true
		})
		e := p.envelope(notify.Transactional, name(0), name(1), name(2))
		p.send(e)
		pass(5 * time.Minute)
		for i := range uint32(3) {
			if got := p.state(&e, i).State; got != notify.Delivered {
				t.Errorf("%v", got)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(parked) != 1 || parked[pushLane] != 2 {
			t.Errorf("told of %v", parked)
		}
	})
}

// Part of an envelope had its outcome before a crash, and then the envelope expires. Only the
// rest is reported, under the states that it got.
func TestRestOfAnEnvelopeIsTold(t *testing.T) {
	in(t, func(t *testing.T) {
		var told SettledInfo
		p := newPlant(t, smsLane, func(cfg *Config) {
			cfg.Events.Settled = func(s SettledInfo) { told = s }
		})
		e := p.envelope(notify.Alert, userIDs(6)...)
		e.Expires = time.Now().Add(-time.Minute).UnixMilli()
		// Two receivers have their outcomes, and two others were started.
		err := p.store.Status().Put(t.Context(), []notify.Row{{
			Key: e.Key(), Count: 6, Digest: notify.ColumnDigest(e.Receivers), Starts: 1, DoneUpTo: 2, StartedUpTo: 4,
			Default: notify.Exception{State: notify.Delivered, Provider: "prov"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		p.send(e)
		pass(time.Minute)
		want := map[notify.State]int{notify.Unknown: 2, notify.Expired: 2}
		for state, n := range told.States {
			if n != want[notify.State(state)] {
				t.Errorf("told of %d that are %v, want %d", n, notify.State(state), want[notify.State(state)])
			}
		}
		if told.Count != 4 || told.Codes["expired"] != 4 {
			t.Errorf("told of %d, codes %v", told.Count, told.Codes)
		}
	})
}

// panicsOnce is a store whose first read panics.
type panicsOnce struct {
	engine.Status
	once *sync.Once
}

func (s panicsOnce) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	s.once.Do(func() { panic("a bug of the store") })
	return s.Status.Resume(ctx, t, keys)
}

// If accept panics, the group hands the records over again, and they are delivered. They do not
// wait for themselves, and later records do not wait for them.
func TestAcceptPanicsAndGoesOn(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(cfg *Config) { cfg.Status = panicsOnce{cfg.Status, &sync.Once{}} })
		part := p.life.parts[pushLane.Topic()]
		envs := []notify.Envelope{p.envelope(notify.OTP, "ann"), p.envelope(notify.OTP, "bob"), p.envelope(notify.OTP, "ann")}
		marked := make([]bool, len(envs))
		var msgs []*log.Msg
		for i := range envs {
			msgs = append(msgs, log.NewMsg(log.Record{Topic: pushLane.Topic(), Offset: int64(i), Value: notify.AppendEnvelope(nil, &envs[i])}, func() { marked[i] = true }))
		}
		handle := func(msgs []*log.Msg) (panicked any) {
			defer func() { panicked = recover() }()
			if err := part.Handle(p.life.ctx, msgs); err != nil {
				t.Error(err)
			}
			return nil
		}
		if handle(msgs[:2]) == nil {
			t.Fatal("the store's panic was lost")
		}
		for i := range msgs { // one a call, as the group does
			if v := handle(msgs[i : i+1]); v != nil {
				t.Fatal(v)
			}
		}
		pass(time.Minute)
		for i := range envs {
			if got := p.state(&envs[i], 0).State; got != notify.Delivered || !marked[i] {
				t.Errorf("record %d: %v, marked %v", i, got, marked[i])
			}
		}
	})
}

// If an SMS lane is paused while a window waits for capacity, no call is made. The window is
// called when the lane continues.
func TestPausedWhileItWaitsForCapacity(t *testing.T) {
	in(t, func(t *testing.T) {
		gate := &Gate{}
		p := newPlant(t, smsLane, func(cfg *Config) { cfg.Gate, cfg.InFlight = gate, 1 })
		p.prov.set(10*time.Second, nil)
		one, two := p.envelope(notify.OTP, "ann"), p.envelope(notify.OTP, "bob")
		p.send(one, two)
		pass(time.Second)
		gate.Set(true)
		pass(time.Hour)
		if n := p.prov.count(); n != 1 {
			t.Errorf("%d calls, want that of before the pause alone", n)
		}
		gate.Set(false)
		pass(time.Minute)
		for _, e := range []*notify.Envelope{&one, &two} {
			if s := p.state(e, 0).State; s != notify.Delivered {
				t.Errorf("%s: %v", e.ID(0), s)
			}
		}
	})
}

// In an outage nothing fails, even if the breaker sees only a single message: in a process that
// starts during the outage, or when the previous call is so long ago that the breaker has forgotten
// it. Then the call of the last attempt opens the breaker and does not use up the attempt.
func TestLastAttemptInAnOutage(t *testing.T) {
	for what, c := range map[string]struct {
		class    notify.Class
		after    time.Duration
		restarts int
	}{
		"restarts":      {notify.ClassUnavailable, 0, 4},
		"retry after":   {notify.ClassUnavailable, time.Minute, 0},
		"no answer":     {notify.ClassAmbiguous, 0, 4},
		"late and lost": {notify.ClassAmbiguous, time.Minute, 0},
	} {
		t.Run(what, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, pushLane)
				up := time.Now().Add(10 * time.Minute)
				p.prov.set(20*time.Millisecond, func(*notify.Item) (notify.Result, bool) {
					if time.Now().Before(up) {
						return notify.Result{Class: c.class, RetryAfter: c.after, Code: "http_503", Provider: "prov"}, false
					}
					return accepted, true
				})
				e := p.envelope(notify.Transactional, "ann")
				p.send(e)
				for range c.restarts {
					pass(1500 * time.Millisecond) // one call or two: fewer than open the breaker
					p.drain()
					p.start()
				}
				pass(20 * time.Minute) // ClassAmbiguous doubles its wait up to 8 minutes
				if got := p.state(&e, 0); got.State != notify.Delivered {
					t.Errorf("%+v", got)
				}
				if n := len(p.failed()); n != 0 {
					t.Errorf("%d failed", n)
				}
			})
		})
	}
}

// If the provider fails only for one message, that message is given up. While others are delivered,
// the call of its last attempt does not open the breaker.
func TestLastAttemptBesideOthers(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prov.set(20*time.Millisecond, func(it *notify.Item) (notify.Result, bool) {
			if string(it.User) == "ann" {
				return notify.Result{Class: notify.ClassUnavailable, Code: "http_500", Provider: "prov"}, false
			}
			return accepted, true
		})
		bad := p.envelope(notify.Transactional, "ann")
		p.send(p.envelope(notify.Transactional, "bob"), bad)
		for i := range 10 {
			pass(2 * time.Second)
			p.send(p.envelope(notify.Transactional, name(i)))
		}
		pass(10 * time.Second)
		if got := p.state(&bad, 0); got.State != notify.Failed {
			t.Errorf("%+v", got)
		}
	})
}
