// Command torture kills a real notifyd under load, again and again, and then
// checks what it promised: every acknowledged id reaches a terminal state,
// duplicates stay within the number of receivers the store says were sent
// again, and the order of first attempts per user holds.
//
// It ends with one line of key=value pairs and exits 1 when a promise is broken.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

type options struct {
	kills  int
	seed   uint64
	rate   float64
	later  float64
	keep   bool
	mutant string
	at     string
	drain  time.Duration
}

func main() {
	var o options
	flag.IntVar(&o.kills, "kills", 20, "how often the process is killed")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the moments and points")
	flag.Float64Var(&o.rate, "rate", 300, "single notifications per second")
	flag.Float64Var(&o.later, "later", 0, "triggers and scheduled pushes per second, most of them in batches; 0: a sixth of rate")
	flag.BoolVar(&o.keep, "keep", false, "keep the data and the logs")
	flag.StringVar(&o.mutant, "mutant", "", "break a mechanism first: "+strings.Join(mutantNames(), ", "))
	flag.StringVar(&o.at, "at", "", "order every kill at this fault point, instead of half of them at any")
	flag.DurationVar(&o.drain, "drain", 5*time.Minute, "longest wait for everything to become terminal")
	flag.Parse()
	victim.Main("torture", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool, err error) {
	fmt.Printf("torture  seed=%d  kills=%d  rate=%.0f/s  later=%.0f/s  mutant=%q\n", o.seed, o.kills, o.rate, o.later, o.mutant)
	var broken *victim.Mutant
	if o.mutant != "" {
		m, ok := mutants[o.mutant]
		if !ok {
			return false, fmt.Errorf("no mutant is called %q; there are %s", o.mutant, strings.Join(mutantNames(), ", "))
		}
		broken = &m
	}
	bin, err := victim.Build(ctx, ".", dir, broken)
	if err != nil {
		return false, err
	}
	v, err := victim.New(ctx, victim.Config{Bin: bin, Dir: dir})
	defer v.End()
	if err != nil {
		return false, err
	}
	if err := v.Faults(ctx); err != nil {
		return false, err
	}
	if err := v.Start(ctx, ""); err != nil {
		return false, err
	}

	sent := v.Load(ctx, o.rate, o.later, o.seed)
	rng := rand.New(rand.NewPCG(o.seed, 1))
	longest := 2 * time.Second // of a life
	if o.later > 0 {
		longest = 5 * time.Second // so that what was registered becomes due in it
	}
	for k := range o.kills {
		point := ""
		switch {
		case o.at != "":
			if point, err = victim.PointAt(rng, o.at); err != nil {
				return false, err
			}
		case k%2 == 1:
			point = victim.Point(rng)
		}
		if k > 0 || point != "" {
			if err := v.Restart(ctx, point); err != nil {
				return false, err
			}
		}
		how, err := v.Die(ctx, point, 500*time.Millisecond+time.Duration(rng.Int64N(int64(longest))))
		if err != nil {
			return false, err
		}
		fmt.Printf("  kill %2d  %s\n", k+1, how)
	}
	if err := v.Start(ctx, ""); err != nil {
		return false, err
	}
	promises, err := sent()
	if err != nil {
		return false, err
	}
	res, err := v.Check(ctx, promises, o.drain)
	if err != nil {
		return false, err
	}
	later, err := v.CheckLater(ctx, promises, o.drain)
	if err != nil {
		return false, err
	}
	audit, err := v.Audit(ctx)
	if err != nil {
		return false, err
	}
	if err := v.Stop(); err != nil {
		return false, fmt.Errorf("the graceful stop failed: %w", err)
	}
	if err := v.Rows(ctx, &res); err != nil {
		return false, err
	}
	fmt.Printf("  later: %d triggers and %d scheduled pushes, %d fired, %d cancelled; %d calls too many, %d explained by claims\n",
		later.Triggers, later.Schedules, later.Fired, later.Cancelled, later.Duplicates, later.Bound)
	good := res.Lost == 0 && res.Terminal == res.Accepted && res.Duplicates <= res.Bound && res.Reordered == 0 && res.NoID == 0 &&
		later.Good() && audit.Drift == 0
	fmt.Printf("torture kills=%d accepted=%d terminal=%d lost=%d duplicates=%d bound=%d reordered=%d unknown=%d failed=%d ambiguous=%d later=%d early=%d nonterminal=%d cancelled_fired=%d later_lost=%d called_twice=%d called_twice_bound=%d unclaimed=%d bad_signatures=%d drift=%d ok=%v\n",
		o.kills, res.Accepted, res.Terminal, res.Lost, res.Duplicates, res.Bound, res.Reordered, res.Unknown, res.Failed, res.Ambiguous,
		later.Triggers+later.Schedules, later.Early, later.Nonterminal, later.CancelledFired, later.Lost, later.Duplicates, later.Bound, later.Unclaimed, later.BadSignature, audit.Drift, good)
	return good, nil
}
