package worker

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

func optedOut(string) users.Verdict { return users.Verdict{Action: users.OptedOut} }

// While preferences are too old, bulk lanes stop. When preferences are recent again, bulk lanes
// continue and respect them. Other lanes never stop.
func TestBulkStandsWhilePreferencesAreStale(t *testing.T) {
	for _, lane := range []notify.Lane{bulkMail, {Channel: notify.Push, Bulk: true}, {Channel: notify.SMS, Bulk: true}, emailLane, smsLane, pushLane} {
		t.Run(lane.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, lane)
				p.prefs.age(true, nil)
				cat := notify.Transactional
				if lane.Bulk {
					cat = notify.Marketing
				}
				one, many := p.envelope(cat, "ann"), p.envelope(cat, userIDs(100)...)
				p.send(one, many)
				pass(time.Hour)
				if n := p.prov.count(); lane.Bulk != (n == 0) {
					t.Fatalf("%d calls by stale preferences", n)
				}
				p.prefs.age(false, optedOut)
				pass(time.Minute)
				want := notify.Delivered
				if lane.Bulk {
					want = notify.Suppressed
				}
				for _, e := range []*notify.Envelope{&one, &many} {
					for i := range e.Count {
						if s := p.state(e, i).State; s != want {
							t.Fatalf("%s: %v, want %v", e.ID(i), s, want)
						}
					}
				}
			})
		})
	}
}

// Preferences that become too old while a window waits, for capacity or for its route, also stop
// the window.
func TestBulkStandsAfterAWait(t *testing.T) {
	throttled := notify.Result{Class: notify.ClassThrottled, RetryAfter: 20 * time.Second, Code: "http_429", Provider: "prov"}
	for name, c := range map[string]struct {
		users []string
		first notify.Result // the answer of the first call, after 20 s
	}{
		"for capacity":  {[]string{"ann", "bob"}, accepted},
		"for its route": {[]string{"bob"}, throttled},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, bulkMail, func(c *Config) { c.InFlight, c.BatchAge = 1, -1 })
				first := true
				p.prov.set(20*time.Second, func(*notify.Item) (notify.Result, bool) {
					if first {
						first = false
						return c.first, c.first.Class == notify.ClassAccepted
					}
					return accepted, true
				})
				var last notify.Envelope
				for _, u := range c.users {
					last = p.envelope(notify.Marketing, u)
					p.send(last)
					pass(time.Second)
				}
				p.prefs.age(true, nil)
				pass(time.Hour)
				before := p.prov.count()
				p.prefs.age(false, optedOut)
				pass(time.Minute)
				if n := p.prov.count(); before != 1 || n != 1 {
					t.Errorf("%d calls, then %d; want the first alone", before, n)
				}
				if s := p.state(&last, 0).State; s != notify.Suppressed {
					t.Errorf("%v", s)
				}
			})
		})
	}
}

// A process that stops while its bulk lane waits leaves the work to the next process.
func TestStopWhilePreferencesAreStale(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, bulkMail)
		p.prefs.age(true, nil)
		e := p.envelope(notify.Marketing, userIDs(3)...)
		p.send(e)
		pass(time.Minute)
		p.drain()
		p.prefs.age(false, nil)
		p.start()
		pass(time.Minute)
		for i := range e.Count {
			if s := p.state(&e, i).State; s != notify.Delivered {
				t.Errorf("%v", s)
			}
			if n, again := p.prov.took(e.ID(i)); n != 1 || again != 0 {
				t.Errorf("taken %d times", n+again)
			}
		}
	})
}

// Preferences were never read, because their store was unreachable when the process began.
// Receivers with an address in the request are called, the others wait until the store is back,
// and bulk waits completely.
func TestPreferencesNeverRead(t *testing.T) {
	for _, lane := range []notify.Lane{pushLane, smsLane, emailLane, bulkMail} {
		t.Run(lane.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, lane)
				p.prefs.mu.Lock()
				p.prefs.absent = true
				p.prefs.addresses["bob"], p.prefs.addresses["cyd"], p.prefs.addresses["dan"] = nil, nil, nil
				p.prefs.mu.Unlock()
				p.prefs.age(true, nil)
				cats := []notify.Category{notify.OTP, notify.Alert, notify.Transactional}
				if lane.Bulk {
					cats = []notify.Category{notify.Marketing, notify.Digest}
				}
				var all []notify.Envelope
				for _, cat := range cats {
					all = append(all, p.envelope(cat, "ann", "bob", "cyd"))
				}
				expires := p.envelope(cats[0], "dan")
				expires.Expires = time.Now().Add(time.Minute).UnixMilli()
				p.send(append(all, expires)...)
				pass(10 * time.Minute)
				for i := range all {
					ann, bob := p.state(&all[i], 0).State, p.state(&all[i], 1)
					if lane.Bulk {
						if ann != notify.Accepted || bob.State != notify.Accepted {
							t.Fatalf("%v: %v and %v by preferences that are not known", cats[i], ann, bob)
						}
						continue
					}
					if ann != notify.Delivered || bob.State != notify.Deferred || bob.Code != "preferences_away" {
						t.Fatalf("%v: with an address %v, without %+v", cats[i], ann, bob)
					}
				}
				p.prefs.mu.Lock()
				p.prefs.absent, p.prefs.addresses["bob"] = false, []string{"addr-bob"}
				p.prefs.mu.Unlock()
				p.prefs.age(false, nil)
				pass(time.Minute)
				for i := range all {
					ann, bob, cyd := p.state(&all[i], 0).State, p.state(&all[i], 1).State, p.state(&all[i], 2)
					if ann != notify.Delivered || bob != notify.Delivered || cyd.State != notify.Failed || cyd.Code != notify.CodeNoAddress {
						t.Errorf("%v: %v, %v, %+v", cats[i], ann, bob, cyd)
					}
				}
				if s := p.state(&expires, 0).State; s != notify.Expired {
					t.Errorf("what expired meanwhile is %v", s)
				}
			})
		})
	}
}

// While cancellations are too old, bulk lanes stop, and notifications that are cancelled in the
// meantime are not called. Other lanes continue.
func TestBulkStandsWhileCancellationsAreStale(t *testing.T) {
	for _, lane := range []notify.Lane{bulkMail, {Channel: notify.Push, Bulk: true}, {Channel: notify.SMS, Bulk: true}, emailLane, smsLane, pushLane} {
		t.Run(lane.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, lane)
				p.cancel.age(true, false)
				cat, want := notify.Transactional, notify.Delivered
				if lane.Bulk {
					cat, want = notify.Marketing, notify.Cancelled
				}
				e := p.envelope(cat, userIDs(100)...)
				p.send(e)
				pass(time.Hour)
				if n := p.prov.count(); lane.Bulk != (n == 0) {
					t.Fatalf("%d calls by stale cancellations", n)
				}
				p.cancel.age(false, true)
				pass(time.Minute)
				for i := range e.Count {
					if s := p.state(&e, i).State; s != want {
						t.Fatalf("%s: %v, want %v", e.ID(i), s, want)
					}
				}
			})
		})
	}
}
