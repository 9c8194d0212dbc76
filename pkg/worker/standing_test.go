package worker

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A refused key stops the lane for minutes. Receivers of an open window stay with their worker,
// and their row says what they wait for and until when. Then they are sent, once. A crash
// meanwhile does not change that.
func TestRefusedKeyIsTold(t *testing.T) {
	for name, crash := range map[string]bool{"": false, "crash": true} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, emailLane)
				refused := notify.Result{Class: notify.ClassConfig, Code: "http_403", Provider: "prov:pool"}
				p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
					if p.prov.calls == 0 {
						return refused, false
					}
					return accepted, true
				})
				began := time.Now()
				one, two := p.envelope(notify.OTP, "ann"), p.envelope(notify.OTP, "bob")
				p.send(one)
				pass(time.Second)
				p.send(two)
				pass(time.Second)
				open := began.Add(5 * time.Minute)
				row := p.rows(&one)[0]
				x, ok := row.DeferredAt(0)
				if !ok || x.Code != "http_403" || x.Provider != "prov:pool" || time.UnixMilli(x.Wake).Sub(open).Abs() > time.Second {
					t.Errorf("the row says %+v, %v", x, ok)
				}
				if out := p.state(&one, 0); out.State != notify.Deferred || out.Code != "http_403" {
					t.Errorf("%+v", out)
				}
				c, ok := p.life.health.StoppedBy(&p.cfg.Routes, time.Now())
				if !ok || c.Account != "prov:pool" || c.Code != "http_403" || c.Reason != "config" || c.Since.Before(began) || c.Since.After(time.Now()) || c.RetryAt.UnixMilli() != x.Wake {
					t.Errorf("%+v, %v", c, ok)
				}
				if rows := p.rows(&two); len(rows) != 0 {
					t.Errorf("claimed while the lane stands: %+v", rows)
				}
				if crash {
					p.crash()
					p.start()
				}
				pass(6 * time.Minute)
				for _, e := range []*notify.Envelope{&one, &two} {
					if s := p.state(e, 0).State; s != notify.Delivered {
						t.Errorf("%v", s)
					}
					if n, again := p.prov.took(e.ID(0)); n != 1 || again != 0 {
						t.Errorf("taken %d times", n+again)
					}
				}
				if row := p.rows(&one)[0]; !row.Done || len(row.Exceptions) != 0 {
					t.Errorf("in the end %+v", row)
				}
				if c, ok := p.life.health.StoppedBy(&p.cfg.Routes, time.Now()); ok {
					t.Errorf("still stands: %+v", c)
				}
				for _, user := range []string{"cleo", "dan", "eve"} { // a circuit closes after three good probes of one round
					p.send(p.envelope(notify.OTP, user))
					pass(time.Second)
				}
				for _, c := range p.life.health.Circuits(time.Now()) {
					if c.State != "closed" || c.Code != "" || !c.Since.IsZero() {
						t.Errorf("closed, and %+v", c)
					}
				}
			})
		})
	}
}

// Short waits are not written into the row, because they are not worth a write.
func TestShortWaitIsNotTold(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, emailLane)
		p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
			if p.prov.calls == 0 {
				return notify.Result{Class: notify.ClassThrottled, RetryAfter: time.Second, Code: "http_429", Provider: "prov"}, false
			}
			return accepted, true
		})
		e := p.envelope(notify.OTP, "ann")
		p.send(e)
		pass(500 * time.Millisecond)
		if x, ok := p.rows(&e)[0].DeferredAt(0); ok {
			t.Errorf("%+v", x)
		}
		pass(time.Minute)
		if s := p.state(&e, 0).State; s != notify.Delivered {
			t.Errorf("%v", s)
		}
	})
}

// The wait in the row ends with the wait itself, although other windows of the envelope are
// claimed and called later. Other outcomes in the row do not change.
func TestRemarkEnds(t *testing.T) {
	in(t, func(t *testing.T) {
		up := time.Now().Add(time.Minute)
		p := newPlant(t, emailLane, func(c *Config) {
			c.Window, c.Ahead = 2, 2
			c.Provider = slowFrom{c.Provider, 2, up}
		})
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			switch {
			case item.Index == 1:
				return notify.Result{Class: notify.ClassPermanent, Code: "bad", Provider: "prov"}, false
			case time.Now().Before(up):
				return notify.Result{Class: notify.ClassThrottled, RetryAfter: time.Until(up), Code: "http_429", Provider: "prov"}, false
			}
			return accepted, true
		})
		e := p.envelope(notify.Transactional, userIDs(6)...)
		p.send(e)
		states := func(want ...notify.State) {
			t.Helper()
			for i := range e.Count {
				if out := p.state(&e, i); out.State != want[i] {
					t.Errorf("receiver %d: %+v, want %v", i, out, want[i])
				}
			}
		}
		pass(10 * time.Second)
		states(notify.Deferred, notify.Deferred, notify.Deferred, notify.Deferred, notify.Accepted, notify.Accepted)
		pass(55 * time.Second) // the third window is claimed, the last two are called
		if row := p.rows(&e)[0]; row.DoneUpTo != 2 || row.StartedUpTo != 6 {
			t.Fatalf("%+v", row)
		}
		states(notify.Delivered, notify.Failed, notify.Accepted, notify.Accepted, notify.Accepted, notify.Accepted)
		pass(time.Minute)
		states(notify.Delivered, notify.Failed, notify.Delivered, notify.Delivered, notify.Delivered, notify.Delivered)
	})
}

// slowFrom is a provider that is slow from a certain time on, for receivers with a certain index or
// a higher one.
type slowFrom struct {
	Provider
	index uint32
	from  time.Time
}

func (s slowFrom) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	if call.Items[0].Index >= s.index && !time.Now().Before(s.from) {
		time.Sleep(20 * time.Second) // of the bubble
	}
	s.Provider.Send(ctx, call, report)
}
