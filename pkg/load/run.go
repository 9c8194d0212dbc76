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
	Server func(ctx context.Context, last bool) (Server, error)
	// Consent asks a target off this machine whether its grant still holds; nil: the load
	// needs no grant. Run asks before it sends, and then four times a second. After the
	// first refusal, and after ConsentUntil, it sends nothing more.
	Consent      func(context.Context) error
	ConsentUntil time.Time // when the grant expires, by this machine's clock; zero: never

	Callback string // base URL of triggers, without a query
	Memory   int    // bytes for what was accepted and has not come; default 128 MiB. The rest is in temporary files
	Segment  Segment
	StartAt  time.Time // zero: at once

	// Remote sends the load from other processes; nil: this process sends it.
	Remote Remote
	// Report is called once a second, by one goroutine, with what the run did in it: of
	// an agent's run, which a controller's Remote feeds to another one.
	Report func(*Frame, error)
	// Promises has the frames hold what was acknowledged, for the controller's ledger.
	Promises bool
	// Begin is asked before each phase, which is planned for a moment, when it begins;
	// nil: then. An error ends the run: before the first phase it is that of Run.
	Begin func(ctx context.Context, phase int, planned time.Time) (time.Time, error)

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
	feeds   *feeds          // nil: this process sends
	patient context.Context // of requests under way: ends Grace after the run's
	abort   func(error)     // ends the sending
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
	if cfg.Steerable && (cfg.Segment.N == 1 || cfg.Report != nil) {
		r.steer = newSteer()
	}
	if cfg.Remote != nil {
		r.cfg.Begin = cfg.Remote.Begin
	}
	var err error
	if r.source, err = s.Source(); err != nil {
		return nil, err
	}
	r.source.Scale = cfg.Scale
	if err := r.compile(); err != nil {
		return nil, err
	}
	if cfg.Remote != nil {
		r.feeds = newFeeds(r)
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
func (r *Run) wantIDs() bool { return r.cfg.Ledger != nil || r.cfg.Acked != nil || r.cfg.Promises }

func (r *Run) since(t time.Time) time.Duration { return t.Sub(r.began) }

// elapsed is the run's time that its figures are complete for: now, or with agents the
// end of the newest frame. Messages of the second that no frame has told of yet would
// else look intended and not sent.
func (r *Run) elapsed() time.Duration {
	now := r.since(time.Now())
	if r.feeds != nil {
		return r.feeds.elapsed(now)
	}
	return now
}

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
	ack, err := t.Send(ctx, req)
	if err != nil && r.cfg.Consent != nil && isRefusal(err) {
		r.abort(err)
	}
	return ack, err
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
	if remote := r.cfg.Remote; remote != nil {
		following, end := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() { remote.Run(following, r.feeds.feed) })
		defer wg.Wait()
		defer end()
	} else if r.cfg.Calibrate > 0 {
		calibrate(ctx, r.c, r.cfg.Calibrate)
	}
	if l := r.cfg.Ledger; l != nil {
		if err := l.begin(ctx); err != nil {
			return nil, fmt.Errorf("ledger: %w", err)
		}
	}
	if begin := r.cfg.Begin; begin != nil {
		var err error
		if r.cfg.StartAt, err = begin(ctx, 0, r.cfg.StartAt); err != nil {
			return nil, err
		}
	}
	if !r.cfg.StartAt.IsZero() {
		waitUntil(ctx, r.cfg.StartAt)
	}
	if ask := r.cfg.Consent; ask != nil { // StartAt may be a day after the last question
		if err := ask(ctx); err != nil {
			return nil, err
		}
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
	r.abort = abort
	r.c.abort = func() { abort(errAborted) }
	stop := r.c.start(context.WithoutCancel(ctx))
	var consent sync.WaitGroup
	asking, stopAsking := context.WithCancel(sendCtx)
	underWay, allAnswered := context.WithCancel(patient)
	if r.cfg.Consent != nil {
		consent.Go(func() {
			if keepConsent(asking, r) != nil && waitUntil(underWay, time.Now().Add(consentGrace)) {
				giveUp()
			}
		})
	}
	err := r.send(sendCtx)
	stopAsking()
	allAnswered()
	consent.Wait()
	sending := r.elapsed()
	if r.feeds != nil {
		r.feeds.allSent()
	}
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

// notSent is how many messages of a segment are due and were not sent: sent is by step.
// Without a schedule nothing is due.
func (r *Run) notSent(seg Segment, sent []int64) (n int64) {
	now := r.since(time.Now())
	for i, s := range r.steps {
		if begin := time.Duration(s.begin.Load()); begin >= 0 && s.sched != nil {
			n += max(s.messagesOf(seg, s.by(now-begin))-sent[i], 0)
		}
	}
	return n
}

func (r *Run) why(text string) { r.stopped.CompareAndSwap(nil, &text) }

// send runs the phases.
func (r *Run) send(ctx context.Context) error {
	began := r.began
	for i, list := range r.phases {
		p := &r.s.Phases[i]
		if begin := r.cfg.Begin; begin != nil && i > 0 {
			var err error
			if began, err = begin(ctx, i, began); err != nil {
				r.why(err.Error())
				return nil
			}
			waitUntil(ctx, began)
		}
		r.c.enter(i)
		r.c.mark(Marker{At: r.since(time.Now()), Kind: "phase", Text: p.Name})
		var wg sync.WaitGroup
		fctx, healed := context.WithCancel(ctx)
		var faultErr error
		wg.Go(func() { faultErr = r.faults(fctx, p, began) })
		var senders sync.WaitGroup
		r.goOn(i)
		sent := r.feeds.wait(ctx, i, &senders)
		for _, s := range list {
			senders.Go(func() { s.send(ctx, began, sent) })
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
	n := int64(r.cfg.Segment.N)
	for _, s := range r.phases[phase] {
		for _, before := range r.steps {
			if before.Name == s.Name && before != s && before.ended.Load() > 0 {
				// In whole rounds of all segments: they came differently far, and each keeps
				// to its own numbers.
				sent := max(before.next.Load()*n, s.first-before.first)
				s.first = before.first + (sent+n-1)/n*n
			}
		}
	}
}
