package timer

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// later creates a schedule that is due in d, in a sim with one engine.
func (v *service) later(t *testing.T, d time.Duration, chunks int) schedule {
	t.Helper()
	x, err := v.create(chunks, time.Now().Add(d).UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (s *sim) firedAs(x schedule, gen uint32) int { return len(s.of(rowOf(x.base, 0, gen))) }

// Rows of a schedule that was never touched cost no read and no swap of the head. A touched
// schedule costs one swap for all its chunks.
func TestBudgetOfHeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		a := s.start("a")
		v := s.service()
		for range 200 {
			v.later(t, 30*time.Second, 2)
		}
		wait(40 * time.Second)
		if st := a.e.Stats(); st.HeadReads != 0 || st.HeadSwaps != 0 || st.Released[OnTime] != 400 {
			t.Errorf("untouched: %d reads, %d swaps, released %v", st.HeadReads, st.HeadSwaps, st.Released)
		}
		x := v.later(t, time.Hour, 50)
		if got := v.reschedule(x, time.Now().Add(30*time.Second).UnixMilli()); got != done {
			t.Fatal(got)
		}
		wait(40 * time.Second)
		st := a.e.Stats()
		// Each of the four shards may ask before another shard has stored the answer.
		if st.HeadSwaps == 0 || st.HeadSwaps > 4 || st.HeadReads > 16 || st.Released[OnTime] != 450 {
			t.Errorf("touched: %d reads, %d swaps, released %v", st.HeadReads, st.HeadSwaps, st.Released)
		}
	})
}

// If the answer of a swap is lost, the engine reads the head, and the head decides.
func TestUnknownSwap(t *testing.T) {
	for _, lost := range []faulty.Loss{faulty.Applied, faulty.NotApplied} {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t)
			defer s.close()
			a := s.start("a")
			v := s.service()
			x := v.later(t, time.Hour, 1)
			if got := v.reschedule(x, time.Now().Add(30*time.Second).UnixMilli()); got != done {
				t.Fatal(got)
			}
			a.plan.Add(faulty.Rule{Method: "Schedules.Swap", Times: 1, Err: faulty.ErrDown, Lost: lost})
			wait(32 * time.Second)
			if n := s.firedAs(x, 1); n != 1 {
				t.Errorf("lost %v: released %d times", lost, n)
			}
			if h, _, _ := s.mem.Schedules().Head(t.Context(), x.base); h.State != engine.ScheduleReleased || h.Gen != 1 {
				t.Errorf("lost %v: the head is %+v", lost, h)
			}
		})
	}
}

// The swap of a cancel is so slow that it comes after the release of the schedule. Only one of the
// two wins the head, and the answer to the cancel says which.
func TestSlowCancelAgainstRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		s.start("a")
		v := s.service()
		v.plan.Add(faulty.Rule{Method: "Schedules.Swap", Times: 1, Hook: sleepHook(20 * time.Second)})
		x := v.later(t, 6*time.Second, 1)
		if got := v.cancel(x); got != tooLate {
			t.Errorf("answered %s", got)
		}
		if n := s.firedAs(x, 0); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// A reschedule has stored its row, but has not moved the head yet. The row waits for the head and
// is not taken for a stray row.
func TestRowAheadOfItsHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		a := s.start("a")
		v := s.service()
		x := v.later(t, time.Hour, 1)
		v.plan.Add(faulty.Rule{Method: "Schedules.Swap", Times: 1, Hook: sleepHook(20 * time.Second)})
		began := time.Now()
		if got := v.reschedule(x, began.Add(10*time.Second).UnixMilli()); got != done {
			t.Fatal(got)
		}
		wait(1100 * time.Millisecond)
		got := s.of(rowOf(x.base, 0, 1))
		if len(got) != 1 || got[0].at.Sub(began) > 22*time.Second {
			t.Errorf("released %v", got)
		}
		if n := a.e.Stats().Dropped; n != 0 {
			t.Errorf("%d dropped", n)
		}
	})
}

// A reschedule that dies, or that is slower than the close of its new minute, has lost: its row is
// dropped with the minute, the head is fenced, and the schedule fires at its earlier time. A
// reschedule that is tried again wins.
func TestMoveBehindTheCloseHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		a := s.start("a")
		v := s.service()
		x, y, orphan := v.later(t, time.Hour, 1), v.later(t, time.Hour, 1), v.later(t, time.Hour, 1)
		ctx := context.Background()
		if err := v.w.Park(ctx, orphan.timers(1, time.Now().Add(10*time.Second).UnixMilli())); err != nil {
			t.Fatal(err)
		}
		for _, one := range []schedule{x, y} {
			v.plan.Add(faulty.Rule{Method: "Schedules.Swap", Times: 1, Hook: sleepHook(5 * time.Minute)})
			if got := v.reschedule(one, time.Now().Add(10*time.Second).UnixMilli()); got != tooLate {
				t.Fatal(got)
			}
		}
		if n := a.e.Stats().Dropped; n != 3 {
			t.Errorf("%d dropped, want all that were ahead of their heads", n)
		}
		if got := v.reschedule(y, time.Now().Add(10*time.Second).UnixMilli()); got != done {
			t.Fatal(got)
		}
		wait(11 * time.Second)
		if n := s.firedAs(y, 2); n != 1 {
			t.Errorf("the one that tried again was released %d times", n)
		}
		wait(time.Hour)
		for _, one := range []schedule{x, orphan} {
			if n, early := s.firedAs(one, 0), s.firedAs(one, 1); n != 1 || early != 0 {
				t.Errorf("released %d times when it was to, %d times when a move that lost said", n, early)
			}
		}
	})
}

// An owner has claimed a head as released and died before it published. The next owner publishes.
func TestReleasedIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		s.keeps = true
		defer s.close()
		a := s.start("a")
		s.start("b")
		v := s.service()
		x := v.later(t, time.Hour, 1)
		if got := v.reschedule(x, time.Now().Add(30*time.Second).UnixMilli()); got != done {
			t.Fatal(got)
		}
		s.setLogDown(true)
		wait(31 * time.Second)
		if h, _, _ := s.mem.Schedules().Head(t.Context(), x.base); h.State != engine.ScheduleReleased {
			t.Fatalf("the head is %+v", h)
		}
		a.crash()
		s.setLogDown(false)
		if got := v.cancel(x); got != tooLate {
			t.Errorf("cancel: %s", got)
		}
		wait(7 * time.Second)
		if n := s.firedAs(x, 1); n != 1 {
			t.Errorf("released %d times", n)
		}
	})
}

// A row that is written again, under a later minute, takes its hint along. So a cancelled schedule
// stays cancelled.
func TestHintsFollowTheRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t)
		defer s.close()
		s.start("a")
		v := s.service()
		at := time.Now().Add(10 * time.Second).UnixMilli()
		// It takes minutes to store the rows of the request. In the meantime the schedule is
		// cancelled by its id.
		v.plan.Add(faulty.Rule{Method: "Timers.Put", Times: 1, Hook: sleepHook(4 * time.Minute)})
		var x schedule
		stored := make(chan error)
		go func() {
			var err error
			x, err = v.create(1, at)
			stored <- err
		}()
		wait(time.Second)
		x = schedule{base: baseOf(v.made), chunks: 1}
		if got := v.cancel(x); got != done {
			t.Fatal(got)
		}
		if err := <-stored; err != nil {
			t.Fatal(err)
		}
		wait(5 * time.Minute)
		if n := s.firedAs(x, 0); n != 0 {
			t.Errorf("released %d times", n)
		}
	})
}

// Many cancels and reschedules race with each other and with the release: the
// winner is the call that was answered ok.
func TestRacingTouches(t *testing.T) {
	for seed := range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t)
			defer s.close()
			s.start("a")
			v := s.service()
			x := v.later(t, 20*time.Second, 2)
			answers := make(chan string, 8)
			for i := range 8 {
				go func() {
					time.Sleep(time.Duration((seed*7+i*5)%20) * time.Millisecond)
					if i%2 == 0 {
						answers <- "cancel " + string(v.cancel(x))
					} else {
						answers <- "reschedule " + string(v.reschedule(x, time.Now().Add(30*time.Second).UnixMilli()))
					}
				}()
			}
			cancelled, moved := 0, 0
			for range 8 {
				switch <-answers {
				case "cancel ok":
					cancelled++
				case "reschedule ok":
					moved++
				}
			}
			wait(3 * time.Minute)
			gens := s.fanned[x.base]
			switch {
			case cancelled > 1:
				t.Errorf("cancelled %d times", cancelled)
			case cancelled == 1 && len(gens) != 0:
				t.Errorf("cancelled, and released as %v", gens)
			case cancelled == 0 && (len(gens) != 1 || !gens[uint32(moved)]):
				t.Errorf("moved %d times, released as %v", moved, gens)
			}
		})
	}
}

// The clock of an engine and of the service beside it is set back when a timer is
// already loaded. Its schedule can be cancelled again, and after a successful cancel it is not
// released.
func TestCancelAfterTheClockWasSetBack(t *testing.T) {
	for _, set := range []time.Duration{time.Hour, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := memory.New()
			var step atomic.Int64
			var released atomic.Int64
			wall := func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
			e := New(Config{
				Store: m.Timers(), Schedules: m.Schedules(), Shards: 1, Wall: wall,
				Publish: func(_ context.Context, ts []engine.Timer) error { released.Add(int64(len(ts))); return nil },
			})
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- e.Run(ctx) }()
			base := notify.NewBase(time.Now())
			x := engine.Timer{ID: []byte("a"), FireAt: wall().Add(1500 * time.Millisecond).UnixMilli(), Head: base, Target: "t"}
			if err := e.Park(ctx, []engine.Timer{x}); err != nil {
				t.Fatal(err)
			}
			wait(time.Second)
			step.Store(-int64(set))
			wait(time.Second)
			// Write the hint, and then the head, as a cancel does.
			hint := engine.Hint{Partition: engine.TimerPartition{Bucket: x.FireAt / 60_000}, Base: base}
			if err := m.Schedules().Hint(ctx, []engine.Hint{hint}); err != nil {
				t.Fatal(err)
			}
			if _, won, err := m.Schedules().Swap(ctx, 0, engine.ScheduleHead{Base: base, State: engine.ScheduleCancelled, FireAt: x.FireAt}); err != nil || !won {
				t.Fatal(won, err)
			}
			wait(set + time.Minute)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := released.Load(); n != 0 {
				t.Errorf("released %d times, although it was cancelled %s before its time", n, set)
			}
		})
	}
}
