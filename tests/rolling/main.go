// Command rolling restarts an installation of notifyd, one process after the other,
// while it is under load, as a release is rolled out: Kafka, Cassandra, Redis and
// PostgreSQL are real, every role has two processes. A graceful stop loses nothing,
// repeats nothing, and refuses nothing that a client with retries would see.
//
// With -from the installation is of another commit first, as are its tables and what it
// has stored: every process is replaced by one of this commit, then by one of the other
// commit again, and by one of this commit for good. Both run side by side each time.
//
// It ends with one line of key=value pairs and exits 1 when that did not hold.
// scripts/rolling.sh says where the servers are.
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
	flag.IntVar(&o.rounds, "rounds", 1, "how often each process is restarted")
	flag.StringVar(&o.from, "from", "", "a commit that the processes are of first; then rounds is 3: to this commit, back, and to this commit")
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

// install puts a program in the place of another one, which may run.
func install(from, to string) error {
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", b, 0o700) //nolint:gosec // a program
	}
	return errors.Join(err, os.Rename(to+".new", to))
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	bin := rig.Must(rig.Notifyd(ctx, dir, "rolling", o.mutant))
	releases := []string{bin} // of each round
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
	for round := range o.rounds {
		if o.from != "" {
			release := releases[round%2]
			rig.Ok(install(release, bin))
			fmt.Printf("round %d: to %s\n", round+1, []string{"this commit", o.from}[round%2])
			if round%2 == 0 {
				rig.Ok(f.Migrate(ctx))
			}
		}
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
	fmt.Print(b.Why())
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
