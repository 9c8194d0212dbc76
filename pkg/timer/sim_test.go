package timer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
)

// sim has several engines that share stores, in simulated time, and what these engines released.
type sim struct {
	t     *testing.T
	rows  *rows
	mem   *memory.Store
	lease *leases
	beats *memory.Heartbeats
	base  Config // configuration of every node
	nodes map[string]*node

	mu       sync.Mutex
	came     map[string][]arrival // by timer id
	fanned   map[notify.Base]map[uint32]bool
	log      []arrival
	late     [3][]time.Duration // by lane
	early    int
	logDown  bool
	takes    time.Duration // how long a Publish lasts
	slack    time.Duration // how early a wrong clock may be
	dropped  int
	through  engine.Timers // nodes use it instead of rows; nil: they use rows
	seen     func(*engine.Timer)
	refuse   func(*engine.Timer) bool
	unleased bool
	keeps    bool     // engines keep the shards that they have
	faults   []string // what must not have happened
}

func (s *sim) failf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

// arrival is one timer that was published.
type arrival struct {
	id   string
	gen  uint32
	at   time.Time // true time
	late time.Duration
	by   string
}

// node is one process: an engine, its way to the stores, and its clock.
type node struct {
	s    *sim
	name string
	plan *faulty.Plan
	e    *Engine
	step atomic.Int64 // how far its wall clock is off
	stop context.CancelFunc
	done chan struct{}

	mu     sync.Mutex
	pause  chan struct{} // closed when it runs on; nil: it runs
	resume func()
	dead   bool
}

func newSim(t *testing.T, change ...func(*Config)) *sim {
	s := &sim{
		t: t, mem: memory.New(), lease: newLeases(), beats: memory.NewHeartbeats(), nodes: map[string]*node{},
		came: map[string][]arrival{}, fanned: map[notify.Base]map[uint32]bool{},
	}
	s.rows = newRows(s.mem)
	s.base = Config{Shards: 4}
	for _, f := range change {
		f(&s.base)
	}
	return s
}

// start starts a new life of the node with this name.
func (s *sim) start(name string) *node { return s.startWith(name, func(*faulty.Plan) {}) }

// startWith does the same as start, but the node's calls fail as planned from the start.
func (s *sim) startWith(name string, plan func(*faulty.Plan)) *node {
	n := &node{s: s, name: name, plan: faulty.NewPlan(1), done: make(chan struct{})}
	if old := s.nodes[name]; old != nil {
		n.step.Store(old.step.Load())
	}
	s.nodes[name] = n
	plan(n.plan)
	n.e = New(s.config(n))
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		defer close(n.done)
		if err := n.e.Run(ctx); err != nil {
			s.failf("%s: Run: %v", name, err)
		}
	}()
	synctest.Wait()
	return n
}

// config returns the configuration of a node: s.base, with stores whose calls fail by the node's
// plan.
func (s *sim) config(n *node) Config {
	cfg := s.base
	cfg.Owner = n.name
	cfg.Store = faulty.NewTimers(s.rows, n.plan)
	if s.through != nil {
		cfg.Store = s.through
	}
	cfg.Schedules = &oneCommit{Schedules: faulty.NewSchedules(storedHeads{s.mem.Schedules()}, n.plan), stored: s.mem.Schedules(), rows: cfg.Store}
	cfg.Cold = faulty.NewColdTimers(s.mem.ColdTimers(), n.plan)
	cfg.Queue = faulty.NewQueue(s.mem.Queue("near", 1000), n.plan)
	if !s.unleased {
		cfg.Lease = faulty.NewLease(s.lease, n.plan)
	}
	if !s.keeps {
		cfg.Heartbeats = heartbeats{s.beats, n}
	}
	cfg.Publish = n.publish
	cfg.ClockOffset = func() time.Duration { return time.Duration(n.step.Load()) }
	cfg.Wall = func() time.Time { return time.Now().Add(time.Duration(n.step.Load())) }
	cfg.Events.Released = func(lane Lane, ts []engine.Timer, at time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range ts {
			s.late[lane] = append(s.late[lane], at.Sub(time.UnixMilli(ts[i].FireAt)))
		}
	}
	cfg.Events.Dropped = func(engine.Timer, engine.ScheduleHead) {
		s.mu.Lock()
		s.dropped++
		s.mu.Unlock()
	}
	return cfg
}

// sleepHook returns a hook that delays a call by d before the call is executed.
func sleepHook(d time.Duration) func(context.Context, string) {
	return func(context.Context, string) { time.Sleep(d) } // of the bubble
}

// writer returns an API process: an Engine that nobody runs, and the plan of its faults. It has its
// own clock and its own way to the stores.
func (s *sim) writer() (*Engine, *faulty.Plan) {
	n := &node{s: s, name: "api", plan: faulty.NewPlan(1)}
	return New(s.config(n)), n.plan
}

// publish receives the timers that the node releases.
func (n *node) publish(ctx context.Context, ts []engine.Timer) error {
	n.hang()
	s := n.s
	if s.takes > 0 {
		time.Sleep(s.takes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logDown || n.isDead() {
		return notify.Unavailable("log", 0, nil)
	}
	if s.refuse != nil && slices.ContainsFunc(ts, func(x engine.Timer) bool { return s.refuse(&x) }) {
		return refusal
	}
	now := time.Now()
	for i := range ts {
		if s.seen != nil {
			s.seen(&ts[i])
		}
		late := now.Sub(time.UnixMilli(ts[i].FireAt))
		if late < -s.slack {
			s.early++
			s.faults = append(s.faults, fmt.Sprintf("%s was released %v early by %s", ts[i].ID, -late, n.name))
		}
		a := arrival{string(ts[i].ID), ts[i].Gen, now, late, n.name}
		s.came[a.id] = append(s.came[a.id], a)
		s.log = append(s.log, a)
		if !ts[i].Head.IsZero() {
			if s.fanned[ts[i].Head] == nil {
				s.fanned[ts[i].Head] = map[uint32]bool{}
			}
			s.fanned[ts[i].Head][ts[i].Gen] = true
		}
	}
	return nil
}

func (n *node) isDead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead
}

// hang waits while the node is paused.
func (n *node) hang() {
	n.mu.Lock()
	c := n.pause
	n.mu.Unlock()
	if c != nil {
		<-c
	}
}

// freeze makes every call that the node begins wait until thaw. Before these calls the node has
// already decided what it does.
func (n *node) freeze() {
	n.mu.Lock()
	n.pause = make(chan struct{})
	n.mu.Unlock()
	n.resume = n.plan.Add(faulty.Rule{Method: "*", Hook: func(context.Context, string) { n.hang() }})
}

func (n *node) thaw() {
	n.mu.Lock()
	c := n.pause
	n.pause = nil
	n.mu.Unlock()
	if c != nil {
		n.resume()
		close(c)
	}
	synctest.Wait()
}

// crash ends the node without a shutdown. Its leases stay until they expire.
func (n *node) crash() {
	n.mu.Lock()
	n.dead = true
	n.mu.Unlock()
	n.plan.Add(faulty.Rule{Method: "*", Err: faulty.ErrDown})
	n.thaw()
	n.stop()
	<-n.done
}

// halt ends the node as a shutdown does.
func (n *node) halt() {
	n.thaw()
	n.stop()
	<-n.done
}

// close ends all nodes.
func (s *sim) close() {
	for _, n := range s.nodes {
		n.halt()
	}
	for _, f := range s.faults {
		s.t.Error(f)
	}
}

func (n *node) park(id string, in time.Duration) {
	n.s.t.Helper()
	if err := n.e.Park(context.Background(), []engine.Timer{timerIn(id, in)}); err != nil {
		n.s.t.Fatal(err)
	}
}

// of returns the arrivals of a timer.
func (s *sim) of(id string) []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.came[id])
}

// arrivals returns all that was published, in order.
func (s *sim) arrivals() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

func (s *sim) setLogDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logDown = down
}

// owners returns how many shards each node owns.
func (s *sim) owners() map[string]int {
	out := map[string]int{}
	for name, n := range s.nodes {
		if k := len(n.e.Stats().Shards); k > 0 {
			out[name] = k
		}
	}
	return out
}

// owner returns a node that owns shards.
func (s *sim) owner() *node {
	names := make([]string, 0, len(s.nodes))
	for name := range s.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if n := s.nodes[name]; !n.isDead() && len(n.e.Stats().Shards) > 0 {
			return n
		}
	}
	s.t.Fatal("nobody owns a shard")
	return nil
}

// percentile returns a percentile of the lateness.
func percentile(late []time.Duration, p float64) time.Duration {
	if len(late) == 0 {
		return 0
	}
	slices.Sort(late)
	return late[min(len(late)-1, int(p*float64(len(late))))]
}

// heartbeats is the way by which a node sends its heartbeats to the group.
type heartbeats struct {
	engine.Heartbeats
	n *node
}

func (h heartbeats) Beat(ctx context.Context, group, owner, value string, ttl time.Duration) (int64, error) {
	h.n.hang()
	if h.n.isDead() {
		return 0, faulty.ErrDown
	}
	return h.Heartbeats.Beat(ctx, group, owner, value, ttl)
}

func (h heartbeats) Leave(ctx context.Context, group, owner string) error {
	if h.n.isDead() {
		return faulty.ErrDown
	}
	return h.Heartbeats.Leave(ctx, group, owner)
}
