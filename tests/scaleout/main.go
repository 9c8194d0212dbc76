// Command scaleout gives the same load to 1, 2 and 4 processes of a role over real servers,
// each process held to a share of a core, and shows what grows with their number and what
// does not: what they end a second, what each asks of the servers, what the servers take.
//
// The load comes all at once, to processes that have their partitions and wait: single
// pushes and fan-outs to workers, triggers of one moment to dispatchers. The simulated
// providers' ledger says that nothing was lost and nothing was sent twice.
//
// It ends with one line of key=value pairs and exits 1 when something was lost or sent
// twice, or when n processes did less than 0.8 n times the work of one while no server was
// full. scripts/scaleout.sh says where the servers are.
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
	flag.StringVar(&o.only, "only", "", "loads to show, of singles fanouts triggers; empty: all")
	flag.Float64Var(&o.share, "share", 0, "of a core that each process gets; 0: what fits two cores, by load")
	flag.Float64Var(&o.scale, "scale", 1, "times the usual number of messages")
	flag.BoolVar(&o.short, "short", false, "a tenth of the messages: shows that it works, the ratios are not judged")
	flag.DurationVar(&rig.Patience, "patience", rig.Patience, "longest wait for what must happen")
	flag.BoolVar(&o.keep, "keep", false, "keep the logs")
	o.Flags()
	flag.Parse()
	rig.Main("scaleout", o.keep, o.run)
}

// partitions of each topic of pushes and of mails: 1, 2 and 4 workers get the same number each.
const partitions = 12

// counts are the processes of the steps.
var counts = []int{1, 2, 4}

// scaleout is one run.
type scaleout struct {
	*options
	f      *rig.Fleet
	adm    *kadm.Client
	pids   map[string][]int // of everything but the processes that a step starts
	spent  int              // processes that steps have started
	shares []*rig.Share     // of those that run
	twice  int64            // calls of providers beyond the first, of all steps so far
}

func (o *options) run(ctx context.Context, dir string) (ok bool) {
	if o.share < 0 || o.share > 1 || o.scale <= 0 {
		panic(fmt.Errorf("-share must be at most 1, -scale above 0"))
	}
	picked, err := pick(o.only)
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
		s.step(ctx, k, counts[len(counts)-1], 0.1) // the servers' first work is not what is measured
		for _, n := range counts {
			f := s.step(ctx, k, n, 1)
			fmt.Println(f.line(v.add(f)))
		}
		fmt.Print("\n", table(v.steps[k.name]), "\n")
	}
	if err := s.f.Stop(); err != nil {
		fmt.Println("at the end:", err)
		v.broken = true
	}
	line, ok := v.line()
	fmt.Printf("scaleout nodes=%d %s seconds=%.0f ok=%v\n", o.Nodes, line, time.Since(began).Seconds(), ok)
	return ok
}

// open starts the processes whose number stays.
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

// end kills what is left of the processes.
func (s *scaleout) end(ctx context.Context) {
	if s.f != nil {
		s.f.End()
	}
	s.removeShares(ctx)
}
