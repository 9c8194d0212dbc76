package timer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A row whose write is delayed by up to five minutes, until after the close of its minute, fires
// within a second after it is durable.
func TestDelayedWrites(t *testing.T) {
	for _, from := range []string{"another process", "the owner"} {
		t.Run(from, func(t *testing.T) {
			trials := 150
			if testing.Short() {
				trials = 30
			}
			for seed := range uint64(trials) {
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 3))
					s := newSim(t)
					s.keeps = true
					defer s.close()
					a := s.start("a")
					wait(time.Duration(rng.IntN(90_000)) * time.Millisecond)
					in := time.Duration(rng.IntN(60_000)) * time.Millisecond
					delay := time.Duration(rng.IntN(300_000)) * time.Millisecond
					w, plan := s.writer()
					if from == "the owner" {
						w, plan = a.e, a.plan
					}
					plan.Add(faulty.Rule{Method: "Timers.Put", Times: 1, Hook: sleepHook(delay)})
					x := timerIn("x", in)
					if err := w.Park(t.Context(), []engine.Timer{x}); err != nil {
						t.Fatal(err)
					}
					durable := time.Now()
					wait(time.Until(time.UnixMilli(x.FireAt)) + time.Second)
					got := s.of("x")
					if len(got) == 0 {
						t.Fatalf("seed %d: due in %v, durable after %v: not released", seed, in, delay)
					}
					if late := got[0].at.Sub(durable); got[0].at.After(time.UnixMilli(x.FireAt)) && late > time.Second {
						t.Errorf("seed %d: released %v after it was durable", seed, late)
					}
				})
			}
		})
	}
}

// While the queue is away, a near row of another process is released only when its minute is
// closed. No earlier mechanism finds it.
func TestSecondScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		a := s.start("a")
		w, plan := s.writer()
		plan.Add(faulty.Rule{Method: "Queue.*", Err: faulty.ErrDown})
		x := timerIn("x", time.Second)
		if err := w.Park(t.Context(), []engine.Timer{x}); err != nil {
			t.Fatal(err)
		}
		wait(90 * time.Second)
		if got := s.of("x"); len(got) != 1 || got[0].late > 72*time.Second {
			t.Fatalf("released %v", got)
		}
		if st := a.e.Stats(); st.LateRows != 1 || st.Released[OnTime] != 1 {
			t.Errorf("late rows %d, released %v", st.LateRows, st.Released)
		}
		if n := w.counters.nearLost.Load(); n != 1 {
			t.Errorf("%d near rows were not handed on", n)
		}
	})
}

// A row is stored behind the cursor of a scan that is under way. It goes into the wheel when it is
// stored.
func TestParkDuringAScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 1 })
		s.through = lateScans{s.rows, 700 * time.Millisecond}
		defer s.close()
		a := s.start("a")
		wait(10 * time.Second)
		for i := range 40 {
			a.park(fmt.Sprint(i), 1800*time.Millisecond)
			wait(25 * time.Millisecond)
		}
		wait(4 * time.Second)
		for i := range 40 {
			if got := s.of(fmt.Sprint(i)); len(got) != 1 || got[0].late > 50*time.Millisecond {
				t.Errorf("%d: %v", i, got)
			}
		}
	})
}

// If the catch-up has read a minute before the minute was closed, the minute is read once more when
// it is closed.
func TestLateRowInACaughtUpMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.Shards = 1 })
		defer s.close()
		if err := s.rows.Put(t.Context(), notify.SpreadOver(1), []engine.Timer{timerIn("early", -5*time.Minute)}); err != nil {
			t.Fatal(err)
		}
		var up func()
		s.startWith("a", func(p *faulty.Plan) { up = p.Add(faulty.Rule{Method: "Timers.Advance", Err: faulty.ErrDown}) })
		wait(5 * time.Second)
		if len(s.of("early")) != 1 {
			t.Fatal("nothing was caught up")
		}
		w, plan := s.writer()
		plan.Add(faulty.Rule{Method: "Queue.*", Err: faulty.ErrDown})
		if err := w.Park(t.Context(), []engine.Timer{timerIn("late", -5*time.Minute)}); err != nil {
			t.Fatal(err)
		}
		up()
		wait(5 * time.Second)
		if n := len(s.of("late")); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// A writer has died before it could write a row again that is in a minute below the watermark. The
// same owner finds the row within an hour.
func TestOrphanIsFoundWithinTheHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.keeps = true
		defer s.close()
		s.start("a")
		wait(10 * time.Minute)
		if err := s.rows.Put(t.Context(), notify.SpreadOver(4), []engine.Timer{timerIn("orphan", -5*time.Minute)}); err != nil {
			t.Fatal(err)
		}
		wait(time.Hour)
		if n := len(s.of("orphan")); n != 1 {
			t.Errorf("released %d times", n)
		}
		if n := s.rows.left(); n != 0 {
			t.Errorf("%d rows left", n)
		}
	})
}

// A timer that is always refused is put off by a minute each time, and holds up neither the release
// nor the removal of any other.
func TestRefusedTimerIsPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Shards = 1 })
		var tries []time.Time
		r.setFail(func(ts []engine.Timer) error {
			for i := range ts {
				if string(ts[i].ID) == "bad" {
					tries = append(tries, time.Now())
					return refusal
				}
			}
			return nil
		})
		r.run()
		r.park("bad", time.Second)
		for i := range 30 {
			r.park(fmt.Sprint(i), time.Duration(i)*10*time.Second)
		}
		wait(10 * time.Minute)
		for i := range 30 {
			if n := len(r.times(fmt.Sprint(i))); n != 1 {
				t.Errorf("%d: released %d times", i, n)
			}
		}
		if n := r.left(); n == 0 || n > 7 {
			t.Errorf("%d rows left, want those of the refused one's minute alone", n)
		}
		if m := len(r.e.tenures[0].minutes); m > 3 {
			t.Errorf("%d minutes remembered", m)
		}
		if len(tries) < 8 || len(tries) > 20 {
			t.Errorf("%d tries in 10 minutes", len(tries))
		}
		r.setFail(nil)
		wait(2 * time.Minute)
		if n := r.left(); n != 0 {
			t.Errorf("%d rows left", n)
		}
		r.crash()
	})
}

// If the head of a timer cannot be read, the timer is put off and delays no other timer.
func TestUndecidedIsPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		a := s.start("a")
		v := s.service()
		at := time.Now().Add(10 * time.Second)
		touched, err := v.create(1, at.Add(time.Hour).UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		if got := v.reschedule(touched, at.UnixMilli()); got != done {
			t.Fatal(got)
		}
		untouched, err := v.create(1, at.UnixMilli())
		if err != nil {
			t.Fatal(err)
		}
		up := a.plan.Add(faulty.Rule{Method: "Schedules.Head", Err: faulty.ErrDown})
		wait(20 * time.Second)
		if n := len(s.of(rowOf(touched.base, 0, 1))); n != 0 {
			t.Errorf("released %d times without its head", n)
		}
		if got := s.of(rowOf(untouched.base, 0, 0)); len(got) != 1 || got[0].late > 50*time.Millisecond {
			t.Errorf("an untouched one: %v", got)
		}
		up()
		wait(2 * time.Second)
		if n := len(s.of(rowOf(touched.base, 0, 1))); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// If a clock is set back between the wheel and the log, no timer is early.
func TestClockSetBackBeforePublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) { c.MaxClockOffset = time.Hour })
		s.keeps = true
		defer s.close()
		a := s.start("a")
		s.slack = 10 * time.Minute // relative to true time; in this test the clock of a decides
		s.setLogDown(true)
		a.park("x", 2*time.Second)
		a.park("y", 40*time.Second)
		wait(5 * time.Second)
		a.step.Store(int64(-30 * time.Second))
		s.setLogDown(false)
		wait(20 * time.Second)
		if n := len(s.of("x")); n != 0 {
			t.Errorf("released %d times before its time by its engine's clock", n)
		}
		wait(10 * time.Second)
		if n := len(s.of("x")); n != 1 {
			t.Errorf("released %d times", n)
		}
		// Parked by the clock that was set back.
		if err := a.e.Park(t.Context(), []engine.Timer{timerIn("z", -25*time.Second)}); err != nil {
			t.Fatal(err)
		}
		wait(6 * time.Second)
		if n := len(s.of("z")); n != 1 {
			t.Errorf("z was released %d times", n)
		}
		wait(time.Minute)
		if n := len(s.of("y")); n != 1 {
			t.Errorf("y was released %d times", n)
		}
	})
}

// If a clock is set ahead, the engine notices it within a quarter of a second, although the engine
// sleeps until its next timer.
func TestClockSetAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, func(c *Config) {
			c.MaxClockOffset = time.Hour
			c.Lookahead = 10 * time.Minute
			c.Poll = 10 * time.Minute
		})
		s.keeps = true
		defer s.close()
		a := s.start("a")
		a.park("x", 5*time.Minute)
		s.slack = 10 * time.Minute
		wait(time.Second)
		a.step.Store(int64(5 * time.Minute))
		wait(300 * time.Millisecond)
		if n := len(s.of("x")); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// Timers with many random due times pass through crashes, pauses and clock steps. None is early and
// none is lost.
func TestFiftyThousandTimers(t *testing.T) {
	n := 50_000
	if testing.Short() {
		n = 5_000
	}
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(7, 7))
		s := newSim(t, func(c *Config) { c.Shards = 8 })
		defer s.close()
		s.slack = 500 * time.Millisecond
		names := []string{"a", "b", "c"}
		for _, name := range names {
			s.start(name)
		}
		w, _ := s.writer()
		const span = 40 * time.Minute
		began := time.Now()
		parked := 0
		steps, crashes, pauses := 0, 0, 0
		for time.Since(began) < span {
			var ts []engine.Timer
			for range n / 240 {
				if parked < n {
					in := time.Duration(rng.Int64N(int64(span-time.Since(began)))) - 5*time.Second
					ts = append(ts, timerIn(fmt.Sprint(parked), in))
					parked++
				}
			}
			if err := w.Park(context.Background(), ts); err != nil {
				t.Fatal(err)
			}
			node := s.nodes[names[rng.IntN(3)]]
			switch rng.IntN(12) {
			case 0:
				crashes++
				node.crash()
				wait(time.Duration(rng.IntN(20_000)) * time.Millisecond)
				s.start(node.name)
			case 1:
				pauses++
				node.freeze()
				wait(time.Duration(rng.IntN(30_000)) * time.Millisecond)
				node.thaw()
			case 2, 3:
				steps++
				for _, other := range s.nodes {
					other.step.Store(0) // one engine must be able to own the shards
				}
				node.step.Store(int64([]time.Duration{0, time.Hour, -time.Hour, 400 * time.Millisecond, -400 * time.Millisecond, -90 * time.Second}[rng.IntN(6)]))
			default:
				wait(time.Duration(rng.IntN(10_000)) * time.Millisecond)
			}
		}
		for _, node := range s.nodes {
			node.step.Store(0)
		}
		wait(10 * time.Minute)
		lost, again := 0, 0
		var late []time.Duration
		for i := range parked {
			got := s.of(fmt.Sprint(i))
			if len(got) == 0 {
				lost++
				continue
			}
			again += len(got) - 1
			late = append(late, got[0].late)
		}
		t.Logf("timers=%d early=%d lost=%d again=%d crashes=%d pauses=%d steps=%d p50=%v p99=%v max=%v",
			parked, s.early, lost, again, crashes, pauses, steps, percentile(late, 0.5), percentile(late, 0.99), percentile(late, 1))
		if lost > 0 || s.early > 0 || parked < n*9/10 {
			t.Error("timers were lost or early, or too few")
		}
	})
}

// oneCommit stores schedules and timers together: a fault of Timers.Put affects both.
type oneCommit struct {
	engine.Schedules
	stored engine.Schedules
	rows   engine.Timers
	calls  atomic.Int64
}

func (c *oneCommit) PutScheduled(ctx context.Context, ss []engine.Schedule, shards notify.Spread, ts []engine.Timer) error {
	c.calls.Add(1)
	if err := c.stored.Put(context.Background(), ss); err != nil {
		return err
	}
	return c.rows.Put(ctx, shards, ts)
}

func (c *oneCommit) ForgetTimers(context.Context, notify.Spread, []engine.Timer) error { return nil }

// A schedule and its timers are stored in one commit. The timers fire however late the commit is,
// even after the close of their minute.
func TestParkScheduled(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			s := newSim(t)
			s.keeps = true
			defer s.close()
			a := s.start("a")
			wait(time.Duration(rng.IntN(90_000)) * time.Millisecond)
			w, plan := s.writer()
			if rng.IntN(2) == 0 {
				w, plan = a.e, a.plan
			}
			plan.Add(faulty.Rule{Method: "Schedules.Put", Err: faulty.ErrDown}) // no call needs it
			plan.Add(faulty.Rule{Method: "Timers.Put", Times: 1, Hook: sleepHook(time.Duration(rng.IntN(300_000)) * time.Millisecond)})
			x := schedule{baseOf(1), 3}
			ts := x.timers(0, time.Now().Add(time.Duration(rng.IntN(60_000))*time.Millisecond).UnixMilli())
			if err := w.ParkScheduled(t.Context(), []engine.Schedule{{Base: x.base, FireAt: ts[0].FireAt}}, ts); err != nil {
				t.Fatal(err)
			}
			if n := w.cfg.Schedules.(*oneCommit).calls.Load(); n != 1 {
				t.Errorf("seed %d: %d commits of schedules", seed, n)
			}
			if _, ok, err := s.mem.Schedules().Get(t.Context(), x.base); !ok || err != nil {
				t.Errorf("seed %d: the schedule is not there: %v", seed, err)
			}
			durable := time.Now()
			wait(time.Until(time.UnixMilli(ts[0].FireAt)) + 2*time.Second)
			for c := range 3 {
				got := s.of(rowOf(x.base, c, 0))
				if len(got) == 0 {
					t.Fatalf("seed %d: chunk %d is not released", seed, c)
				}
				if due := time.UnixMilli(ts[c].FireAt); got[0].at.After(due) && got[0].at.Sub(durable) > time.Second {
					t.Errorf("seed %d: chunk %d came %v after it was durable", seed, c, got[0].at.Sub(durable))
				}
			}
		})
	}
}

// Timers that are due far ahead go into the cold table, after their schedule was stored.
func TestParkScheduledInTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		w, plan := s.writer()
		x := schedule{baseOf(1), 2}
		ts := x.timers(0, time.Now().Add(60*24*time.Hour).UnixMilli())
		ts[0].FireAt = time.Now().Add(time.Hour).UnixMilli() // this one goes into the hot table all the same
		undo := plan.Add(faulty.Rule{Method: "Schedules.Put", Err: faulty.ErrDown})
		park := func() (rows int, err error) {
			err = w.ParkScheduled(t.Context(), []engine.Schedule{{Base: x.base}}, ts)
			count := func(*engine.Timer) error { rows++; return nil }
			if perr := errors.Join(s.rows.Pending(t.Context(), count), s.mem.ColdTimers().Pending(t.Context(), count)); perr != nil {
				t.Fatal(perr)
			}
			return rows, err
		}
		if n, err := park(); err == nil || n != 0 {
			t.Errorf("%d rows are stored without their schedule, %v", n, err)
		}
		undo()
		if n, err := park(); err != nil || n != 2 {
			t.Errorf("%d rows, %v", n, err)
		}
	})
}

// looks counts the questions about shards, by method.
type looks struct {
	engine.Timers
	closed, shard atomic.Int64
}

func (l *looks) Closed(ctx context.Context, n uint16) (int64, error) {
	l.closed.Add(1)
	return l.Timers.Closed(ctx, n)
}

func (l *looks) Shard(ctx context.Context, n uint16) (engine.ShardState, error) {
	l.shard.Add(1)
	return l.Timers.Shard(ctx, n)
}

// A process that owns no shard asks about the shards of the timers that it parks. It uses the cheap
// question, and the exact one only for minutes that are over.
func TestParkingAsksCheaply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &looks{Timers: memory.New().Timers()}
		w := New(Config{Store: store, Shards: 1})
		if err := w.Park(t.Context(), []engine.Timer{timerIn("a", time.Minute), timerIn("b", time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if c, s := store.closed.Load(), store.shard.Load(); c != 1 || s != 0 {
			t.Errorf("%d cheap looks and %d exact ones", c, s)
		}
		if err := w.Park(t.Context(), []engine.Timer{timerIn("c", -2*time.Minute), timerIn("d", time.Hour)}); err != nil {
			t.Fatal(err)
		}
		if c, s := store.closed.Load(), store.shard.Load(); c != 1 || s != 1 {
			t.Errorf("%d cheap looks and %d exact ones", c, s)
		}
	})
}
