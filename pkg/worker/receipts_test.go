package worker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// receipt stores a provider's later report about an item, as the webhook does.
func (p *plant) receipt(item *notify.Item, s notify.State, code string) {
	p.t.Helper()
	x := notify.Exception{Addr: item.Addr, State: s, Code: code, Provider: "prov", Receipt: "SM1"}
	err := p.store.Status().Put(context.Background(), []notify.Row{{
		Key: notify.ReceiptKey(*item.Key, item.Index, item.Addr, s), Count: 1, Done: true,
		Updated: time.Now().UnixMilli(), Default: x, Exceptions: []notify.Exception{x},
	}})
	if err != nil {
		p.t.Error(err)
	}
}

var cut = notify.Result{Class: notify.ClassAmbiguous, Code: "connection_lost", Provider: "prov"}

// A receipt that comes before the retry of an unanswered call settles the item. The retry makes
// no call, whether it is in the log or parked.
func TestReceiptBeforeTheRetry(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		says   []notify.State
		want   notify.State
		failed int
		calls  int
	}{
		"delivered":         {says: []notify.State{notify.Delivered}, want: notify.Delivered, calls: 1},
		"delivered, parked": {after: time.Minute, says: []notify.State{notify.Delivered}, want: notify.Delivered, calls: 1},
		"failed":            {says: []notify.State{notify.Failed}, want: notify.Failed, failed: 1, calls: 1},
		"both":              {says: []notify.State{notify.Failed, notify.Delivered}, want: notify.Delivered, calls: 1},
		"none":              {want: notify.Delivered, calls: 2},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, smsLane)
				p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
					if item.Key.Attempt > 0 {
						return accepted, true
					}
					for _, s := range c.says {
						p.receipt(item, s, "code")
					}
					r := cut
					r.RetryAfter = c.after
					return r, true
				})
				e := p.envelope(notify.OTP, "ann")
				p.send(e)
				pass(2 * time.Minute)
				if n := p.prov.count(); n != c.calls {
					t.Errorf("%d calls, want %d", n, c.calls)
				}
				out := p.state(&e, 0)
				if out.State != c.want {
					t.Errorf("%+v, want %v", out, c.want)
				}
				dead := p.failed()
				if len(dead) != c.failed {
					t.Fatalf("failed: %+v", dead)
				}
				for _, f := range dead {
					if f.Attempts != 1 || f.Class != "permanent" || f.Code != "code" {
						t.Errorf("%+v", f)
					}
				}
				if n := p.log.waiting(smsLane.DLQTopic()); n != 0 {
					t.Errorf("%d retries are not done", n)
				}
			})
		})
	}
}

// The same after a crash: a receiver that was claimed and has no outcome is called again, unless
// a receipt reports on its call.
func TestReceiptBeforeTheResend(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, smsLane)
		p.prov.set(time.Minute, func(item *notify.Item) (notify.Result, bool) {
			if item.Index%2 == 0 {
				p.receipt(item, notify.Delivered, "")
			}
			return accepted, true
		})
		e := p.envelope(notify.OTP, userIDs(4)...)
		p.send(e)
		pass(time.Second)
		p.crash()
		p.prov.set(0, nil)
		p.start()
		pass(time.Minute)
		for i := range e.Count {
			want := int(i % 2)
			if _, again := p.prov.took(e.ID(i)); again != want {
				t.Errorf("receiver %d: sent again %d times, want %d", i, again, want)
			}
			if s := p.state(&e, i).State; s != notify.Delivered {
				t.Errorf("receiver %d: %v", i, s)
			}
		}
	})
}

// A receipt that comes while the retry waits for capacity counts too.
func TestReceiptWhileTheRetryWaits(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, emailLane, func(c *Config) { c.InFlight, c.BatchAge = 1, -1 })
		var late notify.Item
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			if item.Key.Attempt > 0 {
				return accepted, true
			}
			if string(item.User) == "bob" {
				late = *item
			}
			return cut, true
		})
		ann, bob := p.envelope(notify.OTP, "ann"), p.envelope(notify.OTP, "bob")
		p.send(ann)
		pass(100 * time.Millisecond)
		p.prov.takes(20 * time.Second) // ann's retry
		pass(2 * time.Second)
		p.prov.takes(0)
		p.send(bob)
		pass(3 * time.Second) // bob's retry has read the receipts, and waits behind ann's
		before := p.prov.count()
		p.receipt(&late, notify.Delivered, "")
		pass(time.Minute)
		if n := p.prov.count(); before != 3 || n != 3 {
			t.Errorf("%d calls, then %d; want 3 each: ann twice, bob once", before, n)
		}
		for _, e := range []*notify.Envelope{&ann, &bob} {
			if s := p.state(e, 0).State; s != notify.Delivered {
				t.Errorf("%v", s)
			}
		}
	})
}

// A receipt settles its own address and no other.
func TestReceiptOfOneAddress(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, smsLane)
		p.prefs.addresses["ann"] = []string{"home", "work"}
		calls := map[string]int{}
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			calls[string(item.Address)]++
			if item.Key.Attempt > 0 {
				return accepted, true
			}
			if item.Addr == 0 {
				p.receipt(item, notify.Failed, "code")
			}
			return cut, true
		})
		e := p.envelope(notify.OTP, "ann")
		p.send(e)
		pass(time.Minute)
		if calls["home"] != 1 || calls["work"] != 2 {
			t.Errorf("calls %v", calls)
		}
		if s := p.state(&e, 0).State; s != notify.Delivered {
			t.Errorf("%v", s)
		}
		if n := len(p.failed()); n != 0 {
			t.Errorf("%d failed", n)
		}
	})
}

// While the store cannot return receipts, no call is made, not even by a process that is
// stopping.
func TestReceiptsUnknown(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, smsLane)
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			p.receipt(item, notify.Delivered, "")
			return cut, true
		})
		p.life.parts[smsLane.DLQTopic()].w.cfg.Status = noReceipts{p.cfg.Status}
		e := p.envelope(notify.OTP, "ann")
		p.send(e)
		pass(time.Minute)
		p.crash()
		p.start()
		pass(time.Minute)
		if n := p.prov.count(); n != 1 {
			t.Errorf("%d calls", n)
		}
		if n := p.log.waiting(smsLane.DLQTopic()); n != 0 {
			t.Errorf("%d retries are not done", n)
		}
	})
}

// noReceipts is a store that fails to return receipts.
type noReceipts struct{ engine.Status }

func (s noReceipts) Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error) {
	if keys[0].Kind == notify.RowReceipt {
		return nil, notify.Unavailable("status", 0, nil)
	}
	return s.Status.Get(ctx, keys)
}

// If a receiver ends without a further call but a receipt says that its earlier call was
// delivered, it is DELIVERED. Its caller is not told that it failed.
func TestReceiptBeforeAnEnd(t *testing.T) {
	for name, end := range map[string]func(p *plant, e *notify.Envelope){
		"its address is suppressed": func(p *plant, _ *notify.Envelope) {
			_ = p.prefs.Suppress(context.Background(), "ann", notify.SMS, "addr-ann", "code")
		},
		"it is cancelled": func(p *plant, _ *notify.Envelope) { p.cancel.age(false, true) },
		"it expired while the process was down": func(p *plant, _ *notify.Envelope) {
			p.crash()
			pass(10 * time.Minute)
			p.start()
		},
	} {
		for _, delivered := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", delivered ", delivered), func(t *testing.T) {
				in(t, func(t *testing.T) {
					p := newPlant(t, smsLane)
					p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
						if delivered {
							p.receipt(item, notify.Delivered, "")
						}
						r := cut
						r.RetryAfter = time.Minute
						return r, true
					})
					e := p.envelope(notify.OTP, "ann")
					e.Expires = time.Now().Add(5 * time.Minute).UnixMilli()
					p.send(e)
					pass(time.Second)
					end(p, &e)
					pass(5 * time.Minute)
					if n := p.prov.count(); n != 1 {
						t.Errorf("%d calls", n)
					}
					want, failed := notify.Delivered, 0
					if !delivered {
						want, failed = notify.Unknown, 1
					}
					if out := p.state(&e, 0); out.State != want {
						t.Errorf("%+v, want %v", out, want)
					}
					if dead := p.failed(); len(dead) != failed {
						t.Errorf("failed: %+v", dead)
					}
				})
			})
		}
	}
}
