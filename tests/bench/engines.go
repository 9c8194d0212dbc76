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

// P10 asks what our use of a server costs: the same work through the product's
// engine, and by the server's own tool or by the bare driver, in turns, on the
// servers of make engines. The peer stores the same bytes in the same tables; what
// the engine adds (clocks, indexes' order, retries, names of errors) is the
// difference.

// engineFigures are the servers of P10, in the order in which they are measured.
var engineFigures = []struct {
	name string
	run  func(ctx context.Context, b *bench, at string)
}{{"kafka", kafkaFigures}, {"cassandra", cassandraFigures}, {"redis", redisFigures}, {"postgres", postgresFigures}}

// engineNeed is P10's: what the product's path must hold of the peer's rate.
var engineNeed = ratioOf(0.7)

// servers measures P10 on each server that is named, "name=address" each.
func servers(ctx context.Context, b *bench) {
	at := map[string]string{}
	for _, s := range b.engines {
		name, address, _ := strings.Cut(s, "=")
		at[name] = address
	}
	if b.chain {
		b.figure("P11", func() { chainFigures(ctx, b, at) })
		return
	}
	for _, f := range engineFigures {
		address, asked := at[f.name]
		if delete(at, f.name); asked {
			b.figure(f.name, func() { f.run(ctx, b, address) })
		}
	}
	if len(at) > 0 {
		panic(fmt.Errorf("-engine is name=address of kafka, cassandra, redis or postgres, not %v", at))
	}
}

// versus is a row of P10: ours and a peer.
type versus struct {
	key, work, unit, peer string
	need                  need
	callers               int                           // at once, of floods
	ours, theirs          func(d time.Duration) float64 // per second
}

// against measures ours and a peer in turns and adds the line, unless -only names
// other keys.
func (b *bench) against(v versus) {
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

// job is work of one caller of a flood. It returns how much it has done, below 0 where
// nothing is left to work on.
type job = func(ctx context.Context, caller int) int

// floods is against with floods of the same number of callers on both sides.
func (b *bench) floods(ctx context.Context, v versus, ours, theirs job) {
	v.ours = func(d time.Duration) float64 { return flood(ctx, v.callers, d, ours) }
	v.theirs = func(d time.Duration) float64 { return flood(ctx, v.callers, d, theirs) }
	b.against(v)
}

// flood calls do from so many goroutines again and again for about d, and returns
// the sum of what it says was done, per second.
func flood(ctx context.Context, callers int, d time.Duration, do job) float64 {
	var done atomic.Int64
	began := time.Now()
	rig.Together(ctx, callers, func(ctx context.Context, i int) {
		for time.Since(began) < d && ctx.Err() == nil {
			n := do(ctx, i)
			if n < 0 {
				return
			}
			done.Add(int64(n))
		}
	})
	rig.Ok(ctx.Err())
	return float64(done.Load()) / time.Since(began).Seconds()
}

// manyOf calls fn with 0..n-1, so many at a time: the peers' way to use many
// connections.
func manyOf(ctx context.Context, n, atOnce int, fn func(i int)) {
	rig.InSteps(ctx, n, 1, min(n, atOnce), func(_ context.Context, i, _ int) { fn(i) })
}
