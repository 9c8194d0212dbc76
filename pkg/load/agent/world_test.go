package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world holds agents, and the server to which they send, in one bubble of synctest. The connections of
// the controller to the agents are made with net.Pipe.
type world struct {
	t      *testing.T
	seen   *load.Observer
	mu     sync.Mutex
	agents map[string]*fake
	names  []string
}

// fake is an agent. It is also the target of the agent's messages.
type fake struct {
	*world
	Server

	name   string
	addr   string
	answer func(seq uint64) (time.Duration, error)
	accept chan net.Conn
	http   *http.Server
	dead   bool
	stop   func() // stops the agent as Ctrl-C does
	frozen atomic.Bool
	thaw   chan struct{} // closed when a frozen agent must end, so that its blocked writes continue
	conns  []net.Conn
	busy   sync.WaitGroup // requests that the handler has not answered yet

	sending sync.Mutex
	times   []time.Time // when the agent sent each message
}

func (f *fake) sent() []time.Time {
	f.sending.Lock()
	defer f.sending.Unlock()
	return slices.Clone(f.times)
}

func newWorld(t *testing.T, names ...string) *world {
	t.Helper()
	w := &world{t: t, seen: load.NewObserver(), agents: map[string]*fake{}}
	for _, name := range names {
		f := &fake{world: w, name: name, accept: make(chan net.Conn), thaw: make(chan struct{}), answer: func(uint64) (time.Duration, error) { return time.Millisecond, nil }}
		f.Open = f.open
		answer := f.Handler()
		on, stop := context.WithCancelCause(context.Background())
		f.stop = func() { stop(errors.New("by hand")) }
		f.http = &http.Server{BaseContext: func(net.Listener) context.Context { return on }, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.busy.Add(1)
			defer f.busy.Done()
			answer.ServeHTTP(w, r)
		})}
		w.names = append(w.names, fmt.Sprintf("127.0.0.1:%d", len(w.names)+1))
		w.agents[name] = f
		f.addr = w.names[len(w.names)-1]
		go func() { _ = f.http.Serve(f) }()
		t.Cleanup(func() { f.die(); f.busy.Wait() })
	}
	return w
}

func (f *fake) open(context.Context, *load.Scenario, *Aim, func(context.Context) (string, error)) (load.Config, func(), error) {
	return load.Config{Target: f}, func() {}, nil
}

// Send implements load.Target. An accepted message counts as delivered when Send returns.
func (f *fake) Send(ctx context.Context, r *load.Request) (load.Ack, error) {
	f.sending.Lock()
	f.times = append(f.times, time.Now())
	f.sending.Unlock()
	d, err := f.answer(r.Seq)
	notify.Sleep(ctx, d)
	if err != nil {
		return load.Ack{}, err
	}
	a, items := load.Ack{Accepted: r.Size}, notify.NewBase(time.Now()).Items()
	for i := range r.Size {
		base := items.Item(i)
		a.IDs = append(a.IDs, notify.ID{Base: base}.String())
		f.seen.Observe(&notify.Call{Items: []notify.Item{{Key: &notify.RowKey{Chunk: notify.Chunk{Base: base}}}}})
	}
	return a, nil
}

// Accept, Close and Addr implement net.Listener.
func (f *fake) Accept() (net.Conn, error) {
	c, ok := <-f.accept
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (f *fake) Close() error   { return nil }
func (f *fake) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// die ends an agent as a kill does: its connections close, and it sends nothing after that.
func (f *fake) die() {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	if f.dead {
		return
	}
	close(f.accept)
	close(f.thaw)
	f.dead = true
	_ = f.http.Close()
	for _, c := range f.conns {
		_ = c.Close()
	}
}

func (w *world) dial(_ context.Context, _, addr string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.agents {
		if f.addr != addr || f.dead {
			continue
		}
		mine, its := net.Pipe()
		f.conns = append(f.conns, its)
		f.accept <- icy{its, f}
		return mine, nil
	}
	return nil, net.ErrClosed
}

// icy is a connection of an agent. While the agent is frozen, the connection stays open, but sends
// nothing.
type icy struct {
	net.Conn
	f *fake
}

func (c icy) Write(b []byte) (int, error) {
	if c.f.frozen.Load() {
		<-c.f.thaw
	}
	return c.Conn.Write(b)
}

// options returns the Options of a Fleet with all agents of the world.
func (w *world) options(s *load.Scenario) Options {
	src, err := s.Source()
	if err != nil {
		w.t.Fatal(err)
	}
	return Options{Agents: w.names, dial: w.dial, Job: Start{Scenario: src.YAML, Promises: true, Steerable: true}}
}

// run runs the scenario with all agents and returns the result. If during is not nil, run calls it
// before the run begins; during can set timers that act during the run.
func (w *world) run(ctx context.Context, s load.Scenario, during func(*load.Run)) *load.Result {
	w.t.Helper()
	fleet, err := Dial(ctx, w.options(&s))
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := load.New(s, load.Config{Target: &fake{}, Ledger: w.seen, Remote: fleet, Steerable: true})
	if err != nil {
		w.t.Fatal(err)
	}
	if during != nil {
		during(r)
	}
	res, err := r.Run(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

func scenario(rate int, length time.Duration, thresholds ...string) load.Scenario {
	s := load.SingleStep("s", length, load.Step{Name: "push", Rate: load.Number(rate), Workers: 64})
	for _, t := range thresholds {
		s.Thresholds = append(s.Thresholds, load.Threshold{Expr: t})
	}
	return s.WithDefaults()
}
