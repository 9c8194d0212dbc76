package agent

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Options lists the agents of a run and describes what they send.
type Options struct {
	Agents []string    // HOST:PORT of each agent; agent i, counted from 0, sends segment i+1
	TLS    *tls.Config // nil: no TLS, and loopback addresses only
	// Token returns the newest bearer token. The controller sends it to the agents, and the agents
	// send it to the server under load. nil: no token.
	Token func(ctx context.Context) (string, error)
	// Job describes what each agent runs. Dial sets Job.Protocol and Job.OrderBase. Fleet.Run sets
	// the segment and the token for each agent.
	Job Start

	dial func(ctx context.Context, network, addr string) (net.Conn, error) // for tests
	now  func() time.Time                                                  // the controller's clock; for tests
}

// offsetMost is the largest allowed difference between an agent's clock and the controller's clock.
// uncertaintyMost is the largest allowed error of the measured difference. The limits exist because
// an agent computes the times of scheduled messages with its own clock.
const (
	offsetMost      = time.Second
	uncertaintyMost = 100 * time.Millisecond
)

// Fleet is the connection of a controller to the agents of one run. It implements load.Remote. The
// mutex mu guards the fields below it, and some fields of each link.
type Fleet struct {
	opt    Options
	client *http.Client
	links  []*link

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change of a link
	orders  Orders        // orders for all agents; the time in Orders.At is by the controller's clock
	began   time.Time     // when phase 0 begins; zero: not decided yet
}

// Dial connects to the agents and compares their clocks. It returns an error if an agent cannot be
// reached, has another protocol, or has a clock that differs too much. Fleet.Run closes the
// connections. If Run is not called, the caller must call Close.
func Dial(ctx context.Context, o Options) (*Fleet, error) {
	if len(o.Agents) == 0 {
		return nil, notify.Invalid("bad_agents", "agents", "must name at least one agent")
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.dial == nil {
		o.dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	o.Job.Protocol, o.Job.OrderBase = Protocol, uint64(o.now().UnixMicro())
	f := &Fleet{opt: o, changed: make(chan struct{}), orders: Orders{Phase: -1}}
	f.client = &http.Client{
		Transport:     &http.Transport{DialContext: o.dial, TLSClientConfig: o.TLS, TLSHandshakeTimeout: 5 * time.Second, MaxIdleConnsPerHost: 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for i, name := range o.Agents {
		if _, _, err := net.SplitHostPort(name); err != nil {
			return nil, notify.Invalid("bad_agents", "agents", fmt.Sprintf("%q is not HOST:PORT", name))
		}
		if slices.Contains(o.Agents[:i], name) {
			return nil, notify.Invalid("bad_agents", "agents", name+" is named twice")
		}
		scheme := "https://"
		if o.TLS == nil {
			scheme = "http://"
			if !notify.LoopbackHost(name) {
				return nil, notify.Invalid("bad_agents", "agents", name+" is not on this machine: agents on other machines need TLS")
			}
		}
		f.links = append(f.links, &link{
			fleet: f, index: i, base: scheme + name, kick: make(chan struct{}, 1), ready: -1,
			agent: load.Agent{Name: name, State: load.AgentReady},
		})
	}
	errs := make([]error, len(f.links))
	var wg sync.WaitGroup
	for i, l := range f.links {
		wg.Go(func() { errs[i] = l.compareClocks(ctx) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			f.Close()
			return nil, agentError(f.links[i].agent.Name, err)
		}
	}
	return f, nil
}

// Close closes the connections of a Fleet whose Run was not called.
func (f *Fleet) Close() { f.client.CloseIdleConnections() }

// agentError adds the agent's name to an error.
func agentError(name string, err error) error { return fmt.Errorf("agent %s: %w", name, err) }

// Agents implements load.Remote.
func (f *Fleet) Agents() []load.Agent {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]load.Agent, len(f.links))
	for i, l := range f.links {
		list[i] = l.agent
	}
	return list
}

// Run implements load.Remote.
func (f *Fleet) Run(ctx context.Context, feed func(i int, fr *load.Frame) error) {
	defer f.Close()
	var wg sync.WaitGroup
	for _, l := range f.links {
		wg.Go(func() { l.follow(ctx, feed) })
		wg.Go(func() { l.sendOrders(ctx) })
	}
	wg.Wait()
}

// headStart is the shortest time from the announcement of a phase to the beginning of the phase.
const headStart = 200 * time.Millisecond

// Begin implements load.Remote.
func (f *Fleet) Begin(ctx context.Context, phase int, planned time.Time) (time.Time, error) {
	err := f.wait(ctx, func(l *link) bool { return l.ready >= phase || l.ended() })
	if err != nil {
		return time.Time{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	lost, uncertain := 0, time.Duration(0)
	for _, l := range f.links {
		if l.ready < phase && phase == 0 {
			return time.Time{}, agentError(l.agent.Name, l.err)
		}
		if l.agent.State == load.AgentLost {
			lost++
		}
		l.agent.State = afterAnnounce(l.agent.State)
		uncertain = max(uncertain, l.agent.Uncertainty)
	}
	if lost == len(f.links) {
		return time.Time{}, load.ErrNoAgents
	}
	at := f.opt.now().Add(headStart + 4*uncertain)
	if planned.After(at) {
		at = planned
	}
	if phase == 0 {
		f.began = at
	}
	f.orders.Phase, f.orders.At = phase, at.UnixNano()
	f.announce()
	return at, nil
}

// afterAnnounce returns the new state of an agent when a phase is announced: a ready agent
// becomes a running agent.
func afterAnnounce(s load.AgentState) load.AgentState {
	if s == load.AgentReady {
		return load.AgentRunning
	}
	return s
}

// stopWithin is how long the controller waits until the agents confirm that they have stopped.
const stopWithin = 15 * time.Second

// Sent implements load.Remote.
func (f *Fleet) Sent(ctx context.Context, phase int) error {
	if f.wait(ctx, func(l *link) bool { return l.ready > phase || l.ended() }) != nil {
		f.mu.Lock()
		f.orders.Stop = true
		f.announce()
		f.mu.Unlock()
		limit, stop := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
		defer stop()
		if err := f.wait(limit, (*link).ended); err != nil {
			for _, l := range f.links {
				l.lose(fmt.Errorf("it was told to stop, but did not stop within %v", stopWithin))
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.links, func(l *link) bool { return l.agent.State != load.AgentLost }) {
		return nil
	}
	return load.ErrNoAgents
}

// Steer implements load.Remote.
func (f *Fleet) Steer(s load.SteerState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders.Steer = &s
	f.announce()
}

// announce makes every link send the orders at once, instead of at the next beat. The caller holds
// f.mu.
func (f *Fleet) announce() {
	for _, l := range f.links {
		select {
		case l.kick <- struct{}{}:
		default: // the link already has to send the orders
		}
	}
}

// wait waits until the function condition returns true for every link. It returns an error if ctx
// ends first. It holds f.mu while it calls the function.
func (f *Fleet) wait(ctx context.Context, condition func(*link) bool) error {
	for {
		f.mu.Lock()
		all := !slices.ContainsFunc(f.links, func(l *link) bool { return !condition(l) })
		changed := f.changed
		f.mu.Unlock()
		if all {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// update calls the function change while it holds f.mu. Then it wakes the goroutines that wait for
// a change.
func (f *Fleet) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}
