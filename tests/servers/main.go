// Command servers runs notifyd under load and causes faults, one after the other. A fault breaks
// one of the servers that notifyd uses, or one of notifyd's own processes. Kafka, Cassandra, Redis
// and PostgreSQL are real, and every role has its own processes. After each fault, servers
// compares the acknowledged messages with the ledger of the simulated providers.
//
// servers prints the figures of each fault. The last line of the output has key=value pairs. The
// exit status is 1 if notifyd broke a promise. scripts/faults.sh passes the addresses of the
// servers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	only   string
	down   time.Duration // time from the stop of a server to its restart
	rate   float64       // messages a second of each kind of load
	keep   bool
	mutant string
}

// outcome is the result of one fault.
type outcome struct {
	accepted, lost, duplicates, early int64 // summed over all runs of the fault
	again                             int   // repeats of the fault because the machine stood still
	ok                                bool
	line                              string
}

type fault struct {
	name string
	run  func(context.Context, *cluster) outcome
}

// faults are the faults for an installation with 1 or 3 nodes, in the order in which they run.
var faults = map[int][]fault{
	1: {
		{"kafka", kafkaStopped},
		{"leader", leaderKilled},
		{"cassandra", cassandraStopped},
		{"redis", redisEmptied},
		{"postgres", postgresStopped},
		{"worker", workerKilled},
		{"pause", schedulerPaused},
		{"paused", workerPaused},
		{"cut", workerCut},
		{"cut-log", workerCutFromLog},
		{"frozen", kafkaFrozen},
		{"restored", restored},
	},
	// Each of these faults leaves a node dead. So the second fault runs with a dead broker and a
	// dead Cassandra node.
	3: {
		{"broker", brokerLost},
		{"node", nodeLost},
	},
}

func names(nodes int) (out []string) {
	for _, f := range faults[nodes] {
		out = append(out, f.name)
	}
	return out
}

func main() {
	if len(os.Args) > 3 && os.Args[1] == enclosed {
		fmt.Fprintln(os.Stderr, "enclosed:", runEnclosed(os.Args[2], os.Args[3:]))
		os.Exit(2)
	}
	var o options
	flag.StringVar(&o.only, "only", "", "faults to run: "+strings.Join(names(1), " ")+"; with -nodes 3: "+strings.Join(names(3), " ")+"; empty: all")
	flag.DurationVar(&o.down, "down", 30*time.Second, "how long a server is down")
	flag.Float64Var(&o.rate, "rate", 40, "messages a second of each kind of load")
	flag.DurationVar(&rig.Patience, "patience", rig.Patience, "longest wait for anything that must happen, e.g. a start")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	rig.MutantFlag(&o.mutant, "faults")
	o.Flags()
	flag.Parse()
	rig.Main("faults", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	if faults[o.Nodes] == nil {
		panic(fmt.Errorf("-nodes must be 1 or 3, not %d", o.Nodes))
	}
	picked := strings.Fields(o.only)
	for _, p := range picked {
		if known := names(o.Nodes); !slices.Contains(known, p) {
			panic(fmt.Errorf("with -nodes %d no fault is called %q; the faults are %s", o.Nodes, p, strings.Join(known, ", ")))
		}
	}
	if o.down < 5*time.Second || o.rate <= 0 {
		panic(fmt.Errorf("-down must be at least 5s, and -rate must be above 0"))
	}
	began := time.Now()
	c := &cluster{o: o, dir: dir, forGood: map[string]bool{}}
	defer c.end()
	c.open(ctx)
	fmt.Printf("%d processes over real servers are ready in %.0f s; kafka.append_timeout=%s cassandra.timeout=%s\n", len(c.f.Processes())+1, time.Since(began).Seconds(), appendTimeout, cassandraTimeout)
	if o.Nodes > 1 {
		c.checkCopies(ctx)
	}
	var all outcome
	var ran, failed []string
	var still stalls
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go still.watch(watching)
	for _, f := range faults[o.Nodes] {
		if len(picked) > 0 && !slices.Contains(picked, f.name) {
			continue
		}
		r := c.prove(ctx, f, &still)
		ran = append(ran, f.name)
		if !r.ok {
			failed = append(failed, f.name)
		}
		all.accepted += r.accepted
		all.lost += r.lost
		all.duplicates += r.duplicates
		all.early += r.early
		all.again += r.again
	}
	ok = len(failed) == 0 && len(ran) > 0
	fmt.Printf("faults nodes=%d ran=%s accepted=%d lost=%d duplicates=%d early=%d failed=%s run_again=%d seconds=%.0f ok=%v\n",
		o.Nodes, list(ran), all.accepted, all.lost, all.duplicates, all.early, list(failed), all.again, time.Since(began).Seconds(), ok)
	return ok
}

// prove runs one fault. If the fault fails, and the machine stopped for too long during it, the
// figures say nothing about notifyd. Then prove runs the fault again, but no more often than the
// constant tries allows. It never runs a fault again in which a message was lost or early. In the
// result, the fields accepted and duplicates are sums over all runs.
func (c *cluster) prove(ctx context.Context, f fault, still *stalls) (r outcome) {
	var before outcome
	for try := 1; ; try++ {
		at := time.Now()
		still.take()
		if err := rig.Try(func() { r = f.run(ctx, c) }); err != nil { // run the other faults in spite of the error
			r = outcome{line: fmt.Sprintf("error=%q", err)}
		}
		stood := still.take()
		rig.Ok(ctx.Err())
		if err := rig.Try(func() { c.repair(ctx) }); err != nil {
			panic(fmt.Errorf("repair of the installation after the fault %s: %w", f.name, err))
		}
		again := !r.ok && r.lost == 0 && r.early == 0 && stood > stoodStill && try < tries
		verdict := fmt.Sprintf("ok=%v", r.ok)
		if again {
			verdict = "again"
		}
		fmt.Printf("fault=%s %s stood_still_s=%.1f seconds=%.0f %s\n", f.name, r.line, stood.Seconds(), time.Since(at).Seconds(), verdict)
		if !again {
			r.accepted, r.duplicates, r.again = r.accepted+before.accepted, r.duplicates+before.duplicates, try-1
			return r
		}
		before.accepted, before.duplicates = before.accepted+r.accepted, before.duplicates+r.duplicates
	}
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}
