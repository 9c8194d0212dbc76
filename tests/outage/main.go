// Command outage kills a real notifyd, waits while triggers become due, and starts notifyd again.
// Time is not simulated. It checks four things. Every trigger fires. No trigger fires early.
// notifyd works off the backlog within the time that its pacing promises. The backlog does not
// delay triggers that become due after the start.
//
// The last line of the output has key=value pairs. outage exits with 1 if a check fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	n      int
	stop   time.Duration
	rate   int
	ontime float64
	keep   bool
	mutant string
}

func (o *options) rateName() string {
	if o.rate == 0 {
		return "default"
	}
	return fmt.Sprintf("%d/s", o.rate)
}

// minCatchUpRate is the lowest rate, in triggers a second, at which notifyd works off a deep
// backlog, even if the receiver of the callbacks is slow. trigger.BacklogPace promises this rate.
const minCatchUpRate = 2000

// takeOver bounds the time from a start until every timer shard has an owner.
const takeOver = 6 * time.Second

// minStop is the shortest outage that the program accepts. The outage must leave a backlog, and
// triggers that became due in the ten seconds before a start do not count as backlog
// (timer.Config.CatchUpAfter).
const minStop = 15 * time.Second

// onTimeLimit bounds the p99 of the lateness of triggers that become due after the start, while
// notifyd works off the backlog.
const onTimeLimit = time.Second

func main() {
	var o options
	flag.IntVar(&o.n, "n", 100_000, "triggers that become due while the process is stopped")
	flag.DurationVar(&o.stop, "stop", 10*time.Minute, "how long the process is stopped")
	flag.IntVar(&o.rate, "rate", 0, "timers.catch_up_rate; 0: the default")
	flag.Float64Var(&o.ontime, "ontime", 50, "triggers a second registered after the restart, due 2 to 5 s ahead")
	flag.BoolVar(&o.keep, "keep", false, "keep the data and the log")
	rig.MutantFlag(&o.mutant, "outage")
	flag.Parse()
	rig.Main("outage", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	if o.n < 1 || o.rate < 0 || o.ontime <= 0 || o.stop < minStop {
		panic(fmt.Errorf("-n and -ontime must be above 0, -rate must be at least 0, and -stop must be at least %s", minStop))
	}
	fmt.Printf("outage  n=%d  stop=%s  catch_up_rate=%s  ontime=%g/s  mutant=%q  load=%s\n", o.n, o.stop, o.rateName(), o.ontime, o.mutant, rig.LoadAverage())
	bin := rig.Must(rig.Notifyd(ctx, dir, "outage", o.mutant))
	var args []string
	if o.rate > 0 {
		args = []string{"--set", fmt.Sprintf("timers.catch_up_rate=%d", o.rate)}
	}
	v, err := rig.New(ctx, rig.Config{Bin: bin, Dir: dir, Args: args})
	defer v.End()
	rig.Ok(err)
	rig.Ok(v.Start(ctx, ""))
	r := &proof{v: v, o: *o, due: map[string]promise{}}
	return r.run(ctx)
}
