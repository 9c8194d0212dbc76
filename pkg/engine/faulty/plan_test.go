package faulty_test

import (
	"context"
	"errors"
	"testing"
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
	enginetest.Status(t, through((*memory.Store).Status, faulty.NewStatus))
}
func TestTimers(t *testing.T) {
	enginetest.Timers(t, through((*memory.Store).Timers, faulty.NewTimers))
}
func TestPrefs(t *testing.T) { enginetest.Prefs(t, through((*memory.Store).Prefs, faulty.NewPrefs)) }
func TestIdem(t *testing.T)  { enginetest.Idem(t, through((*memory.Store).Idem, faulty.NewIdem)) }
func TestSpill(t *testing.T) { enginetest.Spill(t, through((*memory.Store).Spill, faulty.NewSpill)) }
func TestJobs(t *testing.T)  { enginetest.Jobs(t, through((*memory.Store).Jobs, faulty.NewJobs)) }
func TestMeta(t *testing.T)  { enginetest.Meta(t, through((*memory.Store).Meta, faulty.NewMeta)) }
func TestCallers(t *testing.T) {
	enginetest.Callers(t, through((*memory.Store).Callers, faulty.NewCallers))
}
func TestCancels(t *testing.T) {
	enginetest.Cancels(t, through((*memory.Store).Cancels, faulty.NewCancels))
}
func TestCampaigns(t *testing.T) {
	enginetest.Campaigns(t, through((*memory.Store).Campaigns, faulty.NewCampaigns))
}
func TestDeadLetters(t *testing.T) {
	enginetest.DeadLetters(t, through((*memory.Store).DeadLetters, faulty.NewDeadLetters))
}
func TestLease(t *testing.T) {
	enginetest.Lease(t, func(enginetest.T) (engine.Lease, func() engine.Lease) {
		return faulty.NewLease(memory.NewLease(), faulty.NewPlan(1)), nil
	}, time.Sleep)
}
func TestLimits(t *testing.T) {
	enginetest.Limits(t, func(enginetest.T) (engine.Limits, func() engine.Limits) {
		return faulty.NewLimits(memory.NewLimits(), faulty.NewPlan(1)), nil
	}, time.Sleep)
}

func meta(r ...faulty.Rule) (engine.Meta, engine.Meta, *faulty.Plan) {
	next, plan := memory.New().Meta(), faulty.NewPlan(7)
	for _, r := range r {
		plan.Add(r)
	}
	return faulty.NewMeta(next, plan), next, plan
}

func stored(t *testing.T, m engine.Meta) bool {
	t.Helper()
	v, err := m.GetMeta(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	return v != nil
}

func TestRefused(t *testing.T) {
	m, _, plan := meta(faulty.Rule{Method: "Meta.PutMeta", Skip: 1, Times: 2, Err: faulty.ErrDown})
	for i, want := range []bool{true, false, false, true} {
		if err := m.PutMeta(t.Context(), "n", nil); (err == nil) != want || (err != nil && notify.KindOf(err) != notify.KindUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if plan.Calls("Meta.PutMeta") != 4 || plan.Calls("Meta.GetMeta") != 0 {
		t.Error("calls were counted wrong")
	}
	m, next, _ := meta(faulty.Rule{Method: "Meta.*", Err: faulty.ErrDown})
	if err := m.PutMeta(t.Context(), "n", nil); err == nil || stored(t, next) {
		t.Errorf("a refused call was applied: %v", err)
	}
	if v, err := m.GetMeta(t.Context(), "n"); v != nil || err == nil {
		t.Errorf("%v, %v", v, err)
	}
}

func TestLostAcknowledgement(t *testing.T) {
	m, next, _ := meta(faulty.Rule{Method: "*", Times: 1, Err: faulty.ErrDown, Lost: faulty.Applied})
	if err := m.PutMeta(t.Context(), "n", nil); !errors.Is(err, faulty.ErrDown) || !stored(t, next) {
		t.Errorf("error %v, want an error of a call that was applied", err)
	}
}

func TestHangsUntilReleased(t *testing.T) {
	hold, there := make(chan struct{}), make(chan string, 1)
	m, next, _ := meta(faulty.Rule{Method: "Meta.PutMeta", Hold: hold, Hook: func(_ context.Context, method string) { there <- method }})
	done := make(chan error)
	go func() { done <- m.PutMeta(t.Context(), "n", nil) }()
	if method := <-there; method != "Meta.PutMeta" || stored(t, next) {
		t.Error("it did not hang")
	}
	close(hold)
	if err := <-done; err != nil || !stored(t, next) {
		t.Error(err)
	}
}

func TestHangsUntilTheCallerLeaves(t *testing.T) {
	m, next, _ := meta(faulty.Rule{Method: "Meta.PutMeta", Hold: make(chan struct{})})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.PutMeta(ctx, "n", nil); !errors.Is(err, context.Canceled) || notify.KindOf(err) != notify.KindUnavailable || stored(t, next) {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	m, _, plan := meta()
	remove := plan.Add(faulty.Rule{Method: "*", Err: faulty.ErrDown})
	if m.PutMeta(t.Context(), "n", nil) == nil {
		t.Error("the rule did not apply")
	}
	remove()
	if err := m.PutMeta(t.Context(), "n", nil); err != nil {
		t.Error(err)
	}
}

// TestSeed: the same seed fails the same calls, about as many as asked for.
func TestSeed(t *testing.T) {
	pattern := func(seed uint64) (s string, failed int) {
		plan := faulty.NewPlan(seed)
		plan.Add(faulty.Rule{Method: "*", Chance: 0.3, Err: faulty.ErrDown})
		m := faulty.NewMeta(memory.New().Meta(), plan)
		for range 1000 {
			if m.PutMeta(t.Context(), "n", nil) != nil {
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
