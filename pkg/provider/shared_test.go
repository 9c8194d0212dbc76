package provider

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Two processes that call over the same account respect its rate together. While the shared
// store is unreachable, each respects the rate by itself and does not wait for the store.
func TestTwoProcessesShareARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := faulty.NewPlan(1)
		shared := faultyLimits{memory.NewLimits(), plan}
		var procs []*accounts
		for range 2 {
			p, err := newAccounts("twilio", []accountConfig{{Account: limit.Account{Name: "a", Rate: 50, Burst: 5}, calls: 4}}, 0.5, limit.BreakerConfig{},
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
						n += m.useTokens(1)
						p.callEnded(m.account, notify.ClassAccepted)
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

// TestProcessesShareCallsAtATime: processes that come, go and exchange partitions make no
// more calls at a time over an account than it takes, but for one of a process that has
// just come; together they make as many as it takes.
func TestProcessesShareCallsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, call = 100, 400 * time.Millisecond
		type process struct {
			*accounts
			fast, bulk atomic.Int64 // calls now
			stop       context.CancelFunc
			calls      sync.WaitGroup
		}
		start := func(lanes ...limit.Lane) *process {
			a, err := newAccounts("twilio", []accountConfig{{limit.Account{Name: "a", Rate: limit.Unlimited}, most}}, 0.5, limit.BreakerConfig{}, nil, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			a.perCall = true
			a.setShare(Share{})
			ctx, stop := context.WithCancel(t.Context())
			p := &process{accounts: a, stop: stop}
			for _, lane := range lanes {
				n, cat := &p.fast, notify.OTP
				if lane == limit.Bulk {
					n, cat = &p.bulk, notify.Marketing
				}
				for range most {
					p.calls.Go(func() {
						for {
							m, err := p.admit(ctx, lane, cat, 1)
							if err != nil {
								return
							}
							m.useTokens(1)
							n.Add(1)
							time.Sleep(call)
							n.Add(-1)
							p.callEnded(m.account, notify.ClassAccepted)
							m.Release()
						}
					})
				}
			}
			return p
		}
		var all []*process
		rest := func(what string, wantFast, wantBulk int64) {
			t.Helper()
			var fast, bulk int64
			for end := time.Now().Add(shareRaisedAfter + 3*call); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				fast, bulk = 0, 0
				for _, p := range all {
					fast, bulk = fast+p.fast.Load(), bulk+p.bulk.Load()
				}
				if fast+bulk > most+1 {
					t.Fatalf("%s: %d calls at a time", what, fast+bulk)
				}
			}
			if fast != wantFast || bulk != wantBulk {
				t.Errorf("%s: at rest %d calls of codes and %d of bulk, want %d and %d", what, fast, bulk, wantFast, wantBulk)
			}
		}
		a := start(limit.Fast)
		all = append(all, a)
		rest("without a partition", 1, 0)
		a.setShare(Share{1, 1})
		rest("alone", most, 0)
		b := start(limit.Fast)
		all = append(all, b)
		a.setShare(Share{.5, .5})
		b.setShare(Share{.5, .5})
		rest("two", most, 0)
		if a.fast.Load() != most/2 {
			t.Errorf("one of two makes %d calls", a.fast.Load())
		}
		// A partition goes there and back before its slots count.
		a.setShare(Share{.25, .25})
		b.setShare(Share{.75, .75})
		time.Sleep(shareRaisedAfter / 2)
		b.setShare(Share{.5, .5})
		a.setShare(Share{.5, .5})
		rest("back again", most, 0)
		// A process for bulk alone takes the partitions of bulk.
		c := start(limit.Bulk)
		all = append(all, c)
		a.setShare(Share{.5, 0})
		b.setShare(Share{.5, 0})
		c.setShare(Share{0, 1})
		rest("one of three for bulk", most/2, most/2)
		for _, p := range all {
			p.stop()
			p.calls.Wait()
			if s := p.status(); s[0].InFlight != 0 {
				t.Errorf("%d slots are taken", s[0].InFlight)
			}
		}
		if s := a.status(); s[0].Limit != most/4 {
			t.Errorf("its limit is %d", s[0].Limit)
		}
	})
}

// faultyLimits are limits whose calls fail by plan.
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
