package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

func mustPool(t testing.TB, cfg PoolConfig) *Pool {
	t.Helper()
	p, err := NewPool(start, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func three(rate float64) []Account {
	return []Account{{Name: "a", Rate: rate}, {Name: "b", Rate: rate}, {Name: "c", Rate: rate}}
}

// picks returns which accounts n picks of one message each get, up to the first
// refusal, and when to come back.
func picks(p *Pool, d time.Duration, l Lane, n int) (names string, earliest time.Duration) {
	for range n {
		g, ok, at := p.Pick(after(d), Want{Lane: l, N: 1})
		if !ok {
			return names, at.Sub(after(d))
		}
		names += g.Account
	}
	return names, 0
}

func wantPicks(t *testing.T, p *Pool, d time.Duration, l Lane, n int, want string, wantEarliest time.Duration) {
	t.Helper()
	if got, at := picks(p, d, l, n); got != want || at != wantEarliest {
		t.Fatalf("picks at %v: %q, %v; want %q, %v", d, got, at, want, wantEarliest)
	}
}

func TestPoolRoundRobin(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: three(2)})
	wantPicks(t, p, 0, Fast, 9, "abcabc", sec/2)
	wantPicks(t, p, sec/2, Fast, 4, "abc", sec/2)
}

func TestPoolBlockedAccountIsNotMadeUpFor(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: three(2)})
	if err := p.Block(t.Context(), start, "b", after(10*sec)); err != nil {
		t.Fatal(err)
	}
	wantPicks(t, p, 0, Fast, 9, "acac", sec/2)
	wantPicks(t, p, 9*sec, Fast, 9, "acac", sec/2)
	wantPicks(t, p, 10*sec, Fast, 9, "acac", sec/2) // b starts empty; a and c are what they always were
}

// When a block is over both buckets start empty. Were bulk to keep what it had saved
// up, it would take the first tokens of the account, which the fast lane waits for.
func TestPoolBlockEmptiesBulkToo(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: []Account{{Name: "a", Rate: 4}}})
	if err := p.Block(t.Context(), start, "a", after(10*sec)); err != nil {
		t.Fatal(err)
	}
	wantPicks(t, p, 10*sec+sec/4, Bulk, 1, "", sec/4)
	wantPicks(t, p, 10*sec+sec/4, Fast, 1, "a", 0)
	wantPicks(t, p, 10*sec+sec/2, Bulk, 2, "a", sec/2)
}

func TestPoolAllBlockedWaitsForTheEarliest(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: three(2)})
	for i, name := range []string{"a", "b", "c"} {
		if err := p.Block(t.Context(), start, name, after(time.Duration(9-i)*sec)); err != nil {
			t.Fatal(err)
		}
	}
	wantPicks(t, p, sec, Fast, 1, "", 6*sec)
	if ok, at := p.Ready(after(sec)); ok || !at.Equal(after(7*sec)) {
		t.Fatalf("Ready = %v, %v; want false, %v", ok, at, after(7*sec))
	}
	if ok, _ := p.Ready(after(7 * sec)); !ok {
		t.Fatal("not ready when the first block is over")
	}
}

func TestPoolOpenBreaker(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: three(10)[:2]})
	p.Report(start, "a", Unhealthy, 3)
	wantPicks(t, p, 0, Fast, 4, "bbbb", 0)
	p.Report(start, "b", Misconfigured, 1)
	wantPicks(t, p, 0, Fast, 1, "", 5*sec)
	if ok, at := p.Ready(start); ok || !at.Equal(after(5*sec)) {
		t.Fatalf("Ready = %v, %v; want false, %v", ok, at, after(5*sec))
	}
	g, ok, _ := p.Pick(after(5*sec), Want{N: 8, Min: 8})
	if want := (Grant{Account: "a", N: 1, Probe: true}); !ok || g != want {
		t.Fatalf("Pick = %+v, %v; want the probe %+v", g, ok, want)
	}
	s := p.Status(after(5 * sec))
	if s[0].Breaker.State != HalfOpen || s[1].Breaker.State != Open || s[1].Breaker.Reason != ReasonConfig {
		t.Fatalf("Status = %+v", s)
	}
}

func TestPoolEmptyBucketWastesNoProbe(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: []Account{{Name: "a", Rate: 0.1, Burst: 1}}, Breaker: BreakerConfig{Probes: 1}})
	wantPicks(t, p, 0, Fast, 2, "a", 10*sec)
	p.Report(start, "a", Unhealthy, 3)
	wantPicks(t, p, 6*sec, Fast, 1, "", 4*sec) // half-open, but nothing in the bucket
	wantPicks(t, p, 10*sec, Fast, 1, "a", 0)
}

func TestPoolGrantsBetweenMinAndN(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: []Account{{Name: "a", Rate: 100}}})
	f := func(d time.Duration, w Want, want int, wantEarliest time.Duration) {
		t.Helper()
		g, ok, at := p.Pick(after(d), w)
		if g.N != want || ok != (want > 0) || (!ok && at.Sub(after(d)) != wantEarliest) {
			t.Fatalf("Pick(%+v) after %v = %+v, %v, %v; want %d, %v", w, d, g, ok, at.Sub(after(d)), want, wantEarliest)
		}
	}
	f(0, Want{N: 70}, 70, 0)
	f(0, Want{N: 70, Min: 31}, 0, 10*time.Millisecond)
	f(0, Want{N: 70, Min: 30}, 30, 0)
	f(0, Want{Lane: Bulk, N: 1000, Min: 1000}, 0, sec/2) // counts as 50, all bulk ever holds
	f(sec/2, Want{Lane: Bulk, N: 1000, Min: 1000}, 50, 0)
	f(sec/2, Want{}, 0, 10*time.Millisecond) // 0 means 1
}

func TestPoolBulkIsHeldToItsShare(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: []Account{{Name: "a", Rate: 4}}})
	wantPicks(t, p, 0, Bulk, 9, "aa", sec/2)
	wantPicks(t, p, 0, Fast, 9, "aa", sec/4)
	wantPicks(t, p, time.Minute, Fast, 9, "aaaa", sec/4) // the fast lane may have all
}

// A campaign without end must not make a code wait: as long as the fast lane
// keeps to its part, it is served at once.
func TestPoolFastLaneNeverWaitsBehindBulk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := float64(rapid.IntRange(2, 1000).Draw(t, "rate"))
		burst := rapid.IntRange(4, 1000).Draw(t, "burst")
		share := rapid.SampledFrom([]float64{0.25, 0.5, 0.75}).Draw(t, "share")
		p, err := NewPool(start, PoolConfig{Accounts: []Account{{Name: "a", Rate: rate, Burst: burst}}, BulkShare: share})
		if err != nil {
			t.Fatal(err)
		}
		// part says when the fast lane is within its part.
		part := NewBucket(start, rate*(1-share), max(1, int(float64(burst)*(1-share))))
		now := start
		var bulk, all []taken
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(500*time.Millisecond)).Draw(t, "pause")))
			if rapid.IntRange(0, 20).Draw(t, "op") == 0 {
				if err := p.Block(context.Background(), now, "a", now.Add(sec)); err != nil {
					t.Fatal(err)
				}
				part.Penalize(now, now.Add(sec))
			}
			for { // a campaign takes all it can get
				g, ok, _ := p.Pick(now, Want{Lane: Bulk, N: burst})
				if !ok {
					break
				}
				bulk, all = append(bulk, taken{now, g.N}), append(all, taken{now, g.N})
			}
			n := rapid.IntRange(1, burst).Draw(t, "codes")
			if ok, _ := part.Take(now, n); ok {
				g, ok, at := p.Pick(now, Want{Lane: Fast, N: n, Min: n})
				if !ok || g.N != n {
					t.Fatalf("%d codes within their part must wait %v", n, at.Sub(now))
				}
				all = append(all, taken{now, n})
			}
		}
		conforms(t, "bulk", bulk, rate*share, bulkBurst(float64(burst), share))
		conforms(t, "account", all, rate, float64(burst))
	})
}

// Whatever happens to the others, an account is never used above its rate,
// while blocked, or while its breaker is open.
func TestPoolKeepsEveryAccountsRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var cfg PoolConfig
		for i := range rapid.IntRange(1, 4).Draw(t, "accounts") {
			cfg.Accounts = append(cfg.Accounts, Account{
				Name:  string(rune('a' + i)),
				Rate:  rapid.Float64Range(0.5, 100).Draw(t, "rate"),
				Burst: rapid.IntRange(1, 50).Draw(t, "burst"),
			})
		}
		p, err := NewPool(start, cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := start
		blocked := map[string]time.Time{}
		got := map[string][]taken{}
		account := rapid.SampledFrom(cfg.Accounts)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*sec)).Draw(t, "pause")))
			switch rapid.IntRange(0, 9).Draw(t, "op") {
			case 0:
				a, until := account.Draw(t, "block").Name, now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "s"))*sec)
				if err := p.Block(context.Background(), now, a, until); err != nil {
					t.Fatal(err)
				}
				if until.After(blocked[a]) {
					blocked[a] = until
				}
			case 1:
				p.Report(now, account.Draw(t, "report").Name, Outcome(rapid.IntRange(0, 3).Draw(t, "outcome")), 2)
			default:
				before := p.Status(now)
				w := Want{Lane: Lane(rapid.IntRange(0, 1).Draw(t, "lane")), N: rapid.IntRange(1, 60).Draw(t, "n")}
				g, ok, earliest := p.Pick(now, w)
				if !ok {
					if !earliest.After(now) {
						t.Fatalf("refused at %v, and told to come back at %v", now, earliest)
					}
					break
				}
				if g.N < 1 || g.N > w.N {
					t.Fatalf("asked for up to %d, got %d", w.N, g.N)
				}
				if now.Before(blocked[g.Account]) {
					t.Fatalf("%s was used, blocked for %v more", g.Account, blocked[g.Account].Sub(now))
				}
				i := slices.IndexFunc(before, func(s AccountStatus) bool { return s.Name == g.Account })
				if s := before[i].Breaker.State; s == Open || (s == HalfOpen) != g.Probe || (g.Probe && g.N != 1) {
					t.Fatalf("%+v was granted, its breaker is %v", g, s)
				}
				got[g.Account] = append(got[g.Account], taken{now, g.N})
			}
		}
		for _, a := range cfg.Accounts {
			conforms(t, a.Name, got[a.Name], a.Rate, float64(a.Burst))
		}
	})
}

// sharedBlocks stands for what all workers see.
type sharedBlocks struct {
	mu    sync.Mutex
	until map[string]time.Time
	err   error
}

func (b *sharedBlocks) Block(_ context.Context, account string, until time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil && until.After(b.until[account]) {
		b.until[account] = until
	}
	return b.err
}

func (b *sharedBlocks) Blocked(_ context.Context, accounts []string) ([]time.Time, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]time.Time, len(accounts))
	for i, a := range accounts {
		out[i] = b.until[a]
	}
	return out, b.err
}

func TestPoolBlockReachesTheOthers(t *testing.T) {
	t.Parallel()
	shared := &sharedBlocks{until: map[string]time.Time{}}
	one := mustPool(t, PoolConfig{Accounts: three(1), Blocks: shared})
	two := mustPool(t, PoolConfig{Accounts: three(1), Blocks: shared})
	if err := one.Block(t.Context(), start, "b", after(10*sec)); err != nil {
		t.Fatal(err)
	}
	if err := two.Sync(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	wantPicks(t, two, 0, Fast, 3, "ac", sec)

	shared.err = notify.Unavailable("limits", 0, errors.New("down"))
	if err := two.Block(t.Context(), start, "a", after(20*sec)); notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("Block = %v, want unavailable", err)
	}
	if err := two.Sync(t.Context(), start); notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("Sync = %v, want unavailable", err)
	}
	wantPicks(t, two, 5*sec, Fast, 3, "c", sec) // both blocks still hold here
}

func TestPoolSetRate(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: three(2)[:1]})
	wantPicks(t, p, 0, Fast, 9, "aa", sec/2)
	if err := p.SetRate(start, "a", 10, 0); err != nil {
		t.Fatal(err)
	}
	wantPicks(t, p, 0, Fast, 9, "", sec/10)
	wantPicks(t, p, sec, Bulk, 9, "aaaaa", sec/5)
	if err := p.SetRate(start, "a", -1, 0); notify.KindOf(err) != notify.KindInvalid {
		t.Fatalf("negative rate: %v", err)
	}
	if err := p.SetRate(start, "z", 1, 0); notify.KindOf(err) != notify.KindNotFound {
		t.Fatalf("unknown account: %v", err)
	}
	if err := p.Block(t.Context(), start, "z", start); notify.KindOf(err) != notify.KindNotFound {
		t.Fatalf("unknown account: %v", err)
	}
	p.Report(start, "z", Unhealthy, 100) // no panic
}

func TestPoolConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []PoolConfig{
		{},
		{Accounts: []Account{{Name: "", Rate: 1}}},
		{Accounts: []Account{{Name: "a"}}},
		{Accounts: []Account{{Name: "a", Rate: 1, Burst: -1}}},
		{Accounts: []Account{{Name: "a", Rate: 1}, {Name: "a", Rate: 1}}},
		{Accounts: three(1), BulkShare: -1},
		{Accounts: three(1), BulkShare: 1.5},
		{Accounts: three(1), Breaker: BreakerConfig{Ratio: 2}},
	} {
		if _, err := NewPool(start, cfg); notify.KindOf(err) != notify.KindInvalid {
			t.Errorf("%+v: %v, want invalid", cfg, err)
		}
	}
}

func TestPoolUnlimited(t *testing.T) {
	t.Parallel()
	p := mustPool(t, PoolConfig{Accounts: []Account{{Name: "apns", Rate: Unlimited}}})
	for _, l := range []Lane{Fast, Bulk, Bulk, Fast} {
		if g, ok, _ := p.Pick(start, Want{Lane: l, N: 1_000_000, Min: 1_000_000}); !ok || g.N != 1_000_000 {
			t.Fatalf("lane %d: %+v, %v", l, g, ok)
		}
	}
}

func TestPoolConcurrently(t *testing.T) {
	t.Parallel()
	shared := &sharedBlocks{until: map[string]time.Time{}}
	p := mustPool(t, PoolConfig{Accounts: three(100), Blocks: shared})
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for i := range 6 {
		wg.Go(func() {
			for range 200 {
				if g, ok, _ := p.Pick(start, Want{Lane: Lane(i % 2), N: 2}); ok {
					p.Report(start, g.Account, Healthy, g.N)
					mu.Lock()
					total += g.N
					mu.Unlock()
				}
				p.Status(start)
				if err := p.Sync(t.Context(), start); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if total != 300 {
		t.Fatalf("%d messages granted, want 300", total)
	}
}

// 166 ns for Pick and Report, no allocation (2 shared cores, go1.26.8).
func BenchmarkPoolPickReport(b *testing.B) {
	p := mustPool(b, PoolConfig{Accounts: three(1e9)})
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		g, _, _ := p.Pick(now, Want{N: 1})
		p.Report(now, g.Account, Healthy, 1)
	}
}
