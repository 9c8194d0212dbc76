package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// P10 asks what our use of a server costs: the same work through the product's
// engine, and by the server's own tool or by the bare driver, in turns, on the
// servers of make engines. The peer stores the same bytes in the same tables; what
// the engine adds (clocks, indexes' order, retries, names of errors) is the
// difference.

type engineFigure struct {
	name string
	run  func(ctx context.Context, b *bench, at string) error
}

// engineFigures are the servers of P10, in the order in which they are measured.
var engineFigures = []engineFigure{{"kafka", kafkaFigures}, {"cassandra", cassandraFigures}, {"redis", redisFigures}, {"postgres", postgresFigures}}

// engineNeed is P10's: what the product's path must hold of the peer's rate.
const engineNeed = 0.7

// servers measures P10 on each server that is named, "name=address" each.
func servers(ctx context.Context, b *bench) error {
	at := map[string]string{}
	for _, s := range b.engines {
		name, address, ok := strings.Cut(s, "=")
		if !ok || !slices.ContainsFunc(engineFigures, func(f engineFigure) bool { return f.name == name }) {
			return fmt.Errorf("-engine is name=address of kafka, cassandra, redis or postgres, not %q", s)
		}
		at[name] = address
	}
	for _, f := range engineFigures {
		if at[f.name] == "" {
			continue
		}
		began, load := time.Now(), rig.LoadAverage()
		if err := f.run(ctx, b, at[f.name]); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		b.notef("%s took %.0f s; load average %s before, %s after", f.name, time.Since(began).Seconds(), load, rig.LoadAverage())
	}
	return nil
}

// against measures ours and a peer in turns and adds the line, unless -only names
// other keys.
func (b *bench) against(key, work, unit, peer string, n need, ours, theirs func(d time.Duration) (float64, error)) error {
	if b.only != "" && !slices.Contains(strings.Split(b.only, ","), key) {
		return nil
	}
	us, them := &side{name: "ours", run: ours}, &side{name: peer, run: theirs}
	if err := b.alternate(key, b.length(1500*time.Millisecond, 700*time.Millisecond), us, them); err != nil {
		return err
	}
	b.add(result{ID: "P10", Key: key, Work: fmt.Sprintf("%s; %.2f cores, %.0f ns; ref: %s", work, us.cores, us.cost, peer), Value: us.best, Unit: unit, Reference: them.best, main: true}, n)
	return nil
}

// floods is against with floods of so many callers on both sides.
func (b *bench) floods(ctx context.Context, callers int, key, work, unit, peer string, n need, ours, theirs func(ctx context.Context, caller int) (int, error)) error {
	run := func(fn func(context.Context, int) (int, error)) func(time.Duration) (float64, error) {
		return func(d time.Duration) (float64, error) { return flood(ctx, callers, d, fn) }
	}
	return b.against(key, work, unit, peer, n, run(ours), run(theirs))
}

// flood calls fn from so many goroutines again and again for about d, and returns
// the sum of what it says was done, per second.
func flood(ctx context.Context, callers int, d time.Duration, fn func(ctx context.Context, caller int) (int, error)) (float64, error) {
	var (
		done   atomic.Int64
		failed atomic.Pointer[error]
		wg     sync.WaitGroup
	)
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			for time.Since(began) < d && failed.Load() == nil {
				n, err := fn(ctx, i)
				if errors.Is(err, errNoMore) {
					return
				}
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				done.Add(int64(n))
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(done.Load()) / time.Since(began).Seconds(), ctx.Err()
}

// errNoMore ends a caller of flood: what it works on is used up.
var errNoMore = errors.New("nothing left to work on")

// manyOf calls fn with 0..n-1, so many at a time: the peers' way to use many
// connections.
func manyOf(n, atOnce int, fn func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
