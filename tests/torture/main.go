// Command torture kills a real notifyd many times under load. Then it checks the promises of
// notifyd:
//
//   - Every acknowledged id reaches a terminal state.
//   - The number of duplicates is not larger than the number of receivers that the store has
//     recorded as sent again.
//   - The first attempts for each user are sent in order.
//   - No trigger or scheduled push is lost, early, or executed after its cancellation.
//
// The last line of the output has key=value pairs. torture exits with 1 if notifyd broke a
// promise.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	kills      int
	seed       uint64
	rate       float64
	laterRate  float64
	keep       bool
	mutant     string
	faultPoint string
	drain      time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.kills, "kills", 20, "number of times the process is killed")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "seed of the random kill times and fault points")
	flag.Float64Var(&o.rate, "rate", 300, "single notifications per second")
	flag.Float64Var(&o.laterRate, "later", 0, "triggers and scheduled pushes per second, most of them in batches; 0: a sixth of -rate")
	flag.BoolVar(&o.keep, "keep", false, "keep the data and the logs")
	rig.MutantFlag(&o.mutant, "torture")
	flag.StringVar(&o.faultPoint, "at", "", "fault point of every kill; empty: half of the kills are at random fault points")
	flag.DurationVar(&o.drain, "drain", 5*time.Minute, "longest wait until everything has a terminal state")
	flag.Parse()
	rig.Main("torture", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	fmt.Printf("torture  seed=%d  kills=%d  rate=%.0f/s  later=%.0f/s  mutant=%q\n", o.seed, o.kills, o.rate, o.laterRate, o.mutant)
	bin := rig.Must(rig.Notifyd(ctx, dir, "torture", o.mutant))
	v, err := rig.New(ctx, rig.Config{Bin: bin, Dir: dir})
	defer v.End()
	rig.Ok(err)
	rig.Ok(v.Faults(ctx))
	rig.Ok(v.Start(ctx, ""))

	sent := v.Load(ctx, o.rate, o.laterRate, o.seed)
	rng := rand.New(rand.NewPCG(o.seed, 1))
	longest := 2 * time.Second // longest random part of the time from a start to its kill
	if o.laterRate > 0 {
		longest = 5 * time.Second // so that triggers and schedules become due before the kill
	}
	for k := range o.kills {
		point := ""
		switch {
		case o.faultPoint != "":
			point = rig.Must(rig.PointAt(rng, o.faultPoint))
		case k%2 == 1:
			point = rig.Point(rng)
		}
		if k > 0 || point != "" {
			rig.Ok(v.Restart(ctx, point))
		}
		how := rig.Must(v.Die(ctx, point, 500*time.Millisecond+time.Duration(rng.Int64N(int64(longest)))))
		fmt.Printf("  kill %2d  %s\n", k+1, how)
	}
	rig.Ok(v.Start(ctx, ""))
	promises := rig.Must(sent())
	res := rig.Must(v.Check(ctx, promises, o.drain))
	later := rig.Must(v.CheckLater(ctx, promises, o.drain))
	audit := rig.Must(v.Audit(ctx))
	if err := v.Stop(); err != nil {
		panic(fmt.Errorf("the graceful stop failed: %w", err))
	}
	rig.Ok(v.Rows(ctx, &res))
	fmt.Printf("  later: %d triggers and %d scheduled pushes, %d fired, %d cancelled; %d repeated calls; the claims allow %d\n",
		later.Triggers, later.Schedules, later.Fired, later.Cancelled, later.Duplicates, later.Bound)
	good := res.Lost == 0 && res.Terminal == res.Accepted && res.Duplicates <= res.Bound && res.Reordered == 0 && res.NoID == 0 &&
		later.Good() && audit.Drift == 0
	fmt.Printf("torture kills=%d accepted=%d terminal=%d lost=%d duplicates=%d bound=%d reordered=%d unknown=%d failed=%d ambiguous=%d later=%d early=%d nonterminal=%d cancelled_fired=%d later_lost=%d called_twice=%d called_twice_bound=%d unclaimed=%d bad_signatures=%d drift=%d ok=%v\n",
		o.kills, res.Accepted, res.Terminal, res.Lost, res.Duplicates, res.Bound, res.Reordered, res.Unknown, res.Failed, res.Ambiguous,
		later.Triggers+later.Schedules, later.Early, later.Nonterminal, later.CancelledFired, later.Lost, later.Duplicates, later.Bound, later.Unclaimed, later.BadSignature, audit.Drift, good)
	return good
}
