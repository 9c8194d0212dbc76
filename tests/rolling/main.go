// Command rolling restarts an installation of notifyd, one process after the other,
// while it is under load, as a release is rolled out: Kafka, Cassandra, Redis and
// PostgreSQL are real, every role has two processes. A graceful stop loses nothing,
// repeats nothing, and refuses nothing that a client with retries would see.
//
// It ends with one line of key=value pairs and exits 1 when that did not hold.
// scripts/rolling.sh says where the servers are.
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/tests/internal/fleet"
	"github.com/notifyd/notifyd/tests/internal/victim"
)

type options struct {
	rounds    int
	users     int
	keep      bool
	mutant    string
	kafka     string
	cassandra string
	redis     string
	postgres  string
	keyspace  string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 1, "how often each process is restarted")
	flag.IntVar(&o.users, "users", 8, "users of each channel; each is sent two messages a second")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	flag.StringVar(&o.mutant, "mutant", "", "break a mechanism first: no-drain")
	flag.StringVar(&o.kafka, "kafka", "127.0.0.1:19092", "address of the broker")
	flag.StringVar(&o.cassandra, "cassandra", "127.0.0.1:19042", "address of the node")
	flag.StringVar(&o.redis, "redis", "127.0.0.1:16379", "address of the server")
	flag.StringVar(&o.postgres, "postgres", "127.0.0.1:15432", "address of the server")
	flag.StringVar(&o.keyspace, "keyspace", "notifyd", "keyspace in Cassandra")
	flag.Parse()
	victim.Main("rolling", o.keep, o.run)
}

// roles are the processes beside the first API's: two of each, and two for each
// channel.
var roles = []string{
	"api", "worker:push", "worker:push", "worker:sms,worker:email", "worker:sms,worker:email",
	"scheduler", "scheduler", "dispatcher", "dispatcher", "operator", "operator",
}

func (o *options) yaml() string {
	return fmt.Sprintf(`engines: distributed
kafka: {brokers: [%q], replication: 1, min_insync: 1, append_timeout: 20s}
cassandra: {hosts: [%q], keyspace: %s, replication: 1, timeout: 20s}
redis: {addresses: [%q]}
postgres: {dsn: "postgres://notifyd@%s/postgres?sslmode=disable"}
log: {partitions: {push: 6, sms: 4, email: 4}}
`, o.kafka, o.cassandra, o.keyspace, o.redis, o.postgres)
}

func (o *options) run(ctx context.Context, dir string) (ok bool, err error) {
	var broken *victim.Mutant
	if o.mutant != "" {
		m, ok := mutants[o.mutant]
		if !ok {
			return false, fmt.Errorf("no mutant is called %q", o.mutant)
		}
		broken = &m
	}
	bin, err := victim.Build(ctx, ".", dir, broken)
	if err != nil {
		return false, err
	}
	began := time.Now()
	f, err := fleet.New(ctx, fleet.Config{Bin: bin, Dir: dir, Engines: o.yaml(), First: "api"})
	defer f.End()
	if err != nil {
		return false, err
	}
	for i, role := range roles {
		if _, err := f.Run(ctx, fmt.Sprintf("rolling-%d", i+1), role, nil); err != nil {
			return false, err
		}
	}
	all := f.Processes()
	fmt.Printf("%d processes over real servers are ready in %.0f s\n", len(all)+1, time.Since(began).Seconds())
	b := fleet.NewBalancer(fleet.HostOf(f.V.URL()), all[0].API)
	defer b.Close()
	cl := f.Client(b)
	l, err := f.Load(ctx, cl, fleet.LoadConfig{
		Prefix: fmt.Sprintf("rolling-%d", began.UnixMilli()), Users: o.users, Every: 500 * time.Millisecond, Ahead: 6 * time.Second,
	})
	if err != nil {
		return false, err
	}
	defer l.End()
	if err := fleet.Pause(ctx, 3*time.Second); err != nil {
		return false, err
	}
	restarts, slowest := 0, time.Duration(0)
	note := func(what string, restart func() error) error {
		at := time.Now()
		if err := restart(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		took := time.Since(at)
		restarts, slowest = restarts+1, max(slowest, took)
		fmt.Printf("restarted %-24s in %.1f s\n", what, took.Seconds())
		// It gets its share before the next one goes.
		return fleet.Pause(ctx, 2*time.Second)
	}
	for range o.rounds {
		if err := note("api", func() error { return f.V.Restart(ctx, "") }); err != nil {
			return false, err
		}
		for _, p := range all {
			if err := note(p.Role, func() error { return p.Restart(ctx) }); err != nil {
				return false, err
			}
		}
	}
	l.End()
	s, err := l.Check(ctx)
	if err != nil {
		return false, err
	}
	for _, err := range s.Errors[:min(len(s.Errors), 5)] {
		fmt.Println("  refused:", err)
	}
	rep, err := f.V.Audit(ctx)
	if err != nil {
		return false, err
	}
	stopped := f.Stop()
	if stopped != nil {
		fmt.Println("  at the end:", stopped)
	}
	ok = s.Whole() && b.Refused() == 0 && stopped == nil && rep.Drift == 0
	fmt.Printf("rolling processes=%d restarts=%d slowest_restart_s=%.1f %s refused=%d lost_connections=%d drift=%d seconds=%.0f ok=%v\n",
		len(all)+1, restarts, slowest.Seconds(), s, b.Refused(), b.Connections(), rep.Drift, time.Since(began).Seconds(), ok)
	return ok, nil
}
