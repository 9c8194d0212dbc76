package worker

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
)

// No record is marked before its outcome is durable and everything is handed on. A crash while
// the store, the log or the timers hang loses nothing.
func TestCrashBeforeTheMark(t *testing.T) {
	for what, c := range map[string]struct {
		rule  faulty.Rule
		class notify.Class
		after time.Duration
		want  notify.State
	}{
		"outcome": {faulty.Rule{Method: "Status.Put", Skip: 1}, notify.ClassPermanent, 0, notify.Failed}, // the first is the claim
		"failure": {faulty.Rule{Method: "Status.Scan"}, notify.ClassPermanent, 0, notify.Failed},
		"retry":   {faulty.Rule{Method: "Status.Scan"}, notify.ClassRetry, 0, notify.Delivered},
		"park":    {faulty.Rule{Method: "Timers.Put"}, notify.ClassRetry, time.Minute, notify.Delivered},
	} {
		t.Run(what, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, pushLane)
				first := true
				p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
					if first || c.class == notify.ClassPermanent {
						first = false
						return notify.Result{Class: c.class, RetryAfter: c.after, Code: "no", Provider: "prov"}, false
					}
					return accepted, true
				})
				c.rule.Hold = make(chan struct{})
				over := p.plan.Add(c.rule)
				e := p.envelope(notify.Transactional, "ann")
				p.send(e)
				pass(10 * time.Second)
				if n := p.log.waiting(pushLane.Topic()); n != 1 {
					t.Error("marked before it was durable")
				}
				p.crash()
				over()
				p.start()
				pass(5 * time.Minute)
				if got := p.state(&e, 0); got.State != c.want {
					t.Errorf("%+v, want %v", got, c.want)
				}
				if n := len(p.failed()); (c.want == notify.Failed) != (n == 1) {
					t.Errorf("%d dead letters", n)
				}
			})
		})
	}
}

// EXPIRED, SUPPRESSED and CANCELLED are used only if no call was made. After a crash between a
// claim and its outcome, nobody knows whether a call was made.
func TestCrashThenDeadline(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) { c.Window = 1 })
		p.prov.set(time.Hour, nil)
		e := p.envelope(notify.OTP, "ann")
		e.Expires = time.Now().Add(time.Minute).UnixMilli()
		p.send(e)
		pass(20 * time.Second) // the call is under way
		p.crash()
		pass(time.Minute)
		late := p.envelope(notify.OTP, "bob")
		late.Expires = e.Expires
		p.send(late)
		p.start()
		pass(time.Minute)
		if got := p.state(&e, 0).State; got != notify.Unknown {
			t.Errorf("called before its deadline: %v, want UNKNOWN", got)
		}
		if got := p.state(&late, 0).State; got != notify.Expired {
			t.Errorf("never called: %v, want EXPIRED", got)
		}
	})
}
