package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config of a Run beside its scenario.
type Config struct {
	Target  Target            // of every step but null ones
	Targets map[string]Target // by the name of a target, instead
	Ledger  Ledger            // nil: delivery is not checked
	State   StateOf           // of what the ledger misses; nil: all of it that comes no more is lost
	Faults  FaultControl      // nil: a scenario with provider faults is refused
	Process ProcessControl    // nil: likewise with process faults
	// Actions are what operators do, by name.
	Actions map[string]func(context.Context) error

	Observe   func(*Snapshot) // every Every, from one goroutine; nil: nobody. Whoever is slow misses some
	Every     time.Duration   // default 1 s, at least 100 ms
	Timeout   time.Duration   // of a request; default 30 s
	Calibrate time.Duration   // against the null sink before the run, for each kind of body; 0: not
	Grace     time.Duration   // longest drain after a stop in the middle; default 5 s
	// Server asks the server what it says of itself: about once a second, and a last
	// time when all is over. nil: nobody is asked.
	Server   func(ctx context.Context, last bool) (Server, error)
	Callback string // base URL of triggers, without a query
	Memory   int    // bytes for what was accepted and has not come; default 128 MiB. The rest is in temporary files
	Segment  Segment
	StartAt  time.Time // zero: at once

	// Keys gives request n of a step an Idempotency-Key; nil: none, unless the step
	// says so. With it, a request that failed is sent again until it is answered or
	// Patience ends, so that what it stored is known.
	Keys     func(n int64) string
	Patience time.Duration // default 60 s
	// Acked is told of every good answer; nil: nobody.
	Acked func(Ack)

	Version, ServerName, Scale string // for the Environment and the Source
	Labels                     map[string]string
	Embedded                   bool // notifyd runs in this process
	Steerable                  bool // somebody may pause it and change its pace; not of a segment

	woke   func()        // tests: stalls a worker that has waited for its message
	health func() Health // tests
}

// Run is one run of a scenario.
type Run struct {
	s        Scenario
	cfg      Config
	phases   [][]*stepRun
	steps    []*stepRun // of all phases, in order
	promised promises
	source   Source

	began   time.Time
	latest  atomic.Pointer[Snapshot]
	marks   chan Marker
	c       *coordinator
	steer   *steer          // nil: nobody can
	patient context.Context // of requests under way: ends Grace after the run's
	runID   string
	stopped atomic.Pointer[string]
}

// New checks a scenario and compiles it. Nothing is sent before Run.
func New(s Scenario, cfg Config) (*Run, error) {
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.Every, time.Second)
	def(&cfg.Timeout, 30*time.Second)
	def(&cfg.Patience, time.Minute)
	def(&cfg.Grace, 5*time.Second)
	if cfg.Segment.N == 0 {
		cfg.Segment = Segment{1, 1}
	}
	if cfg.Segment.I < 1 || cfg.Segment.I > cfg.Segment.N || cfg.Segment.N > 10_000 {
		return nil, notify.Invalid(codeScenario, "segment", "is i/n with 1 <= i <= n")
	}
	r := &Run{s: s, cfg: cfg, marks: make(chan Marker, 64), runID: notify.NewBase(time.Now()).String()}
	if cfg.Steerable && cfg.Segment.N == 1 {
		r.steer = newSteer()
	}
	var err error
	if r.source, err = s.Source(); err != nil {
		return nil, err
	}
	r.source.Scale = cfg.Scale
	if err := r.compile(); err != nil {
		return nil, err
	}
	r.promised.keep = r.wantIDs()
	r.promised.memory = cfg.Memory
	if l, ok := cfg.Ledger.(*Shards); ok {
		r.promised.shards = len(l.list)
	}
	if r.c, err = newCoordinator(r); err != nil {
		return nil, err
	}
	return r, nil
}

// compile makes the steps of all phases. A step that comes again in a later phase
// goes on with its sequence, so that no message is sent twice.
func (r *Run) compile() error {
	next := map[string]int64{}
	for i := range r.s.Phases {
		p := &r.s.Phases[i]
		var list []*stepRun
		for j := range p.Steps {
			st := &p.Steps[j]
			if st.Target != Null && r.cfg.Target == nil && r.cfg.Targets[st.Target] == nil {
				return notify.Invalid(codeScenario, "target", fmt.Sprintf("step %s: there is nothing to send %s to", st.Name, st.Target))
			}
			if (st.bodies() == Trigger || st.Triggers > 0) && st.Target != Null && r.cfg.Callback == "" {
				return notify.Invalid(codeScenario, "target", fmt.Sprintf("step %s: triggers need a receiver of callbacks: simulators", st.Name))
			}
			d := newData(st, r.s.Seed)
			d.callback = r.cfg.Callback + "?due="
			s, err := newStepRun(r, p, st, d, next[st.Name])
			if err != nil {
				return err
			}
			if s.sched != nil {
				next[st.Name] += s.last
			} else {
				next[st.Name] += 1 << 40 // more than any phase sends
			}
			list = append(list, s)
			r.steps = append(r.steps, s)
		}
		for _, f := range p.Faults {
			if f.Process != "" && r.cfg.Process == nil {
				return notify.Invalid(codeScenario, "faults", "the run does not own the process it is to "+f.Process)
			}
			if f.Action != "" && r.cfg.Actions[f.Action] == nil {
				return notify.Invalid(codeScenario, "faults", "nobody here can "+f.Action)
			}
			if f.Do != "" && r.cfg.Faults == nil {
				return notify.Invalid(codeScenario, "faults", "there are no simulators to script")
			}
		}
		r.phases = append(r.phases, list)
	}
	return nil
}

// wantIDs reports whether anybody wants to know what was promised.
func (r *Run) wantIDs() bool { return r.cfg.Ledger != nil || r.cfg.Acked != nil }

func (r *Run) since(t time.Time) time.Duration { return t.Sub(r.began) }

// waitUntil is that of a worker for its next message.
func (r *Run) waitUntil(ctx context.Context, at time.Time) bool {
	ok := waitUntil(ctx, at)
	if f := r.cfg.woke; f != nil {
		f()
	}
	return ok
}

func (r *Run) key(s *stepRun, n int64) string {
	if r.cfg.Keys != nil {
		return r.cfg.Keys(n)
	}
	return fmt.Sprintf("load-%s-%s-%d", r.runID, s.Name, n)
}

func (r *Run) attempt(t Target, req *Request) (Ack, error) {
	if req.Step.Target == Null {
		return t.Send(r.patient, req)
	}
	// A request that is under way is brought to its answer even when the run is
	// stopped, within Grace: what it stored would not be known.
	ctx, stop := context.WithTimeout(r.patient, r.cfg.Timeout)
	defer stop()
	return t.Send(ctx, req)
}

// Snapshot returns the run as it is: never nil, and never changed again. It may be
// called from any goroutine at any time.
func (r *Run) Snapshot() *Snapshot {
	if s := r.latest.Load(); s != nil {
		return s
	}
	return &Snapshot{At: time.Now(), State: StateCalibrating, Scenario: r.s.Name, Planned: r.s.Length(), Verdict: Inconclusive}
}

// Mark draws a line across the charts, for people. It may be called from any
// goroutine; more than 64 in a tenth of a second are dropped.
func (r *Run) Mark(text string) {
	select {
	case r.marks <- Marker{Kind: "user", Text: text}:
	default:
	}
}

var errAborted = errors.New("a threshold that ends the run was missed")

// Run sends the scenario's load and, with a ledger, waits for its delivery. It
// returns when that is done. When ctx ends it stops sending, waits for what is
// under way no longer than Config.Grace, and returns the figures so far, marked
// as partial. It is called once.
func (r *Run) Run(ctx context.Context) (*Result, error) {
	if r.cfg.Calibrate > 0 {
		calibrate(ctx, r.c, r.cfg.Calibrate)
	}
	if l := r.cfg.Ledger; l != nil {
		if err := l.begin(ctx); err != nil {
			return nil, fmt.Errorf("ledger: %w", err)
		}
	}
	if !r.cfg.StartAt.IsZero() {
		waitUntil(ctx, r.cfg.StartAt)
	}
	r.begin()
	patient, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	r.patient = patient
	defer context.AfterFunc(ctx, func() {
		waitUntil(patient, time.Now().Add(r.cfg.Grace))
		giveUp()
	})()
	sendCtx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	r.c.abort = func() { abort(errAborted) }
	stop := r.c.start(context.WithoutCancel(ctx))
	err := r.send(sendCtx)
	sending := time.Since(r.began)
	if ctx.Err() != nil {
		r.why("stopped by the user")
	} else if cause := context.Cause(sendCtx); cause != nil && sendCtx.Err() != nil {
		r.why(cause.Error())
	}
	var found settled
	if err == nil && r.cfg.Ledger != nil {
		found, err = r.drain(context.WithoutCancel(ctx), ctx.Done())
	}
	stop()
	if err != nil {
		return nil, err
	}
	return r.c.result(sending, found)
}

// begin sets the run's zero.
func (r *Run) begin() {
	r.began = time.Now()
	if at := r.cfg.StartAt; !at.IsZero() && r.began.Sub(at) < time.Second {
		r.began = r.began.Add(at.Sub(r.began)) // all segments have the same
	}
	for _, s := range r.steps {
		s.data.origin = r.began
	}
}

func (r *Run) why(text string) { r.stopped.CompareAndSwap(nil, &text) }

// send runs the phases.
func (r *Run) send(ctx context.Context) error {
	began := r.began
	for i, list := range r.phases {
		p := &r.s.Phases[i]
		r.c.enter(i)
		r.c.mark(Marker{At: r.since(time.Now()), Kind: "phase", Text: p.Name})
		var wg sync.WaitGroup
		fctx, healed := context.WithCancel(ctx)
		var faultErr error
		wg.Go(func() { faultErr = r.faults(fctx, p, began) })
		var senders sync.WaitGroup
		r.goOn(i)
		for _, s := range list {
			senders.Go(func() { s.send(ctx, began) })
		}
		senders.Wait()
		if p.Duration > 0 {
			waitUntil(ctx, began.Add(p.Duration.of()))
		}
		healed()
		wg.Wait()
		if faultErr != nil {
			return faultErr
		}
		if p.Drain > 0 {
			r.waitForBacklog(ctx, p.Drain.of())
		}
		if ctx.Err() != nil {
			return nil
		}
		// The next phase begins where this one was planned to end, unless it ran over.
		next := began.Add(p.Duration.of())
		if now := time.Now(); p.Duration == 0 || now.Sub(next) > 100*time.Millisecond {
			next = now
		}
		began = next
	}
	return nil
}

// goOn moves the steps of a phase behind what they sent in earlier ones, where these
// were steered to send more than was planned.
func (r *Run) goOn(phase int) {
	if r.steer == nil {
		return
	}
	if st, _ := r.steer.state(); !st.Changed {
		return
	}
	for _, s := range r.phases[phase] {
		for _, before := range r.steps {
			if before.Name == s.Name && before != s && before.ended.Load() > 0 {
				s.first = max(s.first, before.first+before.next.Load())
			}
		}
	}
}

// waitForBacklog waits until what was accepted was delivered.
func (r *Run) waitForBacklog(ctx context.Context, limit time.Duration) {
	if r.cfg.Ledger == nil {
		return
	}
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		if c, err := r.cfg.Ledger.came(ctx, false); err == nil && c.ids >= r.promised.total() {
			return
		}
		waitUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
}

// drain settles, and gives up after Grace when the run is stopped.
func (r *Run) drain(ctx context.Context, stopped <-chan struct{}) (settled, error) {
	r.c.drains()
	limit, hurried := r.s.Drain.of(), false
	select {
	case <-stopped:
		limit, hurried = min(limit, r.cfg.Grace), true
	default:
	}
	dctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	if !hurried {
		go func() {
			select {
			case <-stopped:
				r.why("stopped by the user while it drained")
				cancel()
			case <-done:
			}
		}()
	}
	found, err := r.settle(dctx, limit, hurried)
	if err != nil && dctx.Err() != nil && ctx.Err() == nil { // stopped in the middle
		return r.settle(ctx, 0, true)
	}
	if err != nil {
		return found, fmt.Errorf("ledger: %w", err)
	}
	return found, nil
}

// failedMessages is how many messages were in requests without a good answer.
func (r *Run) failedMessages() (n int64) {
	for _, s := range r.steps {
		n += s.lapsed.Load()
	}
	return n
}
