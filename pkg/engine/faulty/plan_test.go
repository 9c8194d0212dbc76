package faulty_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without rules a wrapper is the engine it wraps.

func through[E any](of func(*memory.Store) E, wrap func(E, *faulty.Plan) E) enginetest.Opener[E] {
	return func(enginetest.T) (E, func() E) { return wrap(of(memory.New()), faulty.NewPlan(1)), nil }
}

func TestStatus(t *testing.T) {
	enginetest.Status(t, through((*memory.Store).Status, faulty.NewStatus), nil)
}
func TestTimers(t *testing.T) {
	enginetest.Timers(t, through((*memory.Store).Timers, faulty.NewTimers))
}
func TestCallers(t *testing.T) {
	enginetest.Callers(t, through((*memory.Store).Callers, faulty.NewCallers))
}
func TestDeadLetters(t *testing.T) {
	enginetest.DeadLetters(t, through((*memory.Store).DeadLetters, faulty.NewDeadLetters))
}
func TestSchedules(t *testing.T) {
	enginetest.Schedules(t, through((*memory.Store).Schedules, faulty.NewSchedules))
}
func TestColdTimers(t *testing.T) {
	enginetest.ColdTimers(t, through((*memory.Store).ColdTimers, faulty.NewColdTimers))
}
func TestQueue(t *testing.T) {
	enginetest.Queue(t, through(queue, faulty.NewQueue))
}

func queue(s *memory.Store) engine.Queue { return s.Queue("q", enginetest.QueueReceives) }

func TestLease(t *testing.T) {
	enginetest.Lease(t, func(enginetest.T) (engine.Lease, func() engine.Lease) {
		return faulty.NewLease(memory.NewLease(), faulty.NewPlan(1)), nil
	}, time.Sleep)
}

func callers(r ...faulty.Rule) (engine.Callers, engine.Callers, *faulty.Plan) {
	next, plan := memory.New().Callers(), faulty.NewPlan(7)
	for _, r := range r {
		plan.Add(r)
	}
	return faulty.NewCallers(next, plan), next, plan
}

// put stores a caller once more.
func put(ctx context.Context, c engine.Callers) error {
	x, _, err := c.Get(context.WithoutCancel(ctx), "shop")
	if err != nil {
		return err
	}
	x.ID = "shop"
	return c.Put(ctx, x)
}

func stored(t *testing.T, c engine.Callers) bool {
	t.Helper()
	_, ok, err := c.Get(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestRefused(t *testing.T) {
	m, _, plan := callers(faulty.Rule{Method: "Callers.Put", Skip: 1, Times: 2, Err: faulty.ErrDown})
	for i, want := range []bool{true, false, false, true} {
		if err := put(t.Context(), m); (err == nil) != want || (err != nil && notify.KindOf(err) != notify.KindUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if plan.Calls("Callers.Put") != 4 {
		t.Error("calls were counted wrong")
	}
	m, next, _ := callers(faulty.Rule{Method: "Callers.*", Err: faulty.ErrDown})
	if err := put(t.Context(), m); err == nil || stored(t, next) {
		t.Errorf("a refused call was applied: %v", err)
	}
}

func TestLostAcknowledgement(t *testing.T) {
	m, next, _ := callers(faulty.Rule{Method: "*", Times: 1, Err: faulty.ErrDown, Lost: faulty.Applied})
	if err := put(t.Context(), m); !errors.Is(err, faulty.ErrDown) || !stored(t, next) {
		t.Errorf("error %v, want an error of a call that was applied", err)
	}
}

// TestUnknownOutcome: a call that is answered with an error may be applied, and
// the caller finds out by reading.
func TestUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		old     uint64 // 0: there is none
		lost    faulty.Loss
		applied bool
	}{{0, faulty.NotApplied, false}, {0, faulty.Applied, true}, {1, faulty.NotApplied, false}, {1, faulty.Applied, true}} {
		plan := faulty.NewPlan(1)
		s := faulty.NewSchedules(memory.New().Schedules(), plan)
		head := engine.ScheduleHead{Base: notify.Base{1}, FireAt: 1000}
		if c.old == 1 {
			if _, _, err := s.Swap(t.Context(), 0, head); err != nil {
				t.Fatal(err)
			}
		}
		plan.Add(faulty.Rule{Method: "Schedules.Swap", Err: faulty.ErrDown, Lost: c.lost})
		head.FireAt = 2000
		if _, won, err := s.Swap(t.Context(), c.old, head); !errors.Is(err, faulty.ErrDown) || won {
			t.Errorf("%+v: %v, %v", c, won, err)
		}
		got, _, err := s.Head(t.Context(), head.Base)
		if err != nil || (got.FireAt == 2000) != c.applied {
			t.Errorf("%+v: stored %+v, %v", c, got, err)
		}
	}
}

// TestLostDeliveries: messages of a Receive that was answered with an error come
// again when their visibility ends, and the receive counts.
func TestLostDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := faulty.NewPlan(1)
		q := faulty.NewQueue(queue(memory.New()), plan)
		if err := q.Enqueue(t.Context(), []engine.Message{{Body: []byte("a")}}); err != nil {
			t.Fatal(err)
		}
		remove := plan.Add(faulty.Rule{Method: "Queue.Receive", Times: 1, Err: faulty.ErrDown, Lost: faulty.Applied})
		if ds, err := q.Receive(t.Context(), 1, time.Minute); !errors.Is(err, faulty.ErrDown) || ds != nil {
			t.Errorf("%v, %v", ds, err)
		}
		remove()
		start := time.Now()
		ds, err := q.Receive(t.Context(), 1, time.Minute)
		if err != nil || len(ds) != 1 || ds[0].Receives != 2 || time.Since(start) != time.Minute {
			t.Errorf("%+v, %v after %v", ds, err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		plan.Add(faulty.Rule{Method: "Queue.*", Hold: make(chan struct{})})
		if ds, err := q.Receive(ctx, 1, time.Minute); len(ds) > 0 || err != nil {
			t.Errorf("held until its ctx ended: %v, %v", ds, err)
		}
	})
}

func TestHangsUntilReleased(t *testing.T) {
	hold, there := make(chan struct{}), make(chan string, 1)
	m, next, _ := callers(faulty.Rule{Method: "Callers.Put", Hold: hold, Hook: func(_ context.Context, method string) { there <- method }})
	done := make(chan error)
	go func() { done <- put(t.Context(), m) }()
	if method := <-there; method != "Callers.Put" || stored(t, next) {
		t.Error("it did not hang")
	}
	close(hold)
	if err := <-done; err != nil || !stored(t, next) {
		t.Error(err)
	}
}

func TestHangsUntilTheCallerLeaves(t *testing.T) {
	m, next, _ := callers(faulty.Rule{Method: "Callers.Put", Hold: make(chan struct{})})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := put(ctx, m); !errors.Is(err, context.Canceled) || notify.KindOf(err) != notify.KindUnavailable || stored(t, next) {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	m, _, plan := callers()
	remove := plan.Add(faulty.Rule{Method: "*", Err: faulty.ErrDown})
	if put(t.Context(), m) == nil {
		t.Error("the rule did not apply")
	}
	remove()
	if err := put(t.Context(), m); err != nil {
		t.Error(err)
	}
}

// TestSeed: the same seed fails the same calls, about as many as asked for.
func TestSeed(t *testing.T) {
	pattern := func(seed uint64) (s string, failed int) {
		plan := faulty.NewPlan(seed)
		plan.Add(faulty.Rule{Method: "*", Chance: 0.3, Err: faulty.ErrDown})
		m := faulty.NewCallers(memory.New().Callers(), plan)
		for range 1000 {
			if put(t.Context(), m) != nil {
				s, failed = s+"x", failed+1
			} else {
				s += "."
			}
		}
		return s, failed
	}
	a, n := pattern(1)
	b, _ := pattern(1)
	c, _ := pattern(2)
	if a != b || a == c || n < 230 || n > 370 {
		t.Errorf("%d of 1000 failed; repeatable %v", n, a == b)
	}
}
