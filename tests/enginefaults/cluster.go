package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/tests/internal/fleet"
	"github.com/notifyd/notifyd/tests/internal/victim"
)

// A machine with other work makes the servers slow at times. A log that is away
// must be noticed soon all the same: that is what the buffer is for.
const (
	appendTimeout    = 3 * time.Second
	cassandraTimeout = 20 * time.Second
)

// roles are the processes beside the API's, two of what can take over.
var roles = []string{"worker", "worker", "scheduler", "scheduler", "dispatcher", "operator"}

// cluster is notifyd in processes, one role each, over servers.
type cluster struct {
	o     *options
	dir   string
	bin   string
	v     *victim.Victim // the process of the API, and the simulated providers
	cl    *api.Client
	store *cassandra.Store
	procs []*process
	urls  string // of the receiver of triggers
	lives int
	// forGood are servers of which a node stays away until the end.
	forGood map[string]bool
}

// process is one role.
type process struct {
	role, name string
	cmd        *exec.Cmd
	exited     chan error
	log        string
	admin      string // its metrics
}

// newCluster starts the servers, migrates, and starts every process. end must be
// called, also after an error.
func newCluster(ctx context.Context, o *options, dir string, broken *victim.Mutant) (*cluster, error) {
	c := &cluster{o: o, dir: dir, forGood: map[string]bool{}}
	err := c.startServers(ctx)
	if err != nil {
		return c, err
	}
	if c.bin, err = victim.Build(ctx, ".", dir, broken); err != nil {
		return c, err
	}
	if err := c.configure(appendTimeout); err != nil {
		return c, err
	}
	if out, err := exec.CommandContext(ctx, c.bin, "migrate", "up", "--config", c.config()).CombinedOutput(); err != nil {
		return c, fmt.Errorf("migrate: %w\n%s", err, out)
	}
	if c.v, err = victim.New(ctx, victim.Config{Bin: c.bin, Dir: dir, Args: []string{"--config", c.config(), "--set", "roles=api"}}); err != nil {
		return c, err
	}
	if err := c.v.Start(ctx, ""); err != nil {
		return c, err
	}
	c.cl = c.v.Client()
	for _, role := range roles {
		if _, err := c.run(ctx, role); err != nil {
			return c, err
		}
	}
	if c.urls, err = c.v.CallbackURL(ctx); err != nil {
		return c, err
	}
	if c.store, err = cassandra.Open(ctx, o.cassandraConfig()); err != nil {
		return c, err
	}
	err = c.settle(ctx)
	return c, err
}

func (c *cluster) config() string { return filepath.Join(c.dir, "engines.yaml") }

// configure writes what processes that start from now on are told.
func (c *cluster) configure(appends time.Duration) error {
	return os.WriteFile(c.config(), []byte(c.o.yaml(appends)), 0o600)
}

// restartAPI ends the process of the API in peace and starts it with another time for
// appends.
func (c *cluster) restartAPI(ctx context.Context, appends time.Duration) error {
	if err := c.configure(appends); err != nil {
		return err
	}
	return c.v.Restart(ctx, "")
}

func (o *options) yaml(appends time.Duration) string {
	insync := o.nodes/2 + 1
	return fmt.Sprintf(`engines: distributed
kafka: {brokers: [%s], replication: %d, min_insync: %d, append_timeout: %s}
cassandra: {hosts: [%s], keyspace: %s, replication: %d, timeout: %s}
redis: {addresses: [%q]}
postgres: {dsn: "postgres://notifyd@%s/postgres?sslmode=disable"}
log: {partitions: {push: 6, sms: 4, email: 4}}
`, quoted(o.kafka), o.nodes, insync, appends, quoted(o.cassandra), o.keyspace, o.nodes, cassandraTimeout, o.redis, o.postgres)
}

// quoted makes host:port,host:port elements of a list.
func quoted(addresses string) string { return `"` + strings.ReplaceAll(addresses, ",", `", "`) + `"` }

func (o *options) cassandraConfig() cassandra.Config {
	return cassandra.Config{Hosts: strings.Split(o.cassandra, ","), Keyspace: o.keyspace, Replication: o.nodes, Timeout: cassandraTimeout}
}

// run starts a process of a role and waits until it says that it is ready.
func (c *cluster) run(ctx context.Context, role string) (*process, error) {
	return c.runIn(ctx, nil, role)
}

// runIn is run in a network of the process's own, with further settings. nil: in the
// network of all others. Of a process in its own the metrics cannot be asked.
func (c *cluster) runIn(ctx context.Context, e *enclosure, role string, settings ...string) (*process, error) {
	c.lives++
	p := &process{role: role, name: fmt.Sprintf("faults-%d-%s", c.lives, role), exited: make(chan error, 1)}
	p.log = filepath.Join(c.dir, p.name+".log")
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.CommandContext(ctx, c.bin, "serve", "--config", c.config(), "--config", filepath.Join(c.dir, "dev", "beside.yaml"), "--role", role,
		"--set", "api.listen=127.0.0.1:0", "--set", "api.admin=127.0.0.1:0", "--set", "logging.level=info", "--set", "logging.format=json",
		"--set", "data_dir="+filepath.Join(c.dir, "none"), "--set", "instance="+p.name)
	victim.DieWithStarter(p.cmd)
	for _, s := range settings {
		p.cmd.Args = append(p.cmd.Args, "--set", s)
	}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if e != nil {
		err = e.start(ctx, p.cmd)
	} else {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	go func() { p.exited <- p.cmd.Wait() }()
	c.procs = append(c.procs, p)
	return p, until(ctx, p.name+" is ready", func() (bool, error) {
		if p.ended() {
			return false, fmt.Errorf("%s ended by itself (see %s)", p.name, p.log)
		}
		b, err := os.ReadFile(p.log)
		if err != nil {
			return false, err
		}
		for line := range bytes.Lines(b) {
			var said struct{ Msg, Admin string }
			if json.Unmarshal(line, &said) == nil && said.Msg == "ready" {
				p.admin = said.Admin
				return true, nil
			}
		}
		return false, nil
	})
}

func (p *process) ended() bool {
	select {
	case err := <-p.exited:
		p.exited <- err
		return true
	default:
		return false
	}
}

// kill is SIGKILL, and waits for the end.
func (c *cluster) killProcess(p *process) {
	_ = p.cmd.Process.Kill()
	err := <-p.exited
	p.exited <- err
	c.procs = slices.DeleteFunc(c.procs, func(one *process) bool { return one == p })
}

// endProcess is SIGTERM. It returns an error if the process does not end in peace.
func (c *cluster) endProcess(ctx context.Context, p *process) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := until(ctx, p.name+" has ended", func() (bool, error) { return p.ended(), nil }); err != nil {
		return err
	}
	err := <-p.exited
	p.exited <- err
	c.procs = slices.DeleteFunc(c.procs, func(one *process) bool { return one == p })
	if err != nil {
		return fmt.Errorf("%s ended with: %w (see %s)", p.name, err, p.log)
	}
	return nil
}

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// of returns the processes of a role.
func (c *cluster) of(role string) (out []*process) {
	for _, p := range c.procs {
		if p.role == role {
			out = append(out, p)
		}
	}
	return out
}

// repair starts what a fault has left behind: servers, unless they were killed for
// good, and processes.
func (c *cluster) repair(ctx context.Context) error {
	if err := c.startServers(ctx); err != nil {
		return err
	}
	for _, p := range c.procs {
		_ = p.signal(syscall.SIGCONT)
	}
	missing := map[string]int{}
	for _, role := range roles {
		missing[role]++
	}
	for _, p := range c.procs {
		missing[p.role]--
	}
	for role, n := range missing {
		for range n {
			if _, err := c.run(ctx, role); err != nil {
				return err
			}
		}
	}
	return c.settle(ctx)
}

func (c *cluster) startServers(ctx context.Context) error {
	for _, name := range servers {
		if c.forGood[name] {
			continue
		}
		if err := c.start(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until every process lives and every shard has an owner that
// releases it, both schedulers some.
func (c *cluster) settle(ctx context.Context) error {
	for _, p := range c.procs {
		if p.ended() {
			return fmt.Errorf("%s ended by itself (see %s)", p.name, p.log)
		}
	}
	return until(ctx, "every shard has an owner, each scheduler some", func() (bool, error) {
		sum, all := 0.0, 0.0
		for _, p := range c.of("scheduler") {
			m, err := p.metrics(ctx)
			if err != nil || m["notifyd_timer_shards_owned"] == 0 {
				return false, nil //nolint:nilerr // not yet
			}
			sum += m["notifyd_timer_shards_owned"]
			all = m["notifyd_timer_shards"]
		}
		return all > 0 && sum == all, nil
	})
}

// metrics of a process, without those that have labels.
func (p *process) metrics(ctx context.Context) (map[string]float64, error) {
	return fleet.Scrape(ctx, "http://"+p.admin+"/metrics")
}

// apiMetrics are those of the API's process, whose admin port is the next one.
func (c *cluster) apiMetrics(ctx context.Context) (map[string]float64, error) {
	_, port, _ := strings.Cut(strings.TrimPrefix(c.v.URL(), "http://"), ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	return fleet.Scrape(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", n+1))
}

// shards returns the state of each shard as Cassandra has it.
func (c *cluster) shards(ctx context.Context, n int) ([]engine.ShardState, error) {
	out := make([]engine.ShardState, n)
	var err error
	for i := range out {
		if out[i], err = c.store.Timers().Shard(ctx, uint16(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// owns reports whether a shard is a process's.
func (p *process) owns(s engine.ShardState) bool { return strings.HasPrefix(s.Owner, p.name+"-") }

// servers are those that the faults break.
var servers = []string{"kafka", "cassandra", "redis", "postgres"}

// end stops every process; the servers go on, also those that a fault has left behind.
func (c *cluster) end() {
	clear(c.forGood)
	if err := c.startServers(context.Background()); err != nil {
		fmt.Println(" ", err)
	}
	for _, p := range c.procs {
		_ = p.signal(syscall.SIGCONT)
		_ = p.signal(syscall.SIGTERM)
	}
	for _, p := range c.procs {
		select {
		case err := <-p.exited:
			if err != nil {
				fmt.Printf("  %s ended with: %v\n", p.name, err)
			}
		case <-time.After(time.Minute):
			_ = p.cmd.Process.Kill()
			<-p.exited //nolint:errcheck // it was killed
		}
	}
	if c.store != nil {
		_ = c.store.Close()
	}
	if c.v != nil {
		c.v.End()
	}
}
