package worker

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// In a strict lane the messages of a user wait behind a message that waits for its retry, even
// through a crash. When that message has ended, they are sent in order. Other users do not wait,
// and the mark moves.
func TestStrictOrder(t *testing.T) {
	for order, want := range map[Order]string{Relaxed: "1231", Strict: "1123"} {
		t.Run(want, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, pushLane, func(c *Config) { c.Order = order })
				well := time.Now().Add(10 * time.Second)
				first := p.envelope(notify.Transactional, "ann")
				p.prov.set(20*time.Millisecond, func(item *notify.Item) (notify.Result, bool) {
					if item.ID() == first.ID(0) && time.Now().Before(well) {
						return notify.Result{Class: notify.ClassRetry, RetryAfter: 20 * time.Second, Code: "busy", Provider: "prov"}, false
					}
					return accepted, true
				})
				second, third := p.envelope(notify.Transactional, "bob", "ann"), p.envelope(notify.OTP, "ann")
				p.send(first, second, third)
				pass(2 * time.Second)
				if n := p.log.waiting(pushLane.Topic()); n != 0 {
					t.Errorf("%d records are not done", n)
				}
				if n, _ := p.prov.took(second.ID(0)); n != 1 {
					t.Error("another user is held up")
				}
				p.crash()
				p.start()
				pass(15 * time.Minute)
				got := ""
				for _, id := range p.prov.all["ann"] {
					n, _ := p.prov.took(id)
					for i, e := range []notify.ID{first.ID(0), second.ID(1), third.ID(0)} {
						if id == e && n == 1 {
							got += string(rune('1' + i))
						}
					}
				}
				if got != want {
					t.Errorf("calls of %s, want %s", got, want)
				}
				for _, e := range []notify.Envelope{first, third} {
					if s := p.state(&e, 0).State; s != notify.Delivered {
						t.Errorf("%v", s)
					}
				}
			})
		})
	}
}

// The next envelope gets its turn when the hold is durable, not before.
func TestStrictOrderWaitsForTheHold(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) { c.Order = Strict })
		stored := make(chan struct{})
		p.plan.Add(faulty.Rule{Method: "Holds.Update", Times: 1, Hold: stored})
		p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
			return notify.Result{Class: notify.ClassRetry, RetryAfter: time.Hour, Code: "busy", Provider: "prov"}, false
		})
		p.send(p.envelope(notify.Transactional, "ann"), p.envelope(notify.Transactional, "ann"))
		pass(10 * time.Second)
		close(stored)
		pass(10 * time.Second)
		if n := p.prov.count(); n != 1 {
			t.Errorf("%d calls, want that of the first", n)
		}
	})
}

// A copy of the first record is read when the envelope that this record handed on has ended
// already. After that, no hold remains.
func TestStrictOrderLetsGo(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) { c.Order = Strict })
		quiet := time.Now().Add(6 * time.Second)
		p.prefs.verdict = func(string) (v users.Verdict) {
			if time.Now().Before(quiet) {
				v = users.Verdict{Action: users.Quiet, Until: quiet.UnixMilli()}
			}
			return v
		}
		e, next := p.envelope(notify.Transactional, "ann"), p.envelope(notify.Transactional, "ann")
		p.send(e)
		pass(15 * time.Second)
		p.send(e, next) // its timer was released: parked again, it is the same
		pass(10 * time.Second)
		if s := p.state(&next, 0).State; s != notify.Delivered {
			t.Errorf("%v: held by one that has ended", s)
		}
		if n := p.prov.count(); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
	})
}
