package timer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
)

const aDay = 24 * time.Hour

// slowPoll makes long times cheap to simulate.
func slowPoll(c *Config) {
	c.Shards = 2
	c.Poll, c.Lookahead = 20*time.Second, 40*time.Second
	c.LeaseTTL, c.LeaseRenew, c.LeaseLook = 10*time.Minute, 5*time.Minute, time.Minute
	c.Beat = 10 * time.Minute
}

func (s *sim) cold() (n int) {
	if err := s.mem.ColdTimers().Pending(s.t.Context(), func(*engine.Timer) error { n++; return nil }); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// A timer that is due in more than 30 days waits in the cold table. It moves to the hot table a day
// before it is due, and fires on time.
func TestColdTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, slowPoll)
		defer s.close()
		s.start("a")
		w, _ := s.writer()
		began := time.Now()
		due := map[string]time.Duration{"29d": 29 * aDay, "31d": 31 * aDay, "33d": 33*aDay + 5*time.Hour, "33d later": 33*aDay + 20*time.Hour}
		for id, in := range due {
			if err := w.Park(t.Context(), []engine.Timer{timerIn(id, in)}); err != nil {
				t.Fatal(err)
			}
		}
		if hot, cold := s.rows.left(), s.cold(); hot != 1 || cold != 3 {
			t.Errorf("%d hot, %d cold", hot, cold)
		}
		wait(31*aDay - time.Until(began) - 12*time.Hour)
		if cold := s.cold(); cold != 2 {
			t.Errorf("%d cold half a day before the first is due", cold)
		}
		wait(2 * aDay)
		if hot, cold := s.rows.left(), s.cold(); hot != 2 || cold != 0 {
			t.Errorf("%d hot, %d cold at the end", hot, cold)
		}
		wait(2 * aDay)
		for id, in := range due {
			got := s.of(id)
			if len(got) != 1 || got[0].at.Sub(began)-in > 10*time.Millisecond {
				t.Errorf("%s: %v", id, got)
			}
		}
	})
}

// If no engine ran for days, the next engine promotes the days that were missed, also rows that are
// overdue already.
func TestColdDaysThatWereMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, slowPoll)
		defer s.close()
		w, _ := s.writer()
		for i := range 10 {
			if err := w.Park(t.Context(), []engine.Timer{timerIn(fmt.Sprint(i), 31*aDay+time.Duration(i)*12*time.Hour)}); err != nil {
				t.Fatal(err)
			}
		}
		wait(34 * aDay) // 6 are overdue
		s.start("a")
		wait(time.Minute)
		for i := range 6 {
			if len(s.of(fmt.Sprint(i))) == 0 {
				t.Errorf("%d is overdue, and was not released", i)
			}
		}
		wait(3 * aDay)
		for i := range 10 {
			if len(s.of(fmt.Sprint(i))) == 0 {
				t.Errorf("%d was not released", i)
			}
		}
		if s.cold() != 0 || s.rows.left() != 0 {
			t.Errorf("%d cold and %d hot rows left", s.cold(), s.rows.left())
		}
	})
}

// The cold table cannot be reached on the days on which its rows must move. Rows that are overdue
// afterwards are stored under the current minute and released at once.
func TestColdTableWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, slowPoll)
		defer s.close()
		a := s.start("a")
		if err := a.e.Park(t.Context(), []engine.Timer{timerIn("x", 31*aDay)}); err != nil {
			t.Fatal(err)
		}
		up := a.plan.Add(faulty.Rule{Method: "ColdTimers.*", Err: faulty.ErrDown})
		wait(33 * aDay)
		up()
		wait(2 * time.Minute)
		if n := len(s.of("x")); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// A promotion that is interrupted at any point is begun again. Nothing is dropped before all of its
// rows are in the hot table.
func TestPromotionCutShort(t *testing.T) {
	for cut := range 7 { // six pages, and the end
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, slowPoll, func(c *Config) { c.Batch = 10; c.Shards = 1 })
			s.keeps = true
			defer s.close()
			w, _ := s.writer()
			const n = 60
			for i := range n {
				if err := w.Park(t.Context(), []engine.Timer{timerIn(fmt.Sprint(i), 31*aDay+time.Duration(i)*time.Minute)}); err != nil {
					t.Fatal(err)
				}
			}
			wait(30*aDay + time.Hour)
			first := s.startWith("a", func(p *faulty.Plan) {
				if cut == 6 {
					p.Add(faulty.Rule{Method: "ColdTimers.Drop", Err: faulty.ErrDown})
				} else {
					p.Add(faulty.Rule{Method: "Timers.Put", Skip: cut, Err: faulty.ErrDown})
				}
			})
			wait(30 * time.Minute)
			if cold := s.cold(); cold != n {
				t.Errorf("cut %d: %d of %d cold after a promotion that failed", cut, cold, n)
			}
			first.crash()
			s.start("b")
			wait(2 * aDay)
			for i := range n {
				if len(s.of(fmt.Sprint(i))) == 0 {
					t.Errorf("cut %d: %d is lost", cut, i)
				}
			}
			if s.cold() != 0 {
				t.Errorf("cut %d: %d cold rows left", cut, s.cold())
			}
		})
	}
}

// A schedule that is cancelled while its timers are in the cold table stays cancelled, even if the
// timers are overdue there.
func TestCancelledWhileCold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, slowPoll)
		defer s.close()
		v := s.service()
		x, y := v.later(t, 31*aDay, 2), v.later(t, 31*aDay, 2)
		if got := v.cancel(x); got != done {
			t.Fatal(got)
		}
		wait(33 * aDay) // overdue: its rows are put under another minute
		s.start("a")
		wait(time.Hour)
		if n := s.firedAs(x, 0); n != 0 {
			t.Errorf("released %d times", n)
		}
		if n := s.firedAs(y, 0); n == 0 {
			t.Error("the other one was not released")
		}
	})
}

// Schedules are purged 30 days after their fire time, but never while they are pending.
func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, slowPoll)
		defer s.close()
		a := s.start("a")
		v := s.service()
		x := v.later(t, time.Hour, 1)
		moved := v.later(t, time.Hour, 1)
		if got := v.reschedule(moved, time.Now().Add(10*aDay).UnixMilli()); got != done {
			t.Fatal(got)
		}
		known := func(x schedule) bool {
			_, ok, err := s.mem.Schedules().Get(t.Context(), x.base)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		wait(30 * aDay)
		if !known(x) || !known(moved) {
			t.Error("forgotten within 30 days")
		}
		wait(3 * time.Hour)
		if known(x) || !known(moved) {
			t.Errorf("after 30 days: known %v, moved one %v", known(x), known(moved))
		}
		if n := a.e.Stats().Purged; n != 1 {
			t.Errorf("%d purged", n)
		}
		wait(10 * aDay)
		if known(moved) {
			t.Error("the moved one is still known")
		}
	})
}

// After an outage of more than 30 days, of everything or only of the cold table, the head of a
// cancelled schedule still exists when the engine reads the timers of the schedule.
func TestPurgeSparesThePending(t *testing.T) {
	for _, in := range []time.Duration{time.Hour, 31 * aDay} { // hot, cold
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, slowPoll)
			defer s.close()
			v := s.service()
			x := v.later(t, in, 1)
			if got := v.cancel(x); got != done {
				t.Fatal(got)
			}
			var up []func()
			down := func(p *faulty.Plan) {
				for _, method := range []string{"Timers.Scan", "ColdTimers.Scan"} {
					up = append(up, p.Add(faulty.Rule{Method: method, Err: faulty.ErrDown}))
				}
				// The engine closes the minutes of the outage while overdue rows are being stored.
				p.Add(faulty.Rule{Method: "Timers.Put", Times: 1, Hook: sleepHook(5 * time.Second)})
			}
			if in > 30*aDay {
				s.startWith("a", down)
			}
			wait(in + 40*aDay)
			if in < 30*aDay {
				s.startWith("a", down)
			}
			wait(2 * time.Hour)
			if _, ok, _ := s.mem.Schedules().Head(t.Context(), x.base); !ok {
				t.Errorf("in %v: the head was forgotten before its timers were met", in)
			}
			for _, f := range up {
				f()
			}
			wait(2 * aDay)
			if n := s.firedAs(x, 0); n != 0 {
				t.Errorf("in %v: released %d times", in, n)
			}
			if _, ok, _ := s.mem.Schedules().Head(t.Context(), x.base); ok {
				t.Errorf("in %v: the head is never forgotten", in)
			}
		})
	}
}
