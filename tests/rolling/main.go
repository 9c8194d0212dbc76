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

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	rounds int
	users  int
	keep   bool
	mutant string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 1, "how often each process is restarted")
	flag.IntVar(&o.users, "users", 8, "users of each channel; each is sent two messages a second")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	rig.MutantFlag(&o.mutant, "rolling")
	o.Flags()
	flag.Parse()
	rig.Main("rolling", o.keep, o.run)
}

// roles are the processes beside the first API's: two of each, and two for each
// channel.
var roles = []string{
	"api", "worker:push", "worker:push", "worker:sms,worker:email", "worker:sms,worker:email",
	"scheduler", "scheduler", "dispatcher", "dispatcher", "operator", "operator",
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	bin := rig.Must(rig.Notifyd(ctx, dir, "rolling", o.mutant))
	began := time.Now()
	f, err := rig.NewFleet(ctx, rig.FleetConfig{Bin: bin, Dir: dir, Engines: o.YAML(20*time.Second, 20*time.Second), First: "api"})
	defer f.End()
	rig.Ok(err)
	for i, role := range roles {
		rig.Must(f.Run(ctx, fmt.Sprintf("rolling-%d", i+1), role, nil))
	}
	all := f.Processes()
	fmt.Printf("%d processes over real servers are ready in %.0f s\n", len(all)+1, time.Since(began).Seconds())
	b := rig.NewBalancer(rig.HostOf(f.V.URL()), all[0].API)
	defer b.Close()
	cl := f.Client(b)
	l := rig.Must(f.Load(ctx, cl, rig.LoadConfig{
		Prefix: fmt.Sprintf("rolling-%d", began.UnixMilli()), Users: o.users, Every: 500 * time.Millisecond, Ahead: 6 * time.Second,
	}))
	defer l.End()
	rig.Ok(rig.Pause(ctx, 3*time.Second))
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
		return rig.Pause(ctx, 2*time.Second)
	}
	for range o.rounds {
		rig.Ok(note("api", func() error { return f.V.Restart(ctx, "") }))
		for _, p := range all {
			rig.Ok(note(p.Role, func() error { return p.Restart(ctx) }))
		}
	}
	l.End()
	s := rig.Must(l.Check(ctx))
	for _, err := range s.Errors[:min(len(s.Errors), 5)] {
		fmt.Println("  refused:", err)
	}
	rep := rig.Must(f.V.Audit(ctx))
	stopped := f.Stop()
	if stopped != nil {
		fmt.Println("  at the end:", stopped)
	}
	ok = s.Whole() && b.Refused() == 0 && stopped == nil && rep.Drift == 0
	fmt.Printf("rolling processes=%d restarts=%d slowest_restart_s=%.1f %s refused=%d lost_connections=%d drift=%d seconds=%.0f ok=%v\n",
		len(all)+1, restarts, slowest.Seconds(), s, b.Refused(), b.Connections(), rep.Drift, time.Since(began).Seconds(), ok)
	return ok
}
