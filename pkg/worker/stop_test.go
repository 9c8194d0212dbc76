package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A graceful stop repeats nothing, wherever windows are: at the provider, or waiting for the
// order, for capacity, or for a provider that is shut. The next owner does not take receivers
// that were claimed but not called for called ones.
func TestDrainRepeatsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		lane    notify.Lane
		change  func(*Config)
		envs    func(p *plant) []notify.Envelope
		latency time.Duration
		down    time.Duration
	}{
		"at the provider": {
			lane: pushLane, latency: 3 * time.Second,
			envs: func(p *plant) []notify.Envelope {
				return []notify.Envelope{p.envelope(notify.Transactional, userIDs(100)...)}
			},
		},
		"for the order": {
			lane: bulkMail, latency: 3 * time.Second, change: func(c *Config) { c.BatchAge = -1 },
			envs: func(p *plant) (es []notify.Envelope) {
				for range 10 {
					es = append(es, p.envelope(notify.Marketing, "ann"))
				}
				return es
			},
		},
		"for capacity": {
			lane: bulkMail, latency: 3 * time.Second, change: func(c *Config) { c.InFlight, c.BatchAge = 2, -1 },
			envs: func(p *plant) (es []notify.Envelope) {
				for i := range 20 {
					es = append(es, p.envelope(notify.Marketing, fmt.Sprint(i)))
				}
				return append(es, p.envelope(notify.Marketing, userIDs(200)...))
			},
		},
		"for capacity, sms": {
			lane: smsLane, latency: 3 * time.Second, change: func(c *Config) { c.InFlight = 10 },
			envs: func(p *plant) (es []notify.Envelope) {
				for i := range 20 {
					es = append(es, p.envelope(notify.OTP, fmt.Sprint(i)))
				}
				return append(es, p.envelope(notify.Alert, userIDs(200)...))
			},
		},
		"for the provider": {
			lane: bulkMail, latency: 100 * time.Millisecond, down: time.Minute, change: func(c *Config) { c.BatchAge = -1 },
			envs: func(p *plant) (es []notify.Envelope) {
				for i := range 20 {
					es = append(es, p.envelope(notify.Marketing, fmt.Sprint(i)))
				}
				return append(es, p.envelope(notify.Marketing, userIDs(200)...))
			},
		},
		"in a bag of mails": {
			lane: bulkMail, latency: 3 * time.Second,
			envs: func(p *plant) (es []notify.Envelope) {
				for i := range 20 {
					e := p.envelope(notify.Marketing, fmt.Sprint(i%15))
					e.Content.Template = "tpl"
					es = append(es, e)
				}
				return es
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{time.Millisecond, time.Second, 4 * time.Second, 7 * time.Second} {
				t.Run(after.String(), func(t *testing.T) {
					in(t, func(t *testing.T) {
						p := newPlant(t, c.lane, func(cfg *Config) {
							cfg.Window, cfg.Ahead = 10, 4
							if c.change != nil {
								c.change(cfg)
							}
						})
						up := time.Now().Add(c.down)
						p.prov.set(c.latency, func(*notify.Item) (notify.Result, bool) {
							if time.Now().Before(up) {
								return notify.Result{Class: notify.ClassThrottled, RetryAfter: time.Until(up), Code: "http_429", Provider: "prov"}, false
							}
							return accepted, true
						})
						envs := c.envs(p)
						p.send(envs...)
						pass(after)
						began := time.Now()
						p.drain()
						if took := time.Since(began); took > 31*time.Second {
							t.Errorf("the stop took %v", took)
						}
						p.start()
						pass(20 * time.Minute)
						for i := range envs {
							rows := p.rows(&envs[i])
							for r := range envs[i].Count {
								if s := notify.Fold(rows, r, r).State; s != notify.Delivered {
									t.Fatalf("%s: %v\n%+v", envs[i].ID(r), s, rows)
								}
								if n, again := p.prov.took(envs[i].ID(r)); n != 1 || again != 0 {
									t.Fatalf("%s: taken %d times", envs[i].ID(r), n+again)
								}
							}
							if len(rows) != 1 && (c.down == 0 || envs[i].Count == 1) {
								t.Fatalf("the stop put %s off behind what its users are sent next: %+v", envs[i].ID(0), rows)
							}
							for k := range rows {
								if rows[k].Resent != 0 {
									t.Fatalf("the row says that %d were sent again", rows[k].Resent)
								}
							}
						}
					})
				})
			}
		})
	}
}

// Calls that still hang at the end of the drain keep their claims, because the provider may have
// processed them. The next owner does not call marketing by mail a second time. It calls codes
// again and counts them.
func TestDrainRunsOut(t *testing.T) {
	for name, c := range map[string]struct {
		lane notify.Lane
		cat  notify.Category
		want notify.State
	}{
		"mail, marketing": {bulkMail, notify.Marketing, notify.Unknown},
		"push, codes":     {pushLane, notify.OTP, notify.Delivered},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, c.lane, func(cfg *Config) { cfg.BatchAge, cfg.CallLimit = -1, time.Minute })
				p.prov.set(time.Minute, nil)
				var envs []notify.Envelope
				for i := range 100 {
					envs = append(envs, p.envelope(c.cat, fmt.Sprint(i)))
				}
				p.send(envs...)
				pass(time.Second)
				if n := p.prov.count(); n != len(envs) {
					t.Fatalf("%d calls under way, want %d", n, len(envs))
				}
				p.drainFor(20 * time.Second)
				for i := range envs {
					if rows := p.rows(&envs[i]); len(rows) != 1 || rows[0].Done || rows[0].StartedUpTo != 1 {
						t.Fatalf("after the stop the claim of %s is gone: %+v", envs[i].ID(0), rows)
					}
				}
				p.prov.takes(0)
				p.start()
				pass(time.Minute)
				calls := 2 * len(envs)
				if c.want == notify.Unknown {
					calls = len(envs)
				}
				if n := p.prov.count(); n != calls {
					t.Errorf("%d calls in both lives, want %d", n, calls)
				}
				for i := range envs {
					if s := p.state(&envs[i], 0).State; s != c.want {
						t.Fatalf("%s: %v, want %v", envs[i].ID(0), s, c.want)
					}
				}
			})
		})
	}
}

// A copy of an envelope in flight is marked as done together with that envelope, and the receivers
// are called once.
func TestCopyInFlight(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prov.set(time.Second, nil)
		e, next := p.envelope(notify.OTP, "ann"), p.envelope(notify.OTP, "ann")
		p.send(e, e)
		pass(100 * time.Millisecond)
		p.send(e, next)
		pass(100 * time.Millisecond)
		if n := p.prov.count(); n != 1 {
			t.Fatalf("%d calls: the copy passed the order", n)
		}
		pass(time.Minute)
		for _, id := range []notify.ID{e.ID(0), next.ID(0)} {
			if n, again := p.prov.took(id); n != 1 || again != 0 {
				t.Errorf("taken %d times", n+again)
			}
		}
		if n := p.log.waiting(pushLane.Topic()); n != 0 {
			t.Errorf("%d records are not done", n)
		}
	})
}

// A copy is read while the first envelope is finishing. A row that was read for the copy before
// that would be older than the outcome.
func TestCopyReadBeforeTheOutcome(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prov.set(time.Second, nil)
		e := p.envelope(notify.OTP, "ann")
		p.send(e)
		pass(500 * time.Millisecond)
		status := &slowGet{Status: p.cfg.Status, after: time.Second}
		p.life.parts[pushLane.Topic()].w.cfg.Status = status
		p.send(e)
		pass(time.Minute)
		if n, again := p.prov.took(e.ID(0)); n != 1 || again != 0 {
			t.Errorf("taken %d times", n+again)
		}
	})
}

// A chunk is read again with other receivers, while the first is in flight or after it is finished.
// Every receiver is called once.
func TestMismatch(t *testing.T) {
	for _, when := range []time.Duration{time.Millisecond, time.Minute} {
		t.Run(when.String(), func(t *testing.T) {
			in(t, func(t *testing.T) {
				p := newPlant(t, pushLane)
				p.prov.set(time.Second, nil)
				a := p.envelope(notify.Transactional, userIDs(10)...)
				b := a
				var w notify.ReceiverWriter
				for i := range 15 {
					w.Append(notify.Receiver{Index: uint32(i), User: []byte(name(i)), Address: []byte("addr")})
				}
				b.Receivers, b.Count = w.Bytes(), w.Count()
				p.send(a)
				pass(when)
				p.send(b, b)
				pass(time.Minute)
				for i := range uint32(15) {
					if n, _ := p.prov.took(a.ID(i)); n != 1 {
						t.Errorf("receiver %d: taken %d times", i, n)
					}
				}
				p.crash()
				p.start()
				p.send(b)
				pass(time.Minute)
				for i := range uint32(15) {
					if n, again := p.prov.took(a.ID(i)); n != 1 || again != 0 {
						t.Errorf("receiver %d: taken %d times", i, n+again)
					}
				}
				if n := p.log.waiting(pushLane.Topic()); n != 0 {
					t.Errorf("%d records are not done", n)
				}
			})
		})
	}
}

// A panic uses one attempt. The other receivers of the window lose only that one.
func TestPanic(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane)
		p.prov.set(0, func(item *notify.Item) (notify.Result, bool) {
			if string(item.User) == name(7) {
				p.prov.mu.Unlock() // held by Send
				panic("of the provider")
			}
			return accepted, true
		})
		e := p.envelope(notify.Transactional, userIDs(20)...)
		p.send(e)
		pass(time.Minute)
		for i := range e.Count {
			want := notify.Delivered
			if i == 7 {
				want = notify.Failed
			}
			if s := p.state(&e, i).State; s != want {
				t.Errorf("receiver %d: %v, want %v", i, s, want)
			}
		}
		if f := p.failed()[e.ID(7).String()]; f.Attempts != 4 || f.Code != "panic" {
			t.Errorf("%+v", f)
		}
	})
}

// Single mails with one template share calls. Codes do not wait for mails, not even behind a
// mail that is held.
func TestMailBatches(t *testing.T) {
	in(t, func(t *testing.T) {
		r := newRig(t, emailLane, func(c *Config) { c.Window = 50 })
		var envs []notify.Envelope
		for i := range 120 {
			e := r.envelope(notify.Transactional, name(i))
			e.Content.Template = "receipt"
			envs = append(envs, e)
		}
		other := r.envelope(notify.Transactional, "other")
		other.Content.Template = "other"
		began := time.Now()
		r.feed(append(envs, other, r.envelope(notify.OTP, "code"))...)
		pass(time.Millisecond)
		sizes := func() (ns []int) {
			r.prov.mu.Lock()
			defer r.prov.mu.Unlock()
			for _, c := range r.prov.calls {
				ns = append(ns, len(c))
			}
			slices.Sort(ns)
			return ns
		}
		if got := sizes(); !slices.Equal(got, []int{1, 50, 50}) {
			t.Fatalf("calls of %v at once, want the code and two full ones", got)
		}
		r.feed(r.envelope(notify.OTP, name(119))) // behind one that is held
		pass(time.Millisecond)
		if r.prov.count()[name(119)] != 2 {
			t.Errorf("a code waits %v behind a mail that is held", time.Since(began))
		}
		pass(5 * time.Second)
		if got := sizes(); !slices.Equal(got, []int{1, 1, 1, 20, 50, 50}) {
			t.Errorf("calls of %v", got)
		}
	})
}

// After an ambiguous answer, marketing mail is UNKNOWN; it is not sent again and is in no feed.
// Other messages are sent again. If every answer is ambiguous, they are UNKNOWN in the failed feed.
// The third answer opens the circuit. So a single receiver is called 3 times, and then maxDoubts
// more times.
func TestAmbiguous(t *testing.T) {
	in(t, func(t *testing.T) {
		for lane, want := range map[notify.Lane]int{bulkMail: 1, emailLane: 3 + maxDoubts} {
			p := newPlant(t, lane, func(c *Config) { c.HasOutcomesURL = func(string) bool { return true } })
			p.prov.set(0, func(*notify.Item) (notify.Result, bool) {
				return notify.Result{Class: notify.ClassAmbiguous, Code: "timeout", Provider: "prov"}, true
			})
			cat := notify.Marketing
			if !lane.Bulk {
				cat = notify.OTP
			}
			e := p.envelope(cat, "ann")
			p.send(e)
			pass(time.Hour)
			if s := p.state(&e, 0).State; s != notify.Unknown || p.prov.count() != want {
				t.Errorf("%v: %v after %d calls, want UNKNOWN after %d", lane, s, p.prov.count(), want)
			}
			id := e.ID(0).String()
			told, f := p.told()[id], p.failed()
			switch {
			case lane.Bulk && (len(f) != 0 || len(told) != 1 || told[0].Status != "UNKNOWN"):
				t.Errorf("%v: failures %v, ends %v; want it among the ends", lane, f, told)
			case !lane.Bulk && (len(told) != 0 || f[id].Class != "ambiguous" || f[id].Code != "timeout" || f[id].Attempts != want):
				t.Errorf("%v: failures %+v, ends %v; want it among the failures, ambiguous after %d calls", lane, f, told, want)
			}
		}
	})
}

// If a turn leaves without waiting for earlier turns, later turns do not overtake these earlier
// turns.
func TestOrderIsPassedOn(t *testing.T) {
	t.Parallel()
	o := newUserOrder()
	a, b, c := o.enter([]uint64{1}, 1), o.enter([]uint64{1}, 1), o.enter([]uint64{1}, 1)
	o.leave(b)
	if c.hasCome() {
		t.Fatal("the third passed the first")
	}
	o.leave(a)
	if !c.hasCome() {
		t.Fatal("the third waits for nobody")
	}
	o.leave(c)
	if len(o.openTurns) != 0 {
		t.Fatalf("%d turns open", len(o.openTurns))
	}
}

var _ log.Drainer = (*partition)(nil)

// slowReads is a store whose reads of rows take a second.
type slowReads struct{ engine.Status }

func (s slowReads) Resume(ctx context.Context, t engine.Tenure, keys []notify.RowKey) ([]notify.Row, error) {
	time.Sleep(time.Second)
	return s.Status.Resume(ctx, t, keys)
}

// A drain that begins while the rows of new records are read waits for these records. Records that
// are polled after the drain began are left to the next owner.
func TestDrainWaitsForWhatIsAccepted(t *testing.T) {
	in(t, func(t *testing.T) {
		p := newPlant(t, pushLane, func(c *Config) { c.Status = slowReads{c.Status} })
		part := p.life.parts[pushLane.Topic()]
		p.send(p.envelope(notify.OTP, "ann"))
		pass(100 * time.Millisecond)
		began := time.Now()
		part.Drain(p.life.ctx)
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("the drain waited %v for a read of a second", took)
		}
		p.send(p.envelope(notify.OTP, "ben"))
		pass(time.Minute)
		part.mu.Lock()
		defer part.mu.Unlock()
		if len(part.liveJobs) > 1 {
			t.Errorf("%d envelopes were taken, one of them after the drain", len(part.liveJobs))
		}
	})
}
