package provider

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Two processes call over the same account: together they keep its rate. While
// what they share is away each keeps it by itself, and nobody waits for it.
func TestTwoProcessesShareARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := faulty.NewPlan(1)
		shared := faultyLimits{memory.NewLimits(), plan}
		var procs []*accounts
		for range 2 {
			p, err := newAccounts("twilio", []slot{{Account: limit.Account{Name: "a", Rate: 50, Burst: 5}, calls: 4}}, 0.5, limit.BreakerConfig{},
				limit.NewShared(shared, limit.SharedConfig{}), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			procs = append(procs, p)
		}
		calls := func(d time.Duration) (sum int) {
			ctx, stop := context.WithTimeout(t.Context(), d)
			defer stop()
			counts := make(chan int)
			for _, p := range procs {
				go func() {
					n := 0
					for {
						m, err := p.admit(ctx, limit.Fast, notify.OTP, 1)
						if err != nil {
							counts <- n
							return
						}
						n += m.use(1)
						p.done(m.a, notify.ClassAccepted)
						m.Release()
					}
				}()
			}
			return <-counts + <-counts
		}
		check := func(what string, got, least, most int) {
			t.Helper()
			if got < least || got > most {
				t.Errorf("%s: %d calls, want %d to %d", what, got, least, most)
			}
		}
		check("together", calls(10*time.Second), 450, 510)
		heal := plan.Add(faulty.Rule{Method: "Limits.*", Err: faulty.ErrDown})
		check("alone", calls(10*time.Second), 900, 1020)
		heal()
		time.Sleep(2 * time.Second)
		check("together again", calls(10*time.Second), 450, 510)
		for _, p := range procs {
			if p.list[0].inflight != 0 {
				t.Errorf("%d slots are taken", p.list[0].inflight)
			}
		}
	})
}

// faultyLimits are limits whose calls fail as a plan says.
type faultyLimits struct {
	limit.Limits
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
