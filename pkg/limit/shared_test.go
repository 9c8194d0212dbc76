package limit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

// flow takes from two processes for a while, and returns what both got.
func flow(ss []*Shared, d time.Duration) (got int) {
	const rate, burst = 100, 10
	var own []*Bucket
	for range ss {
		own = append(own, NewBucket(time.Now(), rate, burst))
	}
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for i, s := range ss {
			n, _ := own[i].TakeUpTo(time.Now(), 10)
			if n > 0 {
				n, _ = s.TakeUpTo(context.Background(), time.Now(), "b", n, rate, burst)
			}
			got += n
		}
	}
	return got
}

func between(t *testing.T, what string, got, least, most int) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %d, want %d to %d", what, got, least, most)
	}
}

// Two processes share one rate. While the shared bucket is down, slow or emptied, each process uses
// its own bucket, no caller waits for the shared one, and it recovers by itself.
func TestSharedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := faulty.NewPlan(1)
		l := faultyLimits{memory.NewLimits(), plan}
		ss := []*Shared{NewShared(l, SharedConfig{}), NewShared(l, SharedConfig{})}
		between(t, "together", flow(ss, 10*time.Second), 900, 1020)

		heal := plan.Add(faulty.Rule{Method: "Limits.*", Err: faulty.ErrDown})
		asked := plan.Calls("Limits.Take")
		between(t, "alone", flow(ss, 10*time.Second), 1800, 2060)
		if n := plan.Calls("Limits.Take") - asked; n > 20 {
			t.Errorf("asked %d times in 10 s", n)
		}
		if s := ss[0].Stats(time.Now()); s.Failed == 0 || s.LocalOnly == 0 || !s.Suspended {
			t.Errorf("%+v", s)
		}
		heal()
		time.Sleep(2 * time.Second)
		between(t, "together again", flow(ss, 10*time.Second), 900, 1020)

		heal = plan.Add(faulty.Rule{Method: "Limits.*", Hook: func(ctx context.Context, _ string) { <-ctx.Done() }, Err: faulty.ErrDown})
		began := time.Now()
		for range 1000 {
			ss[0].TakeUpTo(t.Context(), time.Now(), "b", 1, 100, 10)
		}
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("1,000 questions to a slow one took %v", d)
		}
		heal()
		time.Sleep(2 * time.Second)
		between(t, "fast again", flow(ss, 10*time.Second), 900, 1020)
	})
}

func TestSharedBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := faulty.NewPlan(1)
		l := faultyLimits{memory.NewLimits(), plan}
		a, b := NewShared(l, SharedConfig{}), NewShared(l, SharedConfig{})
		until := time.Now().Add(time.Hour)
		if err := a.Block(t.Context(), "x", until); err != nil {
			t.Fatal(err)
		}
		heal := plan.Add(faulty.Rule{Method: "Limits.*", Err: faulty.ErrDown})
		if _, err := b.Blocked(t.Context(), []string{"x"}); err == nil {
			t.Error("the first failure is not told")
		}
		if got, err := b.Blocked(t.Context(), []string{"x"}); err != nil || !got[0].IsZero() {
			t.Errorf("%v, %v: what is not asked must not be told as trouble", got, err)
		}
		if err := b.Block(t.Context(), "y", until); err == nil {
			t.Error("a block that was not shared is told as shared")
		}
		heal()
		time.Sleep(2 * time.Second)
		if got, err := b.Blocked(t.Context(), []string{"x"}); err != nil || !got[0].Equal(until) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// faultyLimits are limits whose calls fail as a plan says.
type faultyLimits struct {
	Limits
	plan *faulty.Plan
}

func (w faultyLimits) Take(ctx context.Context, bucket string, n int, rate float64, burst int) (got int, wait time.Duration, err error) {
	err = w.plan.Do(ctx, "Limits.Take", func() (err error) {
		got, wait, err = w.Limits.Take(ctx, bucket, n, rate, burst)
		return err
	})
	return got, wait, err
}

func (w faultyLimits) Block(ctx context.Context, account string, until time.Time) error {
	return w.plan.Do(ctx, "Limits.Block", func() error { return w.Limits.Block(ctx, account, until) })
}

func (w faultyLimits) Blocked(ctx context.Context, accounts []string) ([]time.Time, error) {
	return faulty.Get(ctx, w.plan, "Limits.Blocked", func() ([]time.Time, error) { return w.Limits.Blocked(ctx, accounts) })
}
