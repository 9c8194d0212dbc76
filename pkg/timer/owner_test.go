package timer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
)

// told collects what events report; they come from many goroutines.
type told[T any] struct {
	mu  sync.Mutex
	all []T
}

func (x *told[T]) add(v T) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = append(x.all, v)
}

func (x *told[T]) list() []T {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.all)
}

func (x *told[T]) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = nil
}

// TestRenewalsAreSpread: an engine takes over many shards at once, because the number of shards was
// raised or another engine has ended. After that it does not renew all their leases at the same
// moments.
func TestRenewalsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards = 96
		s := newSim(t, func(c *Config) { c.Shards = shards })
		defer s.close()
		a := s.start("a")
		var mu sync.Mutex
		at := map[time.Time]int{}
		a.plan.Add(faulty.Rule{Method: "Lease.Renew", Hook: func(context.Context, string) {
			mu.Lock()
			defer mu.Unlock()
			at[time.Now()]++
		}})
		wait(15 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		most, all := 0, 0
		for _, n := range at {
			most, all = max(most, n), all+n
		}
		if s.owners()["a"] != shards || all < 9*shards || most > shards/renewPhases {
			t.Errorf("%d shards are owned, %d renewals in 15 s, %d at one moment; want at most %d", s.owners()["a"], all, most, shards/renewPhases)
		}
	})
}

// The leader crashes at any moment. The first release of the standby comes within 6 s, late rows
// are dispatched, and nothing is lost.
func TestTakeOverWithinSixSeconds(t *testing.T) {
	trials, worst := 500, time.Duration(0)
	if testing.Short() {
		trials = 50
	}
	for seed := range uint64(trials) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := newSim(t)
			defer s.close()
			a := s.start("a")
			wait(time.Duration(rng.IntN(1000)) * time.Millisecond) // out of step with each other
			s.start("b")
			wait(time.Duration(rng.IntN(20_000)) * time.Millisecond)
			// Each shard has a timer every 50 ms. So the first release shows the first moment at
			// which anybody could release.
			w, plan := s.writer()
			const every, n = 50 * time.Millisecond, 400
			var ts []engine.Timer
			for i := range n {
				ts = append(ts, timerIn(fmt.Sprint(i), time.Duration(i)*every))
			}
			if err := w.Park(t.Context(), ts); err != nil {
				t.Fatal(err)
			}
			wait(time.Duration(rng.IntN(5000)) * time.Millisecond)
			// One row is still on its way into a minute when that minute passes.
			plan.Add(faulty.Rule{Method: "Timers.Put", Times: 1, Hook: sleepHook(time.Duration(rng.IntN(100)) * time.Second)})
			late := make(chan struct{})
			go func() {
				defer close(late)
				if err := w.Park(context.Background(), []engine.Timer{timerIn("late", time.Second)}); err != nil {
					t.Error(err)
				}
			}()
			died := time.Now()
			if rng.IntN(2) == 0 {
				a.crash()
			} else {
				a.freeze()
			}
			wait(100 * time.Second)
			<-late
			wait(5 * time.Second)
			a.thaw()
			first := time.Duration(-1)
			for _, x := range s.arrivals() {
				if x.by == "b" && x.at.After(died) {
					first = x.at.Sub(died)
					break
				}
			}
			if first < 0 || first > 6*time.Second {
				t.Errorf("seed %d: the first release came %v after the end", seed, first)
			}
			worst = max(worst, first)
			for i := range n {
				got := s.of(fmt.Sprint(i))
				if len(got) == 0 {
					t.Fatalf("seed %d: %d is lost", seed, i)
				}
				if got[0].late > 6*time.Second {
					t.Errorf("seed %d: %d was %v late", seed, i, got[0].late)
				}
			}
			if len(s.of("late")) == 0 {
				t.Errorf("seed %d: the late row is lost", seed)
			}
		})
	}
	t.Logf("takeovers=%d worst=%v lost=0", trials, worst)
}

// A leader is paused between its decisions and its writes, for longer than its lease. What it does
// after the pause has no effect: no minute is closed, no watermark moves, no head is claimed,
// nothing is published.
func TestPausedLeaderChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 1 })
		s.keeps = true
		defer s.close()
		a, b := s.start("a"), s.start("b")
		v := s.service()
		// This schedule is touched, and is due while a is paused.
		x, err := v.create(1, time.Now().Add(65*time.Second).UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		if got := v.reschedule(x, time.Now().Add(66*time.Second).UnixMilli()); got != done {
			t.Fatal(got)
		}
		// a is paused right before it moves anything.
		reached := make(chan struct{}, 1)
		a.plan.Add(faulty.Rule{Method: "Timers.Advance", Times: 1, Hook: func(context.Context, string) {
			a.freeze()
			reached <- struct{}{}
			a.hang()
		}})
		b.plan.Add(faulty.Rule{Method: "Timers.Advance", Err: faulty.ErrDown})
		start := time.Now()
		<-reached
		synctest.Wait()
		if took := time.Since(start); took > 2*time.Minute {
			t.Fatalf("no minute was closed for %v", took)
		}
		wait(10 * time.Second)
		if got := s.owners(); got["b"] != 1 {
			t.Fatalf("owners %v", got)
		}
		// The new owner has closed nothing since then. So whatever moves, a has moved it.
		before, err := s.rows.Shard(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		published := len(s.arrivals())
		a.thaw()
		after, err := s.rows.Shard(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if before != after {
			t.Errorf("the shard was %+v, and is %+v", before, after)
		}
		if after.Owner != "b" {
			t.Errorf("the owner is %s", after.Owner)
		}
		for _, x := range s.arrivals()[published:] {
			if x.by == "a" {
				t.Errorf("a published %s", x.id)
			}
		}
		wait(5 * time.Minute)
		if got := s.of(rowOf(x.base, 0, 1)); len(got) == 0 {
			t.Error("the touched one is lost")
		}
	})
}

// At the moment when an owner's trust in its lease is over, before any Go timer has run, nothing
// more is released, written or claimed.
func TestNothingBeyondTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 1 })
		s.keeps = true
		defer s.close()
		a := s.start("a")
		v := s.service()
		at := time.Now().Add(30 * time.Second)
		a.park("plain", 30*time.Second)
		x, err := v.create(1, at.UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		if got := v.reschedule(x, at.UnixMilli()); got != done {
			t.Fatal(got)
		}
		wait(29 * time.Second)
		a.e.mu.Lock()
		tenure := a.e.tenures[0]
		a.e.mu.Unlock()
		if a.e.Pending() == 0 {
			t.Fatal("nothing is loaded")
		}
		// This is the situation after a pause of the process: the clock is past the end of the
		// trust, and no goroutine has noticed it. The fault prevents the keeper from renewing the
		// lease.
		a.plan.Add(faulty.Rule{Method: "Lease.*", Err: faulty.ErrDown})
		tenure.trustedUntil.Store(int64(a.e.clock()))
		wait(1500 * time.Millisecond)
		if n := len(s.arrivals()); n != 0 {
			t.Errorf("%d timers were released", n)
		}
		if h, _, _ := s.mem.Schedules().Head(t.Context(), x.base); h.State != engine.SchedulePending {
			t.Errorf("the head was claimed: %+v", h)
		}
		if err := tenure.advanceState(t.Context(), engine.ShardState{Term: tenure.state.Term, Closed: 1 << 40}); err == nil {
			t.Error("a minute was closed")
		}
	})
}

// After the lease store was emptied, a shard has two owners for a moment. The terms prevent the
// first owner from moving anything. What both of them release has the same id.
func TestEmptiedLease(t *testing.T) {
	trials := 40
	if testing.Short() {
		trials = 10
	}
	for seed := range uint64(trials) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			s := newSim(t)
			defer s.close()
			a := s.start("a")
			s.start("b")
			v := s.service()
			var all []schedule
			cancelled := map[int]bool{}
			for i := range 200 {
				at := time.Now().Add(time.Duration(rng.IntN(120_000)) * time.Millisecond)
				a.park(fmt.Sprint(i), time.Until(at))
				x, err := v.create(1, at.UnixMilli())
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, x)
				if rng.IntN(3) == 0 {
					cancelled[i] = v.cancel(x) == done
				}
			}
			both := false
			for range 6 {
				wait(time.Duration(rng.IntN(20_000)) * time.Millisecond)
				s.lease.empty()
				for range 20 {
					wait(100 * time.Millisecond)
					both = both || s.owners()["a"]+s.owners()["b"] > 4
				}
			}
			if !both {
				t.Errorf("seed %d: there were never two owners", seed)
			}
			wait(5 * time.Minute)
			for i, x := range all {
				if len(s.of(fmt.Sprint(i))) == 0 {
					t.Errorf("seed %d: %d is lost", seed, i)
				}
				if came := len(s.of(rowOf(x.base, 0, 0))) > 0; came == cancelled[i] {
					t.Errorf("seed %d: schedule %d: cancelled %v, released %v", seed, i, cancelled[i], came)
				}
			}
			if n := s.rows.left(); n != 0 {
				t.Errorf("seed %d: %d rows left", seed, n)
			}
		})
	}
}

// Another owner takes over a shard although this engine has the lease. This engine notices it at
// its next write. Nothing of the shard stays in its memory, it continues as a standby, and it gets
// the shard back.
func TestStaleTermIsALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost told[error]
		var terms told[uint64]
		s := newSim(t, func(c *Config) {
			c.Lookahead, c.Shards = 10*time.Minute, 1
			c.Events.Lost = func(_ uint16, _ uint64, cause error) { lost.add(cause) }
			c.Events.Owned = func(_ uint16, term uint64) { terms.add(term) }
		})
		s.keeps, s.unleased = true, true
		defer s.close()
		a := s.start("a")
		a.park("x", 8*time.Minute)
		wait(2 * time.Second)
		st, err := s.rows.TakeOver(t.Context(), 0, 1, "other")
		if err != nil {
			t.Fatal(err)
		}
		for len(lost.list()) == 0 {
			wait(100 * time.Millisecond)
		}
		if first := lost.list()[0]; !errors.Is(first, errStale) {
			t.Errorf("lost by %v", first)
		}
		a.e.mu.Lock()
		held := a.e.releaser.wheel.Len() + len(a.e.releaser.backlog)
		a.e.mu.Unlock()
		if n := held + a.e.Pending(); n != 0 {
			t.Errorf("%d timers in memory", n)
		}
		wait(4 * time.Second)
		if len(terms.list()) != 1 {
			t.Errorf("taken back at once: terms %v", terms.list())
		}
		wait(10 * time.Minute)
		if len(terms.list()) != 2 || terms.list()[1] != st.Term+1 {
			t.Errorf("terms %v", terms.list())
		}
		if n := len(s.of("x")); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// Redis takes 3 s for each answer, before or after it has executed the command. The owner's trust
// counts from before the call. So the owner steps down in time, and no shard has two owners at
// once.
func TestSlowLease(t *testing.T) {
	for _, slow := range []string{"to do", "to answer"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, func(c *Config) { c.Shards = 1 })
			s.keeps = true
			defer s.close()
			a := s.start("a")
			s.start("b")
			wait(time.Second)
			if s.owners()["a"] != 1 {
				t.Fatal(s.owners())
			}
			if slow == "to do" {
				a.plan.Add(faulty.Rule{Method: "Lease.Renew", Hook: sleepHook(3 * time.Second)})
			} else {
				s.lease.slow("a", 3*time.Second)
			}
			for range 600 {
				wait(100 * time.Millisecond)
				o := s.owners()
				if o["a"]+o["b"] > 1 {
					t.Fatalf("slow %s: two owners: %v", slow, o)
				}
			}
		})
	}
}

// The store answers only other engines. An owner that cannot take over a shard gives the shard
// back.
func TestStoreAwayForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		a := s.start("a")
		a.plan.Add(faulty.Rule{Method: "Timers.*", Err: faulty.ErrDown})
		s.start("b")
		w, _ := s.writer()
		if err := w.Park(t.Context(), []engine.Timer{timerIn("x", 50*time.Second)}); err != nil {
			t.Fatal(err)
		}
		wait(45 * time.Second)
		if o := s.owners(); o["a"] != 0 {
			t.Errorf("owners %v", o)
		}
		wait(6 * time.Second)
		if len(s.of("x")) == 0 {
			t.Error("not released")
		}
	})
}

// The store never answers one engine. The shards that this engine cannot take over go to another
// engine.
func TestTakeOverIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.keeps = true
		defer s.close()
		s.startWith("a", func(p *faulty.Plan) { p.Add(faulty.Rule{Method: "Timers.*", Err: faulty.ErrDown}) })
		s.start("b")
		wait(10 * time.Second)
		if o := s.owners(); o["b"] != 4 {
			t.Errorf("owners %v", o)
		}
	})
}

// Each shard that is handed over goes to the engine that it is meant for, and only once, however
// many engines look for free shards.
func TestHandOverGoesToTheHeir(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 64 })
		defer s.close()
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			s.start(name)
		}
		wait(5 * time.Minute)
		moved, tookOver := 0, uint64(0)
		for n := range uint16(64) {
			if preferredMember(names, n) != "a" {
				moved++
			}
			if st, err := s.rows.Shard(t.Context(), n); err != nil || st.Owner != preferredMember(names, n) {
				t.Errorf("shard %d: %+v, %v", n, st, err)
			}
		}
		for _, n := range s.nodes {
			tookOver += n.e.Stats().TookOver
		}
		if tookOver != uint64(64+moved) {
			t.Errorf("%d take-overs, want 64 and %d that moved", tookOver, moved)
		}
	})
}

// An engine that got the shards of a dead engine does not hand them back while the dead engine
// still counts as a member.
func TestNothingIsHandedToTheDead(t *testing.T) {
	for seed := range 40 {
		synctest.Test(t, func(t *testing.T) {
			var lost told[error]
			s := newSim(t, func(c *Config) {
				c.Shards = 8
				c.Events.Lost = func(_ uint16, _ uint64, cause error) { lost.add(cause) }
			})
			defer s.close()
			s.start("b")
			a := s.start("a")
			wait(2*time.Minute + time.Duration(seed)*250*time.Millisecond)
			if s.owners()["a"] == 0 {
				t.Fatal("nothing was handed over")
			}
			lost.forget()
			a.crash()
			lost.forget()
			wait(30 * time.Second)
			if l := lost.list(); len(l) > 0 {
				t.Errorf("lost by %v", l)
			}
			if o := s.owners(); o["b"] != 8 {
				t.Errorf("owners %v", o)
			}
		})
	}
}

// Three missed heartbeats are reported once, and so is the first heartbeat after them.
func TestUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said told[string]
		s := newSim(t, func(c *Config) {
			c.Events.Unhealthy = func(age time.Duration) { said.add(fmt.Sprint("unhealthy ", age)) }
			c.Events.Healthy = func() { said.add("healthy") }
		})
		defer s.close()
		a := s.start("a")
		wait(12 * time.Second)
		if age := a.e.Stats().HeartbeatAge; age > 5*time.Second {
			t.Errorf("age %v", age)
		}
		a.mu.Lock()
		a.dead = true // only its heartbeats fail
		a.mu.Unlock()
		wait(60 * time.Second)
		if age := a.e.Stats().HeartbeatAge; age < time.Minute {
			t.Errorf("age %v after a minute", age)
		}
		a.mu.Lock()
		a.dead = false
		a.mu.Unlock()
		wait(10 * time.Second)
		if want := "[unhealthy 15s healthy]"; fmt.Sprint(said.list()) != want {
			t.Errorf("said %v, want %v", said.list(), want)
		}
	})
}

// Rendezvous hashing gives every shard to one member. When a member leaves, the shards of the other
// members stay where they are.
func TestPreferred(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c", "d"}
	count := map[string]int{}
	for n := range uint16(1024) {
		best := preferredMember(all, n)
		count[best]++
		if best != "d" && preferredMember(all[:3], n) != best {
			t.Fatalf("shard %d moved without need", n)
		}
	}
	for m, k := range count {
		if k < 1024/4*8/10 || k > 1024/4*12/10 {
			t.Errorf("%s has %d of 1024 shards", m, k)
		}
	}
}

// A shard without an owner shows a lag that grows. A shard of another engine shows that engine's lag.
func TestLagOfShardsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 4 })
		defer s.close()
		a := s.start("a")
		wait(5 * time.Minute)
		b := s.start("b")
		wait(2 * time.Minute)
		lag := func(n *node) (worst time.Duration) {
			st := n.e.Stats()
			if len(st.Shards)+len(st.Others) != 4 {
				t.Fatalf("%d shards are owned and %d are others'", len(st.Shards), len(st.Others))
			}
			for _, x := range append(st.Shards, st.Others...) {
				worst = max(worst, x.WatermarkAge)
			}
			return worst
		}
		if d := lag(b); d > 3*time.Minute {
			t.Errorf("a healthy pair lags by %v", d)
		}
		// Neither can own anything: their clocks are off.
		a.step.Store(int64(10 * time.Second))
		b.step.Store(int64(10 * time.Second))
		wait(10 * time.Minute)
		if n := len(s.owners()); n > 0 {
			t.Fatalf("%d engines own shards with a clock that is off", n)
		}
		first := lag(b)
		if first < 10*time.Minute {
			t.Errorf("after 10 minutes without an owner the lag is %v", first)
		}
		wait(10 * time.Minute)
		if more := lag(b) - first; more < 9*time.Minute || more > 11*time.Minute {
			t.Errorf("in 10 minutes the lag grew by %v", more)
		}
		a.step.Store(0)
		b.step.Store(0)
		wait(time.Minute)
		if d := lag(a); d > 3*time.Minute {
			t.Errorf("with owners again the lag is %v", d)
		}
	})
}

// An engine that never owned a shard reports the shards that never had an owner.
func TestLagWithoutAnyOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 2 })
		defer s.close()
		s.nodes["a"] = &node{}
		s.nodes["a"].step.Store(int64(time.Hour))
		a := s.start("a")
		wait(7 * time.Minute)
		st := a.e.Stats()
		if len(st.Others) != 2 || st.Others[0].WatermarkAge != 7*time.Minute {
			t.Errorf("%+v", st.Others)
		}
	})
}
