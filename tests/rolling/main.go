// Command rolling restarts the processes of an installation under load, one after the other, as the
// rollout of a release does. Kafka, Cassandra, Redis and PostgreSQL are real servers. Every role has
// two processes. rolling checks that a graceful stop loses no message and repeats no message, and
// that a client with retries sees no refused request.
//
// With -from the installation starts with the program of another commit. That program creates the
// tables and stores the first data. Then rolling upgrades every process to this commit, downgrades
// it to the other commit, and upgrades it again. In each round, processes of both commits run at the
// same time.
//
// The last line of the output has key=value pairs. rolling exits with 1 if a check fails.
// scripts/rolling.sh passes the addresses of the servers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	rounds int
	from   string
	users  int
	keep   bool
	mutant string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 1, "number of times each process is restarted")
	flag.StringVar(&o.from, "from", "", "commit to start from; sets -rounds to 3: upgrade to this commit, go back, upgrade again")
	flag.IntVar(&o.users, "users", 8, "users of each channel; each user gets two messages a second")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	rig.MutantFlag(&o.mutant, "rolling")
	o.Flags()
	flag.Parse()
	rig.Main("rolling", o.keep, o.run)
}

// roles lists the role of each process that runs in addition to the first API process. Together with
// the first API process, every role has two processes, and every channel has two workers.
var roles = []string{
	"api", "worker:push", "worker:push", "worker:sms,worker:email", "worker:sms,worker:email",
	"scheduler", "scheduler", "dispatcher", "dispatcher", "operator", "operator",
}

// install replaces the program in the file target with a copy of the program in the file source.
// The system refuses writes to a running program, so install writes a new file and renames it.
func install(source, target string) error {
	b, err := os.ReadFile(source)
	if err == nil {
		err = os.WriteFile(target+".new", b, 0o700) //nolint:gosec // a program
	}
	return errors.Join(err, os.Rename(target+".new", target))
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	bin := rig.Must(rig.Notifyd(ctx, dir, "rolling", o.mutant))
	releases := []string{bin} // round i installs the program releases[i%2]; only used with -from
	if o.from != "" {
		o.rounds = 3
		this, before := filepath.Join(dir, "this"), rig.Must(rig.NotifydOf(ctx, filepath.Join(dir, "before"), o.from))
		rig.Ok(os.Rename(bin, this))
		rig.Ok(install(before, bin))
		releases = []string{this, before}
	}
	began := time.Now()
	f, err := rig.NewFleet(ctx, rig.FleetConfig{Bin: bin, Dir: dir, Engines: o.YAML(0, 0), First: "api"})
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
	timeRestart := func(what string, restart func() error) error {
		at := time.Now()
		if err := restart(); err != nil {
			return fmt.Errorf("restart of %s: %w", what, err)
		}
		took := time.Since(at)
		restarts, slowest = restarts+1, max(slowest, took)
		fmt.Printf("restarted %-24s in %.1f s\n", what, took.Seconds())
		// Wait, so that the new process takes over its partitions and shards before the next process
		// stops.
		return rig.Pause(ctx, 2*time.Second)
	}
	for round := range o.rounds {
		if o.from != "" {
			release := releases[round%2]
			rig.Ok(install(release, bin))
			fmt.Printf("round %d: to %s\n", round+1, []string{"this commit", o.from}[round%2])
			if round%2 == 0 {
				rig.Ok(f.Migrate(ctx))
			}
		}
		rig.Ok(timeRestart("api", func() error { return f.V.Restart(ctx, "") }))
		for _, p := range all {
			rig.Ok(timeRestart(p.Role, func() error { return p.Restart(ctx) }))
		}
	}
	l.End()
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
	ok = s.Whole() && b.Refused() == 0 && stopped == nil && rep.Drift == 0
	fmt.Printf("rolling processes=%d restarts=%d slowest_restart_s=%.1f %s refused=%d lost_connections=%d drift=%d seconds=%.0f ok=%v\n",
		len(all)+1, restarts, slowest.Seconds(), s, b.Refused(), b.Connections(), rep.Drift, time.Since(began).Seconds(), ok)
	return ok
}
