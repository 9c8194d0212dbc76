package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config holds what a Run needs in addition to its scenario.
type Config struct {
	Target  Target            // for steps whose target is not in Targets; a step with the target null needs none
	Targets map[string]Target // targets by their name in Step.Target; they replace Target
	Ledger  Ledger            // nil: delivery is not checked
	// State asks the server for the state of a missing message. If State is nil, the server is not
	// asked.
	State   StateOf
	Faults  FaultControl   // nil: a scenario with provider faults is refused
	Process ProcessControl // nil: a scenario with process faults is refused
	// Actions holds the actions of operators by their name in FaultSpec.Action.
	Actions map[string]func(context.Context) error

	// The run calls Observe with a snapshot at the interval Every. The coordinator's goroutine calls
	// it, so a slow Observe delays the figures of the run. Observe may be nil.
	Observe   func(*Snapshot)
	Every     time.Duration // default 1 s; shorter than 100 ms has no effect
	Timeout   time.Duration // timeout of one request; default 30 s
	Calibrate time.Duration // length of the calibration before the run, for each step name; 0: no calibration
	// Grace bounds two waits after the user stopped the run: the wait for open requests, and the
	// drain. Each takes at most Grace. The default is 5 s.
	Grace time.Duration
	// Server asks the server for figures about itself. The run calls it about once a second, and at
	// the end once more with last set to true. nil: the server is not asked.
	Server func(ctx context.Context, last bool) (Server, error)
	// Consent asks a target on another machine whether its load grant still holds; nil: no grant is
	// needed. The run asks before it sends, and then four times a second. It stops sending at the
	// first refusal, and at the time ConsentUntil.
	Consent      func(context.Context) error
	ConsentUntil time.Time // when the grant expires, by this machine's clock; zero: never

	Callback string // base URL of triggers, without a query
	// Memory is the highest number of bytes for messages that were accepted and have not arrived.
	// The default is 128 MiB. The run stores further messages in temporary files.
	Memory  int
	Segment Segment
	// OrderBase is added to all sequence numbers of messages to a user, which count from 1. All
	// processes that send segments of a run at the same time need the same OrderBase. 0 means the
	// start of the run in microseconds since 1970. This is higher than all sequence numbers of
	// earlier runs, because no user gets a message every microsecond.
	OrderBase uint64
	StartAt   time.Time // when the run begins; zero: at once

	// Remote sends the load from agents; nil: this process sends it.
	Remote Remote
	// Report is set in the run of an agent. One goroutine calls it once a second, with a frame that
	// holds the figures of this second, or with an error if the frame cannot be encoded. The Remote
	// of the controller adds the frames to its run.
	Report func(*Frame, error)
	// If Promises is true, the frames contain the acknowledged messages, which the controller
	// compares with its ledger.
	Promises bool
	// Begin returns the moment at which a phase begins. The run calls it before each phase, with
	// the planned moment. nil: phases begin as planned. If Begin returns an error, the run ends.
	// Before the first phase, Run returns this error. Before a later phase, the error becomes
	// Result.Stopped.
	Begin func(ctx context.Context, phase int, planned time.Time) (time.Time, error)

	// Keys returns the Idempotency-Key of request n of a step. If Keys is nil, only requests of
	// steps whose field Keys is true have keys. If Keys is not nil, a failed request is repeated
	// until it has an answer or until Patience has passed. So the caller knows what the server
	// stored.
	Keys     func(n int64) string
	Patience time.Duration // default 60 s
	// Acked is called with every good answer. It may be nil.
	Acked func(Ack)

	Version, ServerName, Scale string // values for Environment and Source
	Labels                     map[string]string
	Embedded                   bool // notifyd runs in this process
	Steerable                  bool // true: Pause and Pace have an effect; a run of one of several segments also needs Report

	woke   func()        // for tests: stalls a worker after it waited for the due time
	health func() Health // for tests
}

// Run is one run of a scenario. Its method Run may be called only once. Any goroutine may call
// Snapshot, Mark and the methods that steer.
type Run struct {
	s        Scenario
	cfg      Config
	phases   [][]*stepRun
	steps    []*stepRun // steps of all phases, in order
	promised promises
	source   Source

	began   time.Time
	latest  atomic.Pointer[Snapshot]
	marks   chan Marker
	c       *coordinator
	steer   *steer          // nil: the run cannot be steered
	feeds   *feeds          // nil: this process sends the load
	patient context.Context // context of requests under way; ends Config.Grace after the context of the run
	abort   func(error)     // ends the sending
	runID   string
	stopped atomic.Pointer[string]
}

// New checks a scenario and prepares its run. It sends nothing. It returns an error of
// notify.KindInvalid that names the wrong field.
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
		return nil, notify.Invalid(codeScenario, "segment", fmt.Sprintf("is %d/%d, but must be i/n with 1 <= i <= n <= 10,000", cfg.Segment.I, cfg.Segment.N))
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
	r.promised.keepIDs = r.wantIDs()
	r.promised.memory = cfg.Memory
	if l, ok := cfg.Ledger.(*Shards); ok {
		r.promised.shards = len(l.list)
	}
	if r.c, err = newCoordinator(r); err != nil {
		return nil, err
	}
	return r, nil
}

// compile makes the steps of all phases. If an earlier phase has a step with the same name, the
// request numbers continue after those of that step. So no message is sent twice.
func (r *Run) compile() error {
	next := map[string]int64{}
	for i := range r.s.Phases {
		p := &r.s.Phases[i]
		var list []*stepRun
		for j := range p.Steps {
			st := &p.Steps[j]
			if st.Target != Null && r.cfg.Target == nil && r.cfg.Targets[st.Target] == nil {
				return notify.Invalid(codeScenario, "target", fmt.Sprintf("step %s: this run cannot send to the target %q", st.Name, st.Target))
			}
			if (st.bodies() == Trigger || st.Triggers > 0) && st.Target != Null && r.cfg.Callback == "" {
				return notify.Invalid(codeScenario, "target", fmt.Sprintf("step %s: triggers need simulators, which receive the callbacks", st.Name))
			}
			d := newData(st, r.s.Seed)
			d.callback = r.cfg.Callback + "?due="
			s, err := newStepRun(r, p, st, d, next[st.Name])
			if err != nil {
				return err
			}
			if s.sched != nil {
				next[st.Name] += s.plannedRequests
			} else {
				next[st.Name] += 1 << 40 // more request numbers than any phase uses
			}
			list = append(list, s)
			r.steps = append(r.steps, s)
		}
		for _, f := range p.Faults {
			if f.Process != "" && r.cfg.Process == nil {
				return notify.Invalid(codeScenario, "faults", "the run did not start notifyd, so the run cannot "+f.Process+" notifyd")
			}
			if f.Action != "" && r.cfg.Actions[f.Action] == nil {
				return notify.Invalid(codeScenario, "faults", fmt.Sprintf("this run cannot do the action %q", f.Action))
			}
			if f.Do != "" && r.cfg.Faults == nil {
				return notify.Invalid(codeScenario, "faults", "faults of providers need simulators")
			}
		}
		r.phases = append(r.phases, list)
	}
	return nil
}

// wantIDs reports whether the ids of acknowledged messages are needed.
func (r *Run) wantIDs() bool { return r.cfg.Ledger != nil || r.cfg.Acked != nil || r.cfg.Promises }

func (r *Run) since(t time.Time) time.Duration { return t.Sub(r.began) }

// elapsed returns the run time up to which all figures are complete. Normally this is the current
// run time. If agents send the load, it is instead the end of the newest frame: the frames of later
// seconds have not arrived, so their messages would count as intended and not sent.
func (r *Run) elapsed() time.Duration {
	now := r.since(time.Now())
	if r.feeds != nil {
		return r.feeds.elapsed(now)
	}
	return now
}

// waitUntil waits for the due time of a worker's next message. Then it calls Config.woke, for
// tests.
func (r *Run) waitUntil(ctx context.Context, at time.Time) bool {
	ok := waitUntil(ctx, at)
	if f := r.cfg.woke; f != nil {
		f()
	}
	return ok
}

func (r *Run) idempotencyKey(s *stepRun, n int64) string {
	if r.cfg.Keys != nil {
		return r.cfg.Keys(n)
	}
	return fmt.Sprintf("load-%s-%s-%d", r.runID, s.Name, n)
}

func (r *Run) sendAttempt(t Target, req *Request) (Ack, error) {
	if req.Step.Target == Null {
		return t.Send(r.patient, req)
	}
	// When the run is stopped, an open request has Config.Grace to get its answer. Without an
	// answer the run does not know what the server stored.
	ctx, stop := context.WithTimeout(r.patient, r.cfg.Timeout)
	defer stop()
	ack, err := t.Send(ctx, req)
	if err != nil && r.cfg.Consent != nil && isRefusal(err) {
		r.abort(err)
	}
	return ack, err
}

// Snapshot returns the current state of the run. The snapshot is never nil and never changes. Any
// goroutine may call Snapshot at any time.
func (r *Run) Snapshot() *Snapshot {
	if s := r.latest.Load(); s != nil {
		return s
	}
	return &Snapshot{At: time.Now(), State: StateCalibrating, Scenario: r.s.Name, Planned: r.s.Length(), Verdict: Inconclusive}
}

// Mark draws a line with a text across the charts. Any goroutine may call it. Of more than 64 marks
// within a tenth of a second, only 64 are drawn.
func (r *Run) Mark(text string) {
	select {
	case r.marks <- Marker{Kind: "user", Text: text}:
	default:
	}
}

var errAborted = errors.New("a threshold that ends the run was missed")

// Run sends the load of the scenario. With a ledger, it then waits for the deliveries. When ctx
// ends, Run stops sending, waits at most Config.Grace for open requests, and returns the figures so
// far. Result.Partial is then true. Run may be called only once.
func (r *Run) Run(ctx context.Context) (*Result, error) {
	defer r.promised.closeFiles()
	if remote := r.cfg.Remote; remote != nil {
		following, end := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() { remote.Run(following, r.feeds.addFrame) })
		defer wg.Wait()
		defer end()
	} else if r.cfg.Calibrate > 0 {
		calibrate(ctx, r.c, r.cfg.Calibrate)
	}
	if l := r.cfg.Ledger; l != nil {
		if err := l.markStart(ctx); err != nil {
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
	if ask := r.cfg.Consent; ask != nil { // ask again: with StartAt, the last question may be a day ago
		if err := ask(ctx); err != nil {
			return nil, err
		}
	}
	r.setStart()
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
	err := r.sendPhases(sendCtx)
	stopAsking()
	allAnswered()
	consent.Wait()
	sending := r.elapsed()
	if r.feeds != nil {
		r.feeds.markAllSent()
	}
	if ctx.Err() != nil {
		r.why("stopped by the user")
	} else if cause := context.Cause(sendCtx); cause != nil && sendCtx.Err() != nil {
		r.why(cause.Error())
	}
	var found drainResult
	if err == nil && r.cfg.Ledger != nil {
		found, err = r.drain(context.WithoutCancel(ctx), ctx.Done())
	}
	stop()
	if err != nil {
		return nil, err
	}
	return r.c.result(sending, found)
}

// setStart sets the moment from which all times of the run count.
func (r *Run) setStart() {
	r.began = time.Now()
	if at := r.cfg.StartAt; !at.IsZero() && r.began.Sub(at) < time.Second {
		r.began = r.began.Add(at.Sub(r.began)) // so that all segments count from the same moment
	}
	for _, s := range r.steps {
		s.data.origin = r.began
		s.data.orderBase = cmp.Or(r.cfg.OrderBase, uint64(r.began.UnixMicro()))
	}
}

// notSent returns how many messages of a segment are due and were not sent. The parameter sent holds
// the number of messages that each step sent. In a closed loop no message is due.
func (r *Run) notSent(seg Segment, sent []int64) (n int64) {
	now := r.since(time.Now())
	for i, s := range r.steps {
		if begin := time.Duration(s.begin.Load()); begin >= 0 && s.sched != nil {
			n += max(s.messagesOf(seg, s.countDue(now-begin))-sent[i], 0)
		}
	}
	return n
}

func (r *Run) why(text string) { r.stopped.CompareAndSwap(nil, &text) }

// sendPhases runs the phases one after the other.
func (r *Run) sendPhases(ctx context.Context) error {
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
		r.c.enterPhase(i)
		r.c.mark(Marker{At: r.since(time.Now()), Kind: "phase", Text: p.Name})
		var wg sync.WaitGroup
		fctx, healed := context.WithCancel(ctx)
		var faultErr error
		wg.Go(func() { faultErr = r.runFaults(fctx, p, began) })
		var senders sync.WaitGroup
		r.continueSteps(i)
		sent := r.feeds.waitSent(ctx, i, &senders)
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
		// The next phase begins at the planned end of this phase, unless this phase took longer.
		next := began.Add(p.Duration.of())
		if now := time.Now(); p.Duration == 0 || now.Sub(next) > 100*time.Millisecond {
			next = now
		}
		began = next
	}
	return nil
}

// continueSteps raises the request numbers of a phase's steps, so that they follow the numbers that
// steps with the same names sent in earlier phases. This is needed after the user steered the run:
// a step may have sent more requests than planned, and the same messages would be sent again.
func (r *Run) continueSteps(phase int) {
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
				// Each segment has sent a different number of requests, so skip the highest number.
				// Skip whole rounds over all segments: a request number must stay in its segment.
				sent := max(before.next.Load()*n, s.firstRequest-before.firstRequest)
				s.firstRequest = before.firstRequest + (sent+n-1)/n*n
			}
		}
	}
}
