// Package scale simulates installations of 10, 100 and 1,000 processes. The processes run the
// code that decides which process owns a timer shard or a share of a limit: pkg/timer and
// pkg/cluster. The servers are in memory. The network is modelled, and time is simulated.
package scale

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/worker"
)

const (
	shards = 64 // value of timers.shards in a distributed notifyd
	// limit is the number of calls that a caller may have under way. The dispatchers divide it
	// among themselves.
	limit = 100_000
	// callsTake is how long a new dispatcher waits until calls that began under the old shares
	// have ended.
	callsTake = 10 * time.Second
	// soloParts is the number of components that only one process at a time runs
	// (cluster.Exclusive). A process with all roles competes for each of them. The two components
	// of type cluster.Figure (lags and deferred) are not counted.
	soloParts = 9
	// takeOver bounds the time from a kill until the shards of the killed process have another
	// owner. It is 6 s plus the time-outs of two lost answers.
	takeOver = 6*time.Second + 2*netTimeout
)

// world has the servers and all processes.
type world struct {
	t     *testing.T
	store *memory.Store
	lease *memory.Lease
	beats *memory.Heartbeats
	sent  traffic

	processes map[string]*process

	mu     sync.Mutex
	owner  map[uint16]string // shard -> the process that took the shard over last
	taken  int               // number of take-overs of shards since the start
	faults []string
}

// process is one notifyd with all roles.
type process struct {
	name   string
	net    *network
	peers  *cluster.Peers
	calls  atomic.Bool // true: the dispatcher of the process makes calls
	killed bool
	stop   context.CancelFunc
	parts  sync.WaitGroup
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, store: memory.New(), lease: memory.NewLease(), beats: memory.NewHeartbeats(),
		processes: map[string]*process{}, owner: map[uint16]string{},
	}
}

// start starts process number i. It runs only the components that own timer shards or a share of a
// limit.
func (w *world) start(i int) {
	p := &process{name: fmt.Sprintf("notifyd-%04d", i)}
	p.net = &network{all: &w.sent, rng: rand.New(rand.NewPCG(uint64(i), 18))}
	w.processes[p.name] = p
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	bs := beats{w.beats, p.net}
	engine := timer.New(timer.Config{
		Store: timers{w.store.Timers(), p.net}, Owner: p.name, Shards: shards, Heartbeats: bs,
		Lease:   lease{w.lease, p.net, []*atomic.Int64{&w.sent.redis, &w.sent.leases}},
		Publish: func(context.Context, []engine.Timer) error { return nil },
		Events: timer.Events{Owned: func(n uint16, _ uint64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.owner[n] = p.name
			w.taken++
		}},
	})
	p.peers = cluster.NewPeers(bs, "dispatchers", p.name)
	w.run(p, ctx, engine.Run, p.peers.DelayStart(callsTake, func(ctx context.Context) error {
		p.calls.Store(true)
		<-ctx.Done()
		p.calls.Store(false)
		return nil
	}))
}

func (w *world) run(p *process, ctx context.Context, parts ...func(context.Context) error) {
	for _, part := range parts {
		p.parts.Go(func() {
			if err := part(ctx); err != nil {
				w.failf("%s: %v", p.name, err)
			}
		})
	}
}

// chores starts the other components in each process. These components own neither shards nor
// shares, so a kill has no effect on them. chores returns a function that stops the components.
// They run only while the test counts the requests at rest, because they make each simulated minute
// slow to compute.
func (w *world) chores() (stop func()) {
	ctx, stop := context.WithCancel(context.Background())
	quiet := slog.New(slog.DiscardHandler)
	for _, p := range w.processes {
		bs, ls := beats{w.beats, p.net}, lease{w.lease, p.net, []*atomic.Int64{&w.sent.redis}}
		cards := &cluster.Cards{Beats: bs, Owner: p.name, Own: func(context.Context) cluster.Card {
			return cluster.Card{Process: api.Process{Name: p.name, AgeSeconds: time.Since(time.Unix(0, 0)).Seconds()}} // a new value each time
		}}
		w.run(p, ctx, cards.Run,
			func(ctx context.Context) error { return cluster.NewStandings(bs, p.name).Share(ctx, nil, nil) },
			func(ctx context.Context) error { return w.follow(ctx, meta{w.store.Meta(), p.net}, quiet) })
		for _, name := range []string{"lags", "deferred"} {
			f := &cluster.Figure[int]{Beats: bs, Lease: ls, Owner: p.name, Name: name, Log: quiet}
			w.run(p, ctx, f.Find(2*time.Second, func(context.Context) (int, error) { return 1, nil }), f.Follow(func(int) {}))
		}
		for k := range soloParts {
			w.run(p, ctx, cluster.Exclusive(ls, p.name, fmt.Sprint("part-", k), func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			}))
		}
	}
	return stop
}

// follow reads the changes that operators have made, once a second, as pkg/app does.
func (w *world) follow(ctx context.Context, of engine.Meta, quiet *slog.Logger) error {
	var lanes *cluster.Lanes
	var holds *cluster.CampaignHolds
	var circuits *cluster.Circuits
	for ctx.Err() == nil {
		var err error
		switch {
		case lanes == nil:
			lanes, err = cluster.OpenLanes(ctx, of, quiet, func(notify.Lane, *api.Lane) {})
		case holds == nil:
			holds, err = cluster.OpenCampaignHolds(ctx, of, &worker.Campaigns{})
		case circuits == nil:
			circuits, err = cluster.OpenCircuits(ctx, cluster.CircuitConfig{Meta: of, Logger: quiet})
		default:
			_, _, _ = lanes.Follow(ctx), holds.Follow(ctx), circuits.Follow(ctx) // after an error, follow tries again a second later
			notify.Sleep(ctx, time.Second)
			continue
		}
		if err != nil { // start again from the first of the three
			lanes, holds, circuits = nil, nil, nil
		}
	}
	return nil
}

func (w *world) failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// kill ends a process without releasing anything that it owns.
func (w *world) kill(p *process) {
	p.killed = true
	p.net.kill()
	p.calls.Store(false)
}

func (w *world) close() {
	for _, p := range w.processes {
		p.net.kill() // kills every network first, so that no process can hand over its shards
		p.stop()
	}
	for _, p := range w.processes {
		p.parts.Wait()
	}
	for _, f := range w.faults {
		w.t.Error(f)
	}
}

// owned returns, by process name, how many shards each living process owns, and how many shards
// all living processes own together.
func (w *world) owned() (by map[string]int, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	by = map[string]int{}
	for _, name := range w.owner {
		if !w.processes[name].killed {
			by[name]++
			all++
		}
	}
	return by, all
}

func (w *world) moved() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.taken
}

// checkShares fails the test if the dispatchers' shares add up to more than the limit. If exact is
// true, the shares must add up to exactly the limit.
func (w *world) checkShares(when string, exact bool) {
	w.t.Helper()
	sum := 0
	for _, p := range w.processes {
		if p.calls.Load() {
			sum += p.peers.Share(limit)
		}
	}
	if sum > limit || exact && sum != limit {
		w.t.Errorf("%d processes, %s: they have %d of %d calls together", len(w.processes), when, sum, limit)
	}
}

// wait lets the simulated time d pass. It checks the shares every 10 s of that time.
func (w *world) wait(when string, d time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(10*time.Second, time.Until(end)))
		w.checkShares(when, false)
	}
}

// victim returns the living process with the most shards.
func (w *world) victim() (p *process) {
	by, _ := w.owned()
	for name, n := range by {
		if p == nil || n > by[p.name] || n == by[p.name] && name < p.name {
			p = w.processes[name]
		}
	}
	return p
}

// result holds the figures that were measured with one number of processes.
type result struct {
	processes              int
	redis, cassandra       float64 // requests a second at rest
	leases, rows           float64 // requests about timer shards, as included in redis and in cassandra
	members                float64 // members a second that Redis listed in its answers at rest
	takeover               time.Duration
	freed, movedAtKill     int // shards that the killed processes owned; shards that moved because of the kills
	moved                  int // shards that moved when a process joined
	readAtKill, readAtJoin int64
}

// bottleneck returns the server that saturates first, and how busy it is. The installation has one
// Redis and a few nodes of Cassandra. The costs come from docs/performance-cluster.md: Redis needs
// about 0.12 ms for a beat or a lease, and 2.5 ms for an answer with 1,000 members. Cassandra
// answers 20,000 small reads a second. After a member joins or leaves, every process reads the new
// list of members within a second.
func (r *result) bottleneck() string {
	busy := map[string]float64{
		"redis_at_rest":     r.redis * 120e-6,
		"redis_at_a_change": r.redis*120e-6 + float64(r.readAtJoin)/2*2.5e-6,
		"cassandra_at_rest": r.cassandra / 20_000,
	}
	most := slices.MaxFunc(slices.Sorted(maps.Keys(busy)), func(a, b string) int { return cmp.Compare(busy[a], busy[b]) })
	return fmt.Sprintf("%s:%.0f%%", most, 100*busy[most])
}

func measure(t *testing.T, n int) (r result) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		for i := range n {
			w.start(i)
			time.Sleep(5 * time.Second / time.Duration(n))
		}
		w.wait("started", 140*time.Second) // each beat moves an eighth of the shards to their final owners
		stop := w.chores()
		w.wait("before the rest", 10*time.Second)
		if by, all := w.owned(); all != shards {
			t.Fatalf("%d processes: %d of %d shards are owned: %v", n, all, shards, by)
		}
		w.checkShares("at rest", true)

		const rest = 20 * time.Second
		counters := []*atomic.Int64{&w.sent.redis, &w.sent.cassandra, &w.sent.leases, &w.sent.shards, &w.sent.members}
		var a [5]float64
		for k, c := range counters {
			a[k] = float64(c.Load())
		}
		w.wait("at rest", rest)
		for k, c := range counters {
			a[k] = (float64(c.Load()) - a[k]) / rest.Seconds()
		}
		r = result{processes: n, redis: a[0], cassandra: a[1], leases: a[2], rows: a[3], members: a[4]}
		stop()

		read, moved := w.sent.members.Load(), w.moved()
		const kills = 2
		for range kills {
			p := w.victim()
			by, _ := w.owned()
			r.freed += by[p.name]
			died := time.Now()
			w.kill(p)
			for {
				if _, all := w.owned(); all == shards || time.Since(died) > time.Minute {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			r.takeover = max(r.takeover, time.Since(died))
			w.wait("one was killed", 25*time.Second)
		}
		w.checkShares("after the kills", true)
		r.readAtKill, r.movedAtKill = (w.sent.members.Load()-read)/kills, w.moved()-moved

		read, moved = w.sent.members.Load(), w.moved()
		w.start(n)
		w.wait("one joined", 40*time.Second)
		w.checkShares("after one joined", true)
		if by, all := w.owned(); all != shards {
			t.Errorf("%d processes: %d of %d shards are owned after one joined: %v", n, all, shards, by)
		}
		r.readAtJoin, r.moved = w.sent.members.Load()-read, w.moved()-moved
	})
	return r
}

// TestScale checks three promises for each number of processes. After a kill, the shards of the
// killed process get another owner within takeOver. The number of requests at rest grows with the
// number of processes plus the number of shards; it does not grow with their product or with a
// square. When a process joins or leaves, only the shards of that process move.
func TestScale(t *testing.T) {
	sizes := []int{10, 100, 1000}
	if testing.Short() {
		sizes = sizes[:2]
	}
	var least result
	for _, n := range sizes {
		began := time.Now()
		r := measure(t, n)
		t.Logf("scale processes=%d shards=%d takeover=%.1fs redis=%.0f/s redis_a_process=%.1f/s cassandra=%.0f/s cassandra_a_process=%.1f/s shard_leases=%.0f/s shard_rows=%.0f/s members_read=%.0f/s moved_at_join=%d moved_at_kill=%d/%d members_read_at_join=%d members_read_at_kill=%d first=%s real=%.0fs",
			n, shards, r.takeover.Seconds(), r.redis, (r.redis-r.leases)/float64(n), r.cassandra, (r.cassandra-r.rows)/float64(n), r.leases, r.rows, r.members, r.moved, r.movedAtKill, r.freed, r.readAtJoin, r.readAtKill, r.bottleneck(), time.Since(began).Seconds())
		if r.takeover > takeOver {
			t.Errorf("%d processes: shards of a killed one were taken over after %v, at most %v", n, r.takeover, takeOver)
		}
		if most := 2*(shards+n)/(n+1) + 2; r.moved > most {
			t.Errorf("%d processes: %d shards moved when one joined, at most %d", n, r.moved, most)
		}
		if r.movedAtKill < r.freed || r.movedAtKill > 2*r.freed+2 {
			t.Errorf("%d processes: %d shards moved when processes with %d were killed", n, r.movedAtKill, r.freed)
		}
		if r.members != 0 {
			t.Errorf("%d processes: Redis answers with %.1f members a second at rest", n, r.members)
		}
		if least.processes == 0 {
			least = r
		}
		if r.leases > 1.2*least.leases || r.rows > 1.2*least.rows {
			t.Errorf("of %d shards %.0f leases and %.0f rows a second are asked for by %d processes, %.0f and %.0f by %d", shards, r.leases, r.rows, n, least.leases, least.rows, least.processes)
		}
		perProcess := func(all, shards float64, of int) float64 { return (all - shards) / float64(of) }
		if now, was := perProcess(r.redis, r.leases, n), perProcess(least.redis, least.leases, least.processes); now > 1.2*was {
			t.Errorf("each of %d processes asks Redis %.1f times a second, each of %d %.1f times", n, now, least.processes, was)
		}
		if now, was := perProcess(r.cassandra, r.rows, n), perProcess(least.cassandra, least.rows, least.processes); now > 1.2*was {
			t.Errorf("each of %d processes asks Cassandra %.1f times a second, each of %d %.1f times", n, now, least.processes, was)
		}
	}
}
