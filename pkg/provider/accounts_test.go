package provider

import (
	"log/slog"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
)

// A probe that finds no slot is given back: the account is called as soon as a
// slot is free, not when the breaker gives its answer up.
func TestProbeWithoutASlotIsGivenBack(t *testing.T) {
	t.Parallel()
	one := func(name string) slot {
		return slot{Account: limit.Account{Name: name, Rate: 1000}, calls: 1}
	}
	p, err := newAccounts("prov", []slot{one("sick"), one("well")}, 0.5, limit.BreakerConfig{Probes: 1}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	p.pool.Report(now, "sick", limit.Unhealthy, 3)
	now = now.Add(6 * time.Second) // it is open for 5 s
	p.find("sick").inflight++      // a call from before
	for range 3 {                  // whichever the pool offers first
		if m, _ := p.choose(now, limit.Fast, 1); m == nil || m.a.name != "well" {
			t.Fatalf("chose %+v", m)
		}
		p.find("well").inflight--
	}
	p.find("sick").inflight--
	p.find("well").inflight++
	if m, _ := p.choose(now, limit.Fast, 1); m == nil || m.a.name != "sick" {
		t.Fatalf("chose %+v: the probe is lost", m)
	}
}
