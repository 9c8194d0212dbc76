package worker

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

var accepted = notify.Result{Class: notify.ClassAccepted, Confirmed: true, Provider: "prov"}

// in runs a test in a bubble.
func in(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// While a provider is down for ten minutes, nothing fails and no attempts are used. When it is
// back, it gets everything without help: first attempts and retries.
func TestOutageOfTenMinutes(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) { c.Window, c.Ahead = 10, 4 })
		up := time.Now().Add(10 * time.Minute)
		p.prov.set(20*time.Millisecond, func(*notify.Item) (notify.Result, bool) {
			if time.Now().Before(up) {
				return notify.Result{Class: notify.ClassUnavailable, Code: "http_503", Provider: "prov"}, false
			}
			return accepted, true
		})
		var envs []notify.Envelope
		for i := range 300 {
			envs = append(envs, p.envelope(notify.Transactional, name(i)))
		}
		envs = append(envs, p.envelope(notify.Transactional, userIDs(1000)...))
		p.send(envs...)
		pass(10 * time.Minute)
		down := p.prov.count()
		pass(time.Minute)
		for i := range envs {
			rows := p.rows(&envs[i])
			for r := range envs[i].Count {
				if s := notify.Fold(rows, r, r).State; s != notify.Delivered {
					t.Fatalf("%s a minute after the outage: %v", envs[i].ID(r), s)
				}
			}
		}
		if n := len(p.failed()); n != 0 {
			t.Errorf("%d failed", n)
		}
		t.Logf("1,300 receivers, %d calls while the provider was down", down)
		if down > 300 {
			t.Errorf("%d calls against a provider that is down", down)
		}
	})
}

// A provider accepts requests and does not answer them for ten minutes. The calls time out, the
// circuit opens, and from then on a time-out uses no attempt. Each call may be a duplicate, so the
// number of calls for a receiver is bounded. All receivers are sent when the provider is back.
func TestHangingProviderUsesNoAttempts(t *testing.T) {
	for name, n := range map[string]int{"few": 3, "many": 300} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, pushLane)
				p.prov.set(time.Hour, nil) // beyond the limit of a call
				var envs []notify.Envelope
				for i := range n {
					envs = append(envs, p.envelope(notify.OTP, fmt.Sprint("u", i)))
				}
				p.send(envs...)
				pass(10 * time.Minute)
				p.prov.takes(20 * time.Millisecond)
				pass(10 * time.Minute) // the longest wait is 8 minutes plus jitter
				for i := range envs {
					out := p.state(&envs[i], 0)
					user := fmt.Sprint("u", i)
					if calls := len(p.prov.all[user]); out.State != notify.Delivered || int(out.Attempt) > 2 || calls > 3+maxDoubts {
						t.Errorf("%s: %v in attempt %d after %d calls", user, out.State, out.Attempt, calls)
					}
				}
				if f := p.failed(); len(f) != 0 {
					t.Errorf("%d failed", len(f))
				}
			})
		})
	}
}

// An open circuit closes with the answers to its first probes, even if one round has all the
// receivers there are. The receivers of the round are sent in one call, and that call must not
// count as three probes.
func TestOneRoundClosesItsCircuit(t *testing.T) {
	for name, lane := range map[string]notify.Lane{"mail": emailLane, "push": pushLane} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, lane)
				var up atomic.Bool
				p.prov.set(20*time.Millisecond, func(*notify.Item) (notify.Result, bool) {
					if !up.Load() {
						return notify.Result{Class: notify.ClassUnavailable, Code: "http_503", Provider: "prov"}, false
					}
					return accepted, true
				})
				e := p.envelope(notify.Transactional, userIDs(20)...)
				p.send(e)
				pass(time.Second)
				if _, open := p.life.health.StoppedBy(&p.cfg.Routes, time.Now()); !open {
					t.Fatal("the circuit is closed")
				}
				up.Store(true)
				pass(7 * time.Second) // it is open for 5 s
				for r := range e.Count {
					if s := p.state(&e, r).State; s != notify.Delivered {
						t.Fatalf("%s two seconds after the first probes: %v", e.ID(r), s)
					}
				}
			})
		})
	}
}

// lag sends a chunk of 2,000 and 200 singles through a push lane whose provider answers as
// verdict says. It returns the p99 of the time to DELIVERED over the receivers for which slow is
// false.
func lag(t *testing.T, slow func(user string) bool, verdict func(string) users.Verdict, answer func(*notify.Item) (notify.Result, bool)) time.Duration {
	p := newPlant(t, pushLane, func(c *Config) { c.Window, c.Ahead, c.InFlight = 100, 4, 500 })
	p.prefs.verdict = verdict
	began := time.Now()
	took := map[string]time.Duration{}
	p.prov.set(50*time.Millisecond, func(item *notify.Item) (notify.Result, bool) {
		r, ok := accepted, true
		if answer != nil {
			r, ok = answer(item)
		}
		if ok {
			took[item.ID().String()] = time.Since(began)
		}
		return r, ok
	})
	envs := []notify.Envelope{p.envelope(notify.Transactional, userIDs(2000)...)}
	for i := range 200 {
		envs = append(envs, p.envelope(notify.Transactional, name(i)))
	}
	p.send(envs...)
	pass(time.Minute)
	var rest []time.Duration
	for i := range envs {
		for r, u := range userIDs(int(envs[i].Count)) {
			if envs[i].Count == 1 {
				u = name(i - 1)
			}
			if slow(u) {
				continue
			}
			d, ok := took[envs[i].ID(uint32(r)).String()]
			if !ok {
				t.Fatalf("%s was not sent within a minute", u)
			}
			rest = append(rest, d)
		}
	}
	if n := p.log.waiting(pushLane.Topic()); n != 0 {
		t.Errorf("waiting holds the mark: %d records are not done", n)
	}
	slices.Sort(rest)
	return rest[len(rest)*99/100]
}

// If a tenth of the receivers of a partition have quiet hours or get a Retry-After of an hour, the
// other receivers are not slower.
func TestWaitsDoNotSlowTheRest(t *testing.T) {
	tenth := func(u string) bool { return strings.HasSuffix(u, "7") }
	var plain, quiet, hour time.Duration
	synctest.Test(t, func(t *testing.T) { plain = lag(t, tenth, nil, nil) })
	synctest.Test(t, func(t *testing.T) {
		wake := time.Now().Add(8 * time.Hour).UnixMilli()
		quiet = lag(t, tenth, func(u string) (v users.Verdict) {
			if tenth(u) {
				v = users.Verdict{Action: users.Quiet, Until: wake}
			}
			return v
		}, nil)
	})
	synctest.Test(t, func(t *testing.T) {
		hour = lag(t, tenth, nil, func(item *notify.Item) (notify.Result, bool) {
			if tenth(string(item.User)) {
				return notify.Result{Class: notify.ClassRetry, RetryAfter: time.Hour, Code: "busy", Provider: "prov"}, false
			}
			return accepted, true
		})
	})
	t.Logf("p99 of the rest: %v without, %v beside quiet hours, %v beside an hour's Retry-After", plain, quiet, hour)
	// Which message gets into which round of 50 ms calls differs from run to run. One round more is
	// no slowdown. If these waits stopped the mark, the others would be hours late.
	if most := plain*11/10 + 50*time.Millisecond; quiet > most || hour > most {
		t.Errorf("the rest is slowed: %v, %v, without %v", quiet, hour, plain)
	}
}

// An opt-out, a cancel and a suppression apply to a running fan-out: no call starts more than a
// second later. (Here they are known at once; this test does not show how fast they become known.)
func TestBindsARunningFanout(t *testing.T) {
	for _, what := range []string{"opt-out", "cancel", "suppression", "quiet hours"} {
		t.Run(what, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, pushLane, func(c *Config) { c.Window, c.Ahead, c.InFlight = 1000, 16, 1000 })
				var at, last time.Time
				p.prov.set(2*time.Second, func(*notify.Item) (notify.Result, bool) { last = time.Now(); return accepted, true })
				e := p.envelope(notify.Transactional, userIDs(20_000)...)
				p.send(e)
				pass(9 * time.Second) // of the 40 s that all calls take
				at = time.Now()
				want := notify.Suppressed
				switch what {
				case "opt-out":
					p.prefs.mu.Lock()
					p.prefs.verdict = func(string) users.Verdict { return users.Verdict{Action: users.OptedOut} }
					p.prefs.mu.Unlock()
				case "quiet hours":
					want = notify.Deferred
					until := time.Now().Add(8 * time.Hour).UnixMilli()
					p.prefs.mu.Lock()
					p.prefs.verdict = func(string) users.Verdict { return users.Verdict{Action: users.Quiet, Until: until} }
					p.prefs.mu.Unlock()
				case "cancel":
					want = notify.Cancelled
					p.cancel.mu.Lock()
					p.cancel.all = true
					p.cancel.mu.Unlock()
				default:
					p.prefs.mu.Lock()
					p.prefs.suppressed = map[string]bool{}
					for _, u := range userIDs(20_000) {
						p.prefs.suppressed["addr-"+u] = true
					}
					p.prefs.mu.Unlock()
				}
				pass(time.Minute)
				if after := last.Sub(at); after > time.Second {
					t.Errorf("a call started %v later", after)
				}
				n, rows := 0, p.rows(&e)
				for r := range e.Count {
					if s := notify.Fold(rows, r, r).State; s == want {
						n++
					} else if s != notify.Delivered {
						t.Fatalf("%d: %v", r, s)
					}
				}
				t.Logf("%d of 20,000 receivers were not called; the last call started %v after the %s", n, max(0, last.Sub(at)), what)
				if n < 14_000 {
					t.Errorf("only %d were held back", n)
				}
			})
		})
	}
}

// A retry calls only the failed addresses. A receiver that was reached at one address has not
// failed.
func TestSeveralAddresses(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prefs.addresses["ann"] = []string{"good", "bad"}
		p.prefs.addresses["bob"] = []string{"bad", "bad"}
		p.prefs.addresses["cyd"] = nil
		p.prefs.addresses["dan"] = []string{"dead"}
		p.prefs.suppressed = map[string]bool{"dead": true}
		calls := map[string]int{}
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			calls[string(item.User)+"/"+string(item.Address)]++
			if string(item.Address) == "bad" {
				return notify.Result{Class: notify.ClassRetry, Code: "busy", Provider: "prov"}, false
			}
			return accepted, true
		})
		e := p.envelope(notify.Transactional, "ann", "bob", "cyd", "dan")
		p.send(e)
		pass(time.Minute)
		for i, want := range []notify.State{notify.Delivered, notify.Failed, notify.Failed, notify.Suppressed} {
			if got := p.state(&e, uint32(i)); got.State != want {
				t.Errorf("receiver %d: %+v, want %v", i, got, want)
			}
		}
		if got := p.state(&e, 2).Code; got != notify.CodeNoAddress {
			t.Errorf("code %q", got)
		}
		for who, want := range map[string]int{"ann/good": 1, "ann/bad": 4, "bob/bad": 8} {
			if calls[who] != want {
				t.Errorf("%s: %d calls, want %d", who, calls[who], want)
			}
		}
		if len(calls) != 3 {
			t.Errorf("calls: %v", calls)
		}
		dead := p.failed()
		if _, ok := dead[e.ID(0).String()]; ok || len(dead) != 2 {
			t.Errorf("failed: %+v", dead)
		}
	})
}

// A caller that wants every outcome is told each outcome that is not a failure when the receiver
// has ended.
func TestTellsEveryEnd(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) { c.HasOutcomesURL = func(caller string) bool { return caller == "test" } })
		p.prefs.addresses["ann"] = []string{"good", "bad"} // reached at the first, given up at the second
		p.prefs.addresses["bob"] = []string{"bad"}
		p.prefs.addresses["dan"] = []string{"dead"}
		p.prefs.suppressed = map[string]bool{"dead": true}
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			if string(item.Address) == "bad" {
				return notify.Result{Class: notify.ClassRetry, Code: "busy", Provider: "prov"}, false
			}
			return accepted, true
		})
		e := p.envelope(notify.Transactional, "ann", "bob", "dan", "eve")
		e.Caller, e.Content.Template = "test", "tpl"
		p.send(e)
		pass(time.Second)
		if told := p.told(); len(told) != 2 || told[e.ID(0).String()] != nil {
			t.Errorf("told while retries go on: %+v", told)
		}
		pass(time.Minute)
		told := p.told()
		for i, want := range []notify.EndedReceiver{
			{User: "ann", Status: "FAILED", Code: "busy", Provider: "prov", Attempts: 4, Look: true},
			{},
			{User: "dan", Status: "SUPPRESSED", Code: told[e.ID(2).String()][0].Code},
			{User: "eve", Status: "DELIVERED", Provider: "prov", Attempts: 1},
		} {
			got := told[e.ID(uint32(i)).String()]
			if want == (notify.EndedReceiver{}) {
				if got != nil {
					t.Errorf("a failure is told of here too: %+v", got)
				}
				continue
			}
			if want.ID = e.ID(uint32(i)).String(); len(got) != 1 || got[0] != want {
				t.Errorf("receiver %d: %+v, want %+v", i, got, want)
			}
		}
		other := p.envelope(notify.Transactional, "fay")
		other.Caller = "another"
		p.send(other)
		pass(time.Minute)
		if got := p.told()[other.ID(0).String()]; got != nil {
			t.Errorf("a caller that did not ask is told: %+v", got)
		}
	})
}

// If the deadline passes while one of two addresses waits for its retry, the receiver ends, and
// the address that was reached still counts.
func TestDeadlineBetweenAddresses(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prefs.addresses["ann"] = []string{"good", "bad"}
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			if string(item.Address) == "bad" {
				return notify.Result{Class: notify.ClassThrottled, RetryAfter: 2 * time.Second, Code: "busy", Provider: "prov"}, false
			}
			return accepted, true
		})
		e := p.envelope(notify.OTP, "ann")
		e.Expires = time.Now().Add(10 * time.Second).UnixMilli()
		p.send(e)
		pass(time.Minute)
		if got := p.state(&e, 0); got.State != notify.Delivered {
			t.Errorf("%+v", got)
		}
	})
}

// While one of two push providers is down, its receivers are parked, the other receivers are
// called, and the mark moves.
func TestOneOfTwoProvidersOpen(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) {
			c.Routes = Routes{Names: []string{"apns", "fcm"}, Of: func(a []byte) int { return int(a[len(a)-1]) % 2 }}
		})
		up := time.Now().Add(10 * time.Minute)
		p.prov.set(20*time.Millisecond, func(item *notify.Item) (notify.Result, bool) {
			if item.Address[len(item.Address)-1]%2 == 1 && time.Now().Before(up) {
				return notify.Result{Class: notify.ClassUnavailable, Code: "http_503", Provider: "fcm"}, false
			}
			return accepted, true
		})
		var envs []notify.Envelope
		for i := range 100 {
			envs = append(envs, p.envelope(notify.Transactional, name(i)))
		}
		p.send(envs...)
		pass(5 * time.Minute)
		if n := p.log.waiting(pushLane.Topic()); n > 0 {
			t.Errorf("%d records are not done", n)
		}
		for i := range envs {
			want := notify.Delivered
			if i%2 == 1 {
				want = notify.Deferred
			}
			if s := p.state(&envs[i], 0).State; s != want {
				t.Fatalf("%d: %v, want %v", i, s, want)
			}
		}
		pass(6 * time.Minute)
		for i := range envs {
			if s := p.state(&envs[i], 0).State; s != notify.Delivered {
				t.Fatalf("%d: %v", i, s)
			}
		}
		if n := len(p.failed()); n != 0 {
			t.Errorf("%d failed", n)
		}
	})
}
