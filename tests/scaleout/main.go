// Command scaleout gives the same load to 1, 2 and 4 processes of a role over real servers. Each
// process is limited to a share of a core. scaleout shows which figures grow with the number of
// processes: the rate of outcomes, the requests of each process to the servers, and the processor
// time of the servers.
//
// When the processes own their partitions, scaleout sends the load as fast as notifyd accepts it.
// Push workers get single pushes. E-mail workers get fan-outs. Dispatchers get triggers that are
// all due at the same time. The ledger of the simulated providers shows whether a message was lost
// or sent twice.
//
// The last line of the output has key=value pairs. scaleout exits with 1 if a message was lost or
// sent twice. Without -short it also exits with 1 if the rate of n processes is below 0.8*n times
// the rate of one process and no server was the bottleneck (see figures.bottleneck).
// scripts/scaleout.sh passes the addresses of the servers.
package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

type options struct {
	rig.Servers

	only  string
	share float64
	scale float64
	short bool
	keep  bool
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "loads to run: singles, fanouts, triggers; empty: all")
	flag.Float64Var(&o.share, "share", 0, "share of a core that each process gets; 0: a default for each load that fits two cores")
	flag.Float64Var(&o.scale, "scale", 1, "number of messages, as a multiple of the usual number")
	flag.BoolVar(&o.short, "short", false, "a tenth of the messages; the ratios are printed but not judged")
	flag.DurationVar(&rig.Patience, "patience", rig.Patience, "longest time that any wait may take")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	o.Flags()
	flag.Parse()
	rig.Main("scaleout", o.keep, o.run)
}

// partitions is the number of partitions of each topic for pushes and e-mails. 1, 2 or 4 workers can
// share 12 partitions evenly.
const partitions = 12

// counts lists the number of processes of each step.
var counts = []int{1, 2, 4}

// scaleout is one run of the program.
type scaleout struct {
	*options
	f      *rig.Fleet
	adm    *kadm.Client
	pids   map[string][]int // name of a group -> ids of its processes; without the processes that a step starts
	spent  int              // number of processes that the steps have started so far
	shares []*rig.Share     // control groups of the running processes
	twice  int64            // number of repeated calls to providers in all steps so far
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	if o.share < 0 || o.share > 1 || o.scale <= 0 {
		panic(fmt.Errorf("-share must be from 0 to 1, and -scale must be above 0"))
	}
	picked, err := selectLoads(o.only)
	rig.Ok(err)
	if o.short {
		o.scale /= 10
	}
	began := time.Now()
	s := &scaleout{options: o}
	defer o.Apart(ctx, "scaleout")()
	defer s.end(ctx)
	s.open(ctx, dir)
	defer s.adm.Close()
	fmt.Printf("servers, the API and the process of other roles are ready in %.0f s\n", time.Since(began).Seconds())
	v := verdict{judge: !o.short}
	for _, k := range picked {
		s.step(ctx, k, counts[len(counts)-1], 0.1) // warm-up, because the servers are slow at first
		for _, n := range counts {
			f := s.step(ctx, k, n, 1)
			fmt.Println(f.line(v.add(f)))
		}
		fmt.Print("\n", table(v.steps[k.name]), "\n")
	}
	if err := s.f.Stop(); err != nil {
		fmt.Println("the stop at the end failed:", err)
		v.broken = true
	}
	line, ok := v.line()
	fmt.Printf("scaleout nodes=%d %s seconds=%.0f ok=%v\n", o.Nodes, line, time.Since(began).Seconds(), ok)
	return ok
}

// open starts the processes whose number does not change, and finds the process ids of the servers.
func (s *scaleout) open(ctx context.Context, dir string) {
	s.Partitions = partitions
	s.adm = kadm.NewClient(rig.Must(kgo.NewClient(kgo.SeedBrokers(strings.Split(s.Kafka, ",")...))))
	bin := rig.Must(rig.Notifyd(ctx, dir, "scaleout", ""))
	var err error
	s.f, err = rig.NewFleet(ctx, rig.FleetConfig{Bin: bin, Dir: dir, Engines: s.YAML(20*time.Second, 20*time.Second), First: "api", Simulate: []string{"--latency-p99", "0"}})
	rig.Ok(err)
	rest := rig.Must(s.f.Run(ctx, "scaleout-rest", "scheduler,operator", nil))
	first, providers := s.f.V.Pids()
	s.pids = map[string][]int{"api": {first}, "providers": {providers}, "rest": {rest.Pid()}}
	for name, at := range map[string]string{"kafka": s.Kafka, "cassandra": s.Cassandra, "redis": s.Redis, "postgres": s.Postgres} {
		s.pids[name] = rig.Must(rig.Listeners(at))
	}
}

// end kills the processes that still run, and removes their control groups.
func (s *scaleout) end(ctx context.Context) {
	if s.f != nil {
		s.f.End()
	}
	s.removeShares(ctx)
}
