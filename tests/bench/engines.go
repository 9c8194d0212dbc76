package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// P10 measures what notifyd adds to the cost of a server. The engine of notifyd and a peer do the
// same work in turns, on the servers of make engines. The peer is the server's own tool or the
// driver alone. It stores the same bytes in the same tables. Only the engine has clocks, a fixed
// order of index writes, retries and translated errors.

// engineFigures are the servers of P10, in the order in which they are measured.
var engineFigures = []struct {
	name string
	run  func(ctx context.Context, b *bench, at string)
}{{"kafka", kafkaFigures}, {"cassandra", cassandraFigures}, {"redis", redisFigures}, {"postgres", postgresFigures}}

// engineNeed is the bound of P10: the product must reach at least 0.7 of the peer's rate.
var engineNeed = ratioOf(0.7)

// servers measures P10 on each server of the flag -engine ("name=address"). If -chain is set, it
// measures P11 instead.
func servers(ctx context.Context, b *bench) {
	addresses := map[string]string{}
	for _, s := range b.engines {
		name, address, _ := strings.Cut(s, "=")
		addresses[name] = address
	}
	if b.chain {
		b.figure("P11", func() { chainFigures(ctx, b, addresses) })
		return
	}
	for _, f := range engineFigures {
		address, asked := addresses[f.name]
		if delete(addresses, f.name); asked {
			b.figure(f.name, func() { f.run(ctx, b, address) })
		}
	}
	if len(addresses) > 0 {
		panic(fmt.Errorf("-engine must be name=address, and the name must be kafka, cassandra, redis or postgres; unknown: %v", addresses))
	}
}

// versus is a line of P10. It compares the product with a peer.
type versus struct {
	key, work, unit, peer string
	need                  need
	callers               int // number of concurrent callers on each side; only compareFloods uses it
	// Each of the functions ours and theirs makes one run, normally for about d, and returns units per
	// second.
	ours, theirs func(d time.Duration) float64
}

// compare measures the product and the peer in turns and adds a line to the results. It does
// nothing if the flag -only is set to other keys.
func (b *bench) compare(v versus) {
	if b.only != "" && !slices.Contains(strings.Split(b.only, ","), v.key) {
		return
	}
	us, them := &side{name: "ours", run: v.ours}, &side{name: v.peer, run: v.theirs}
	b.alternate(v.key, b.length(1500*time.Millisecond, 700*time.Millisecond), us, them)
	b.add(result{
		ID: "P10", Key: v.key, Work: fmt.Sprintf("%s; %.2f cores, %.0f ns; ref: %s", v.work, us.cores, us.cost, v.peer),
		Value: us.best, Unit: v.unit, Reference: them.best, main: true,
	}, v.need)
}

// job is the work of one caller in a flood. It returns the number of units that it has done, or a
// negative number if no work is left. Then the caller stops.
type job = func(ctx context.Context, caller int) int

// compareFloods does the same as compare. Each side is a flood with v.callers callers.
func (b *bench) compareFloods(ctx context.Context, v versus, ours, theirs job) {
	v.ours = func(d time.Duration) float64 { return flood(ctx, v.callers, d, ours) }
	v.theirs = func(d time.Duration) float64 { return flood(ctx, v.callers, d, theirs) }
	b.compare(v)
}

// flood starts a goroutine for each of the callers. Each goroutine calls the function work again
// and again for about d. flood returns the units per second of all goroutines together.
func flood(ctx context.Context, callers int, d time.Duration, work job) float64 {
	var done atomic.Int64
	began := time.Now()
	rig.Together(ctx, callers, func(ctx context.Context, i int) {
		for time.Since(began) < d && ctx.Err() == nil {
			n := work(ctx, i)
			if n < 0 {
				return
			}
			done.Add(int64(n))
		}
	})
	rig.Ok(ctx.Err())
	return float64(done.Load()) / time.Since(began).Seconds()
}

// manyOf calls fn with each number from 0 to n-1. At most atOnce calls run at the same time. Peers
// use it to keep many connections busy.
func manyOf(ctx context.Context, n, atOnce int, fn func(i int)) {
	rig.InSteps(ctx, n, 1, min(n, atOnce), func(_ context.Context, i, _ int) { fn(i) })
}
