// Command outage stops a real notifyd for a while, in real time, while triggers
// become due, starts it again, and checks that every one of them fires, none
// early, within the time that their pacing promises, and that what is due
// meanwhile is not held up by what was due before.
//
// It ends with one line of key=value pairs and exits 1 when that is broken.
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

// slowest is how many triggers a second are caught up with however slow the
// receiver is: what trigger.BacklogPace promises of a deep backlog.
const slowest = 2000

// takeOver is how long after a start its shards may be without an owner.
const takeOver = 6 * time.Second

// leastStop is an outage with something to catch up: what was due within the
// last ten seconds before a start counts as on time (timer.Config.CatchUpAfter).
const leastStop = 15 * time.Second

// onTimeLimit is what 99 of 100 triggers that are due after the outage may be
// late while it is caught up with.
const onTimeLimit = time.Second

func main() {
	var o options
	flag.IntVar(&o.n, "n", 100_000, "triggers that become due while the process is stopped")
	flag.DurationVar(&o.stop, "stop", 10*time.Minute, "how long it is stopped")
	flag.IntVar(&o.rate, "rate", 0, "timers.catch_up_rate; 0: the default")
	flag.Float64Var(&o.ontime, "ontime", 50, "triggers a second registered after the restart, due 2 to 5 s ahead")
	flag.BoolVar(&o.keep, "keep", false, "keep the data and the log")
	rig.MutantFlag(&o.mutant, "outage")
	flag.Parse()
	rig.Main("outage", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	if o.n < 1 || o.rate < 0 || o.ontime <= 0 || o.stop < leastStop {
		panic(fmt.Errorf("-n and -ontime must be above 0, -rate 0 or above, -stop %s or more", leastStop))
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
