// Command growth raises the number of timer shards and the number of partitions of an
// installation under load. Kafka, Cassandra, Redis and PostgreSQL are real servers. Three
// processes run, each with every role. The load registers schedules and triggers before the
// raise is announced, between its announcement and its effect, and after its effect.
//
// growth checks six things. The provider or receiver gets each schedule and trigger once and on
// time, unless it was cancelled. The messages of each user are sent in order. No message waits
// longer than maxHeld. No request is refused. At the end every timer shard has an owner. The audit
// finds no drift.
//
// The last line of the output has key=value pairs. growth exits with 1 if a check fails.
// scripts/growth.sh passes the addresses of the servers.
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
	// announced is the time from the command notifyd migrate up until the new numbers of shards and
	// partitions take effect.
	announced = 60 * time.Second
	// maxLateness bounds the time from the due time of a schedule or trigger until the provider
	// or receiver gets its call.
	maxLateness = 2 * time.Second
	// warm is how long the load runs before the command "notifyd migrate up" is started.
	warm = 10 * time.Second
	// maxHeld bounds the time from the request for a message until the provider gets its call.
	// Messages that were requested in the first part of the load, of length warm, do not count.
	maxHeld = 2 * time.Second
)

func main() {
	var o options
	flag.IntVar(&o.from, "from", 16, "number of timer shards at the start")
	flag.IntVar(&o.to, "to", 256, "number of timer shards after the raise")
	flag.IntVar(&o.partFrom, "partitions-from", 6, "partitions of each push topic at the start")
	flag.IntVar(&o.partTo, "partitions-to", 84, "partitions of each push topic after the raise; a multiple of -partitions-from")
	flag.IntVar(&o.users, "users", 10, "users of each channel; each user gets 4 messages a second")
	flag.IntVar(&o.planners, "planners", 2, "planners; for each of these users the load registers 12 schedules and 12 triggers a second")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	rig.MutantFlag(&o.mutant, "growth")
	o.Flags()
	flag.Parse()
	rig.Main("growth", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	bin := rig.Must(rig.Notifyd(ctx, dir, "growth", o.mutant))
	began := time.Now()
	defer o.Apart(ctx, "growth")() // own names on the servers, because the raised numbers cannot be lowered again for other runs
	sizeEnv := func(shards, partitions int) []string {
		return []string{
			fmt.Sprint("NOTIFYD__TIMERS__SHARDS=", shards), fmt.Sprint("NOTIFYD__LOG__PARTITIONS__PUSH=", partitions),
		}
	}
	f, err := rig.NewFleet(ctx, rig.FleetConfig{
		Bin: bin, Dir: dir, Engines: o.YAML(0, 0), First: "all", Env: sizeEnv(o.from, o.partFrom),
		Simulate: []string{"--latency-p99", "0"}, // keeps the provider's latency out of the measurement
	})
	defer f.End()
	rig.Ok(err)
	for i := range 2 {
		rig.Must(f.Run(ctx, fmt.Sprint("growth-", i+1), "all", sizeEnv(o.from, o.partFrom)))
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
	out, err := f.Command(ctx, sizeEnv(o.to, o.partTo), "migrate", "up", "--config", f.Engines())
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
		fmt.Println("  the stop at the end failed:", stopped)
	}
	ok = s.Whole() && s.Cancelled > 0 && s.Latest <= maxLateness && s.Slowest <= maxHeld && b.Refused() == 0 && stopped == nil && rep.Drift == 0 && int(owned) == o.to
	fmt.Printf("growth processes=%d timer_shards_from=%d timer_shards_to=%d partitions_from=%d partitions_to=%d owned=%.0f sends_per_s=%.0f schedules_per_s=%.0f triggers_per_s=%.0f %s cancelled=%d cancelled_sent=%d latest_ms=%d held_ms=%d refused=%d lost_connections=%d drift=%d seconds=%.0f ok=%v\n",
		len(others)+1, o.from, o.to, o.partFrom, o.partTo, owned, float64(s.Accepted)/seconds, float64(s.Scheduled)/seconds, float64(s.Triggers)/seconds, s,
		s.Cancelled, s.CancelledSent, s.Latest.Milliseconds(), s.Slowest.Milliseconds(), b.Refused(), b.Connections(), rep.Drift, time.Since(began).Seconds(), ok)
	return ok
}

const shardsOwned = "notifyd_timer_shards_owned"
