// Command growth raises the numbers of timer shards and of partitions of an installation of
// notifyd while it is under load: Kafka, Cassandra, Redis and PostgreSQL are real, and three
// processes run every role. What was put off before the raise, while it was announced and
// after it counts comes once and on time, unless it was cancelled meanwhile. Each user's
// messages come in their order, none is held long, and no request is refused.
//
// It ends with one line of key=value pairs and exits 1 when that did not hold.
// scripts/growth.sh says where the servers are.
package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	from, to         int
	partFrom, partTo int
	users, planners  int
	keep             bool
	mutant           string
}

const (
	// announced is how far ahead notifyd migrate up announces a raise.
	announced = 60 * time.Second
	// lateMost is how far behind its moment a schedule or trigger may come.
	lateMost = 2 * time.Second
	// warm is how long the load runs before the raise is asked for.
	warm = 10 * time.Second
	// heldMost is how long a message may take from its request to its call, from the raise on.
	heldMost = 2 * time.Second
)

func main() {
	var o options
	flag.IntVar(&o.from, "from", 16, "timer shards at the start")
	flag.IntVar(&o.to, "to", 256, "timer shards that their number is raised to")
	flag.IntVar(&o.partFrom, "partitions-from", 6, "partitions of the topics of pushes at the start")
	flag.IntVar(&o.partTo, "partitions-to", 84, "partitions that their number is raised to, a multiple of those at the start")
	flag.IntVar(&o.users, "users", 10, "users of each channel; each is sent 4 messages a second")
	flag.IntVar(&o.planners, "planners", 2, "users for each of whom 12 schedules and 12 triggers a second are registered")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	rig.MutantFlag(&o.mutant, "growth")
	o.Flags()
	flag.Parse()
	rig.Main("growth", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	bin := rig.Must(rig.Notifyd(ctx, dir, "growth", o.mutant))
	began := time.Now()
	defer o.Apart(ctx, "growth")() // because a number that was raised stays so
	with := func(shards, partitions int) []string {
		return []string{
			fmt.Sprint("NOTIFYD__TIMERS__SHARDS=", shards), fmt.Sprint("NOTIFYD__LOG__PARTITIONS__PUSH=", partitions),
		}
	}
	f, err := rig.NewFleet(ctx, rig.FleetConfig{
		Bin: bin, Dir: dir, Engines: o.YAML(0, 0), First: "all", Env: with(o.from, o.partFrom),
		Simulate: []string{"--latency-p99", "0"}, // what a provider holds a message for is not measured
	})
	defer f.End()
	rig.Ok(err)
	for i := range 2 {
		rig.Must(f.Run(ctx, fmt.Sprint("growth-", i+1), "all", with(o.from, o.partFrom)))
	}
	others := f.Processes()
	fmt.Printf("%d processes over real servers are ready in %.0f s\n", len(others)+1, time.Since(began).Seconds())
	b := rig.NewBalancer(rig.HostOf(f.V.URL()), others[0].API, others[1].API)
	defer b.Close()
	loaded := time.Now()
	l := rig.Must(f.Load(ctx, f.Client(b), rig.LoadConfig{
		Prefix: o.Keyspace, Users: o.users, Every: 250 * time.Millisecond, Ahead: 6 * time.Second, Far: announced + 20*time.Second, Later: 3, Planners: o.planners, Warm: warm,
	}))
	defer l.End()
	rig.Ok(rig.Pause(ctx, warm))
	out, err := f.Command(ctx, with(o.to, o.partTo), "migrate", "up", "--config", f.Engines())
	if err != nil {
		panic(fmt.Errorf("migrate up: %w\n%s", err, out))
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, " from ") {
			fmt.Print("raised: ", line)
		}
	}
	rig.Ok(rig.Pause(ctx, announced+30*time.Second))
	owned := rig.Must(f.V.Metrics(ctx))[shardsOwned]
	for _, p := range others {
		owned += rig.Must(p.Metrics(ctx))[shardsOwned]
	}
	l.End()
	seconds := time.Since(loaded).Seconds()
	s := rig.Must(l.Check(ctx))
	for _, err := range s.Errors[:min(len(s.Errors), 5)] {
		fmt.Println("  refused:", err)
	}
	fmt.Print(b.Why())
	rep := rig.Must(f.V.Audit(ctx))
	stopped := f.Stop()
	if stopped != nil {
		fmt.Println("  at the end:", stopped)
	}
	ok = s.Whole() && s.Cancelled > 0 && s.Latest <= lateMost && s.Slowest <= heldMost && b.Refused() == 0 && stopped == nil && rep.Drift == 0 && int(owned) == o.to
	fmt.Printf("growth processes=%d timer_shards_from=%d timer_shards_to=%d partitions_from=%d partitions_to=%d owned=%.0f sends_per_s=%.0f schedules_per_s=%.0f triggers_per_s=%.0f %s cancelled=%d cancelled_sent=%d latest_ms=%d held_ms=%d refused=%d lost_connections=%d drift=%d seconds=%.0f ok=%v\n",
		len(others)+1, o.from, o.to, o.partFrom, o.partTo, owned, float64(s.Accepted)/seconds, float64(s.Scheduled)/seconds, float64(s.Triggers)/seconds, s,
		s.Cancelled, s.CancelledSent, s.Latest.Milliseconds(), s.Slowest.Milliseconds(), b.Refused(), b.Connections(), rep.Drift, time.Since(began).Seconds(), ok)
	return ok
}

const shardsOwned = "notifyd_timer_shards_owned"
