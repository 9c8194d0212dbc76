// Command enginefaults breaks the servers that notifyd stands on, one after the
// other, and its own processes, under load: Kafka, Cassandra, Redis and PostgreSQL
// are real, and every role has processes of its own. What was acknowledged is held
// against the ledger of the simulated providers.
//
// Each fault prints its figures. It ends with one line of key=value pairs and exits
// 1 when a promise is broken. scripts/faults.sh says where the servers are.
package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/tests/internal/victim"
)

// patience bounds every wait for something that must happen. It is no figure.
var patience = 5 * time.Minute

type options struct {
	only      string
	down      time.Duration // how long a server is away
	rate      float64       // messages a second of each kind of load
	keep      bool
	mutant    string
	kafka     string
	cassandra string
	redis     string
	postgres  string
	keyspace  string
}

// outcome is what one fault showed.
type outcome struct {
	accepted, lost, duplicates, early int64
	ok                                bool
	line                              string
}

// faults in the order they are run.
var faults = []struct {
	name string
	run  func(context.Context, *cluster) (outcome, error)
}{
	{"kafka", kafkaStopped},
	{"leader", leaderKilled},
	{"cassandra", cassandraStopped},
	{"redis", redisEmptied},
	{"postgres", postgresStopped},
	{"worker", workerKilled},
	{"pause", schedulerPaused},
}

func names() (out []string) {
	for _, f := range faults {
		out = append(out, f.name)
	}
	return out
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "faults to run: "+strings.Join(names(), " ")+"; empty: all")
	flag.DurationVar(&o.down, "down", 30*time.Second, "how long a server is away")
	flag.Float64Var(&o.rate, "rate", 40, "messages a second of each kind of load")
	flag.DurationVar(&patience, "patience", patience, "longest wait for what must happen")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	flag.StringVar(&o.mutant, "mutant", "", "break a mechanism first: "+strings.Join(mutantNames(), ", "))
	flag.StringVar(&o.kafka, "kafka", "127.0.0.1:19092", "address of the broker")
	flag.StringVar(&o.cassandra, "cassandra", "127.0.0.1:19042", "address of the node")
	flag.StringVar(&o.redis, "redis", "127.0.0.1:16379", "address of the server")
	flag.StringVar(&o.postgres, "postgres", "127.0.0.1:15432", "address of the server")
	flag.StringVar(&o.keyspace, "keyspace", "notifyd", "keyspace in Cassandra")
	flag.Parse()
	victim.Main("faults", o.keep, o.run)
}

func (o *options) run(ctx context.Context, dir string) (ok bool, err error) {
	picked := strings.Fields(o.only)
	for _, p := range picked {
		if !slices.Contains(names(), p) {
			return false, fmt.Errorf("no fault is called %q; there are %s", p, strings.Join(names(), ", "))
		}
	}
	if o.down < 5*time.Second || o.rate <= 0 {
		return false, fmt.Errorf("-down must be 5s or more, -rate above 0")
	}
	var broken *victim.Mutant
	if o.mutant != "" {
		m, ok := mutants[o.mutant]
		if !ok {
			return false, fmt.Errorf("no mutant is called %q; there are %s", o.mutant, strings.Join(mutantNames(), ", "))
		}
		broken = &m
	}
	began := time.Now()
	c, err := newCluster(ctx, o, dir, broken)
	defer c.end()
	if err != nil {
		return false, err
	}
	fmt.Printf("%d processes over real servers are ready in %.0f s; kafka.append_timeout=%s cassandra.timeout=%s\n", len(c.procs)+1, time.Since(began).Seconds(), appendTimeout, cassandraTimeout)
	var all outcome
	var ran, failed []string
	for _, f := range faults {
		if len(picked) > 0 && !slices.Contains(picked, f.name) {
			continue
		}
		at := time.Now()
		r, err := f.run(ctx, c)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil { // the others are shown all the same
			r = outcome{line: fmt.Sprintf("error=%q", err)}
		}
		if err := c.repair(ctx); err != nil {
			return false, fmt.Errorf("after %s: %w", f.name, err)
		}
		fmt.Printf("fault=%s %s seconds=%.0f ok=%v\n", f.name, r.line, time.Since(at).Seconds(), r.ok)
		ran = append(ran, f.name)
		if !r.ok {
			failed = append(failed, f.name)
		}
		all.accepted += r.accepted
		all.lost += r.lost
		all.duplicates += r.duplicates
		all.early += r.early
	}
	ok = len(failed) == 0 && len(ran) > 0
	fmt.Printf("faults ran=%s accepted=%d lost=%d duplicates=%d early=%d failed=%s seconds=%.0f ok=%v\n",
		list(ran), all.accepted, all.lost, all.duplicates, all.early, list(failed), time.Since(began).Seconds(), ok)
	return ok, nil
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}
