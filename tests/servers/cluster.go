package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/tests/internal/rig"
)

// Time-outs of notifyd's calls to the servers. They are long, because servers on a busy machine are
// sometimes slow. But appendTimeout is short enough that notifyd soon notices that the log is down
// and uses the spill buffer.
const (
	appendTimeout    = 3 * time.Second
	cassandraTimeout = 20 * time.Second
)

// roles has the role of each process except the API process. The roles worker and scheduler have
// two processes, so that one process can take over the work of the other.
var roles = []string{"worker", "worker", "scheduler", "scheduler", "dispatcher", "operator"}

// cluster is an installation of notifyd that uses real servers. Each process has one role.
type cluster struct {
	o     *options
	dir   string
	f     *rig.Fleet
	v     *rig.Victim // the API process, and the simulated providers
	cl    *api.Client
	store *cassandra.Store
	urls  string // base URL of the receiver of callbacks
	lives int    // number of processes that the method run has started
	// forGood[server] is true if a node of the server stays dead until the end of the run.
	forGood map[string]bool
}

// open starts the servers, creates the topics and tables, and starts every process. The caller
// must call end, also if open panics.
func (c *cluster) open(ctx context.Context) {
	c.startServers(ctx)
	bin := rig.Must(rig.Notifyd(ctx, c.dir, "faults", c.o.mutant))
	var err error
	c.f, err = rig.NewFleet(ctx, rig.FleetConfig{Bin: bin, Dir: c.dir, Engines: c.o.YAML(appendTimeout, cassandraTimeout), First: "api"})
	rig.Ok(err)
	c.v, c.cl = c.f.V, c.f.V.Client()
	for _, role := range roles {
		c.run(ctx, nil, role)
	}
	c.urls = rig.Must(c.v.CallbackURL(ctx))
	c.store = rig.Must(cassandra.Open(ctx, c.o.CassandraConfig(cassandraTimeout)))
	c.waitOwned(ctx)
}

// restartAPI stops the API process gracefully and starts it again. The parameter appends is the new
// time-out of appends to the log.
func (c *cluster) restartAPI(ctx context.Context, appends time.Duration) {
	rig.Ok(os.WriteFile(c.f.Engines(), []byte(c.o.YAML(appends, cassandraTimeout)), 0o600))
	rig.Ok(c.v.Restart(ctx, ""))
}

// run starts a process of a role and waits until it is ready. If e is not nil, the process runs in
// the network e. The parameter settings has further settings, key=value.
func (c *cluster) run(ctx context.Context, e *enclosure, role string, settings ...string) *rig.Process {
	c.lives++
	start := (*exec.Cmd).Start
	if e != nil {
		start = func(cmd *exec.Cmd) error { return e.start(ctx, cmd) }
	}
	p, err := c.f.RunBy(ctx, start, fmt.Sprintf("faults-%d-%s", c.lives, role), role, nil, settings...)
	if err != nil {
		c.f.Remove(p)
		panic(err)
	}
	return p
}

// endProcess sends SIGTERM to a process. It panics if the process does not exit with status 0.
func (c *cluster) endProcess(p *rig.Process) {
	rig.Ok(p.Stop())
	c.f.Remove(p)
}

// processesOf returns the processes of a role.
func (c *cluster) processesOf(role string) (out []*rig.Process) {
	for _, p := range c.f.Processes() {
		if p.Role == role {
			out = append(out, p)
		}
	}
	return out
}

// repair starts the servers and processes that a fault has stopped. It does not start the servers
// in forGood.
func (c *cluster) repair(ctx context.Context) {
	c.startServers(ctx)
	missing := map[string]int{}
	for _, role := range roles {
		missing[role]++
	}
	for _, p := range c.f.Processes() {
		_ = p.Signal(syscall.SIGCONT)
		missing[p.Role]--
	}
	for role, n := range missing {
		for range n {
			c.run(ctx, nil, role)
		}
	}
	c.waitOwned(ctx)
}

func (c *cluster) startServers(ctx context.Context) {
	for _, name := range servers {
		if !c.forGood[name] {
			c.start(ctx, name)
		}
	}
}

// waitOwned waits until every shard has an owner and each scheduler owns at least one shard. It
// panics if a process has ended.
func (c *cluster) waitOwned(ctx context.Context) {
	for _, p := range c.f.Processes() {
		rig.Ok(p.Ended())
	}
	until(ctx, "every shard has an owner, and each scheduler owns a shard", func() bool {
		sum, all := 0.0, 0.0
		for _, p := range c.processesOf("scheduler") {
			m, err := p.Metrics(ctx)
			if err != nil || m["notifyd_timer_shards_owned"] == 0 {
				return false // not yet
			}
			sum += m["notifyd_timer_shards_owned"]
			all = m["notifyd_timer_shards"]
		}
		return all > 0 && sum == all
	})
}

// apiMetrics returns the metrics of the API process. Its admin port is its API port plus 1.
func (c *cluster) apiMetrics(ctx context.Context) (map[string]float64, error) {
	_, port, _ := strings.Cut(strings.TrimPrefix(c.v.URL(), "http://"), ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	return rig.Scrape(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", n+1))
}

// shards returns the state of each of n shards, read from Cassandra.
func (c *cluster) shards(ctx context.Context, n int) []engine.ShardState {
	out := make([]engine.ShardState, n)
	for i := range out {
		out[i] = rig.Must(c.store.Timers().Shard(ctx, uint16(i)))
	}
	return out
}

// owns returns true if a process owns a shard.
func owns(p *rig.Process, s engine.ShardState) bool { return strings.HasPrefix(s.Owner, p.Name+"-") }

// servers has the names of the servers that faults can break.
var servers = []string{"kafka", "cassandra", "redis", "postgres"}

// end stops every process of notifyd. All servers run after end: it also starts the nodes that a
// fault has killed.
func (c *cluster) end() {
	clear(c.forGood)
	if err := rig.Try(func() { c.startServers(context.Background()) }); err != nil {
		fmt.Println(" ", err)
	}
	if c.store != nil {
		defer c.store.Close()
	}
	if c.f == nil {
		return
	}
	defer c.f.End()
	var asked []*rig.Process
	for _, p := range c.f.Processes() {
		_ = p.Signal(syscall.SIGCONT)
		if p.Signal(syscall.SIGTERM) == nil {
			asked = append(asked, p)
		}
	}
	for _, p := range asked {
		if err := p.Wait(time.Minute); err != nil {
			fmt.Printf("  %s ended with: %v\n", p.Name, err)
		}
	}
}
