package provider

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// A probe that finds no slot is given back: the account is called as soon as a
// slot is free, not when the breaker gives its answer up.
func TestProbeWithoutASlotIsGivenBack(t *testing.T) {
	t.Parallel()
	one := func(name string) accountConfig {
		return accountConfig{Account: limit.Account{Name: name, Rate: 1000}, calls: 1}
	}
	p, err := newAccounts("prov", []accountConfig{one("sick"), one("well")}, 0.5, limit.BreakerConfig{Probes: 1}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	p.pool.Report(now, "sick", limit.Unhealthy, 3)
	now = now.Add(6 * time.Second)   // it is open for 5 s
	p.findAccount("sick").inflight++ // a call from before
	for range 3 {                    // whichever the pool offers first
		if m, _ := p.chooseAccount(now, limit.Fast, 1); m == nil || m.account.name != "well" {
			t.Fatalf("chose %+v", m)
		}
		p.findAccount("well").inflight--
	}
	p.findAccount("sick").inflight--
	p.findAccount("well").inflight++
	if m, _ := p.chooseAccount(now, limit.Fast, 1); m == nil || m.account.name != "sick" {
		t.Fatalf("chose %+v: the probe is lost", m)
	}
}

// A test passes an open breaker and leaves it open. It uses the account's rate: it waits
// for a message of it, not longer than its context, and keeps to a block.
func TestTakeForTest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := newAccounts("prov", []accountConfig{{Account: limit.Account{Name: "a", Rate: 0.1, Burst: 2}, calls: 1}}, 0.5, limit.BreakerConfig{}, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		p.pool.Report(time.Now(), "a", limit.Misconfigured, 1)
		before := p.pool.Status(time.Now())[0].Breaker
		take := func(d time.Duration) (code string, took time.Duration) {
			ctx, stop := context.WithTimeout(t.Context(), d)
			defer stop()
			start := time.Now()
			if e, ok := errors.AsType[*notify.Error](p.takeForTest(ctx, p.list[0])); ok {
				code = e.Code
			}
			return code, time.Since(start)
		}
		f := func(d time.Duration, code string, took time.Duration) {
			t.Helper()
			if c, in := take(d); c != code || in.Round(time.Millisecond) != took {
				t.Errorf("%q after %s, want %q after %s", c, in, code, took)
			}
		}
		f(time.Minute, "", 0)
		f(time.Minute, "", 0)
		f(time.Second, "accounts_busy", time.Second)
		f(time.Minute, "", 9*time.Second)
		if now := p.pool.Status(time.Now())[0].Breaker; before.State != limit.Open || now != before {
			t.Errorf("the breaker is %+v, was %+v", now, before)
		}
		p.blockAccount(t.Context(), p.list[0], time.Hour)
		f(time.Minute, "prov_blocked", 0)
	})
}
