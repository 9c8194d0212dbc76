package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Remote sends the load of a run from other processes, its agents. Each agent runs one
// segment of the scenario and says once a second, in a Frame, what it did. The run puts
// frames where the workers of this process would have recorded the same, so thresholds,
// the screen, the ledger, the verdict and the result are of all agents together. What is
// intended follows from the whole scenario: the share of an agent that died is intended
// and not sent.
type Remote interface {
	// Run follows the agents until ctx ends, and feeds the i-th one's frames to the run:
	// each whole, or with an error of notify.KindInvalid not at all. It closes all
	// connections before it returns.
	Run(ctx context.Context, feed func(i int, f *Frame) error)
	// Begin returns when phase i begins, once all agents have sent the phase before it
	// and know the same moment: not before planned. It returns an error if a phase
	// cannot begin; phase 0 begins with every agent or not at all.
	Begin(ctx context.Context, phase int, planned time.Time) (time.Time, error)
	// Sent returns once each agent has sent phase i or is lost. When ctx ends it stops
	// the agents and waits for their last frames. It returns ErrNoAgents if every agent
	// is lost.
	Sent(ctx context.Context, phase int) error
	// Steer tells all agents how the arrivals go from now on. It does not wait.
	Steer(s SteerState)
	// Agents describes the agents: segment i+1 of n is that of the i-th.
	Agents() []Agent
}

// ErrNoAgents ends a run whose agents are all lost.
var ErrNoAgents = &notify.Error{Kind: notify.KindUnavailable, Code: "agents_lost", Msg: "every agent was lost"}

// Agent is one process that sends a part of a run's load.
type Agent struct {
	Name        string        `json:"name"` // its address, as the user gave it
	State       AgentState    `json:"state"`
	Host        string        `json:"host,omitempty"`
	Version     string        `json:"version,omitempty"`      // of its notifyctl
	Offset      time.Duration `json:"clock_offset_ns"`        // its clock less that of the controller
	Uncertainty time.Duration `json:"clock_uncertainty_ns"`   // of Offset, either way
	LostAt      time.Duration `json:"lost_at_ns,omitempty"`   // since the run's start
	LostBecause string        `json:"lost_because,omitempty"` // empty: it was not lost
	Sent        int64         `json:"sent"`                   // messages it reported
	NotSent     int64         `json:"not_sent,omitempty"`     // of a lost agent: messages of its share that it did not report
	Rate        float64       `json:"rate"`                   // messages/s sent in its last full second
	CPU         float64       `json:"cpu"`                    // cores its process used in its last full second
	CPUs        float64       `json:"cpus"`                   // cores it may use
	Verdict     string        `json:"verdict,omitempty"`      // of its own figures: GENERATOR_BOUND says that it is the limit
}

// AgentState says what an agent does.
type AgentState string

// The states of an agent.
const (
	AgentReady   AgentState = "ready" // connected, waits for the start
	AgentRunning AgentState = "running"
	AgentDone    AgentState = "done" // its last frame is here
	AgentLost    AgentState = "lost" // it died, or was silent for too long
)

// feeds are the figures that agents sent to the run.
type feeds struct {
	run    *Run
	remote Remote

	mu     sync.Mutex
	agents []feed
	shown  time.Duration // what elapsed returned last: it does not go back
	over   bool          // all frames are here
}

// feed is what one agent said last.
type feed struct {
	at       time.Duration // of its last frame
	health   Health
	evidence Evidence
	rate     float64 // of its last full second, as is cpu
	cpu      float64
	sent     []int64         // by step
	ended    []time.Duration // by step, since the run's start; 0: not yet
}

func newFeeds(r *Run) *feeds {
	f := &feeds{run: r, remote: r.cfg.Remote}
	for range f.remote.Agents() {
		f.agents = append(f.agents, feed{sent: make([]int64, len(r.steps)), ended: make([]time.Duration, len(r.steps))})
	}
	return f
}

// feed adds a frame of the i-th agent to the run, all of it or, with an error of
// notify.KindInvalid, nothing. It may be called from any goroutine, for one agent from one
// at a time.
func (fs *feeds) feed(i int, f *Frame) error {
	r := fs.run
	if len(f.Steps) > len(r.steps) {
		return notify.Invalid("bad_frame", "steps", fmt.Sprintf("are %d, and the run has %d", len(f.Steps), len(r.steps)))
	}
	wins := make([]*window, len(f.Steps))
	for j := range f.Steps {
		one := &f.Steps[j]
		if one.Step < 0 || one.Step >= len(r.steps) {
			return notify.Invalid("bad_frame", "step", fmt.Sprintf("%d is none of %d", one.Step, len(r.steps)))
		}
		var err error
		if wins[j], err = one.window(); err != nil {
			return err
		}
	}
	if err := r.promised.put(f.Promises, r.steps); err != nil {
		return err
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	own := &fs.agents[i]
	sent := int64(0)
	for j, w := range wins {
		s, at := r.steps[f.Steps[j].Step], f.Steps[j].Step
		rec := s.recs[i%len(s.recs)]
		rec.mu.Lock()
		rec.win.merge(w)
		rec.mu.Unlock()
		s.lapsed.Add(w.failed)
		s.asked.Add(w.sent)
		if s.sink != nil {
			s.sink.taken.Add(w.acked)
		}
		own.sent[at] += w.sent
		own.ended[at] = f.Steps[j].Ended
		sent += w.sent
	}
	if length := f.At - own.at; length >= time.Second/2 { // the last one may be short
		own.rate, own.cpu = PerSecond(sent, length), f.Health.CPU
	}
	own.at, own.health, own.evidence = f.At, f.Health, f.Evidence
	return nil
}

// silence is how long the run's figures wait for a frame that is late.
const silence = 2 * time.Second

// elapsed is the end of the newest frame, unless it is older than silence, and now once
// the last frames are here. It does not go back.
func (fs *feeds) elapsed(now time.Duration) time.Duration {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	newest := now - silence
	for i := range fs.agents {
		newest = max(newest, fs.agents[i].at)
	}
	if fs.over {
		newest = now
	}
	fs.shown = max(fs.shown, min(newest, now))
	return fs.shown
}

// complete reports whether every agent that is not lost or done has told of the second
// after last.
func (fs *feeds) complete(last time.Duration) bool {
	list := fs.remote.Agents()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range list {
		if list[i].State == AgentRunning && fs.agents[i].at < last+500*time.Millisecond && !fs.over {
			return false
		}
	}
	return true
}

// health adds up that of the agents with a frame after last.
func (fs *feeds) health(last time.Duration) (sum Health) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range fs.agents {
		if h := &fs.agents[i].health; fs.agents[i].at > last {
			sum.CPU, sum.CPUs, sum.GCCPU, sum.RSS = sum.CPU+h.CPU, sum.CPUs+h.CPUs, sum.GCCPU+h.GCCPU, sum.RSS+h.RSS
			sum.Goroutines, sum.Sockets = sum.Goroutines+h.Goroutines, sum.Sockets+h.Sockets
			sum.CalibratedRate += h.CalibratedRate
			sum.GCPause, sum.LagP99 = max(sum.GCPause, h.GCPause), max(sum.LagP99, h.LagP99)
			sum.Steal, sum.MachineCPU = max(sum.Steal, h.Steal), max(sum.MachineCPU, h.MachineCPU)
			sum.Busy, sum.GeneratorShare = max(sum.Busy, h.Busy), max(sum.GeneratorShare, h.GeneratorShare)
		}
	}
	return sum
}

// ended returns when the last agent ended a step. It is now if an agent that is not lost
// has not said so yet.
func (fs *feeds) ended(s *stepRun, now time.Duration) (last time.Duration) {
	list, step := fs.remote.Agents(), slices.Index(fs.run.steps, s)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range fs.agents {
		switch at := fs.agents[i].ended[step]; {
		case at > 0:
			last = max(last, at)
		case list[i].State != AgentLost:
			return now
		}
	}
	if last == 0 {
		return now
	}
	return last
}

// allSent says that the agents' last frames are here.
func (fs *feeds) allSent() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.over = true
}

// wait closes the channel it returns once the agents have sent phase i; of a run that
// sends itself it returns nil. senders waits for its goroutine.
func (fs *feeds) wait(ctx context.Context, phase int, senders *sync.WaitGroup) <-chan struct{} {
	if fs == nil {
		return nil
	}
	sent := make(chan struct{})
	senders.Go(func() {
		defer close(sent)
		if err := fs.remote.Sent(ctx, phase); err != nil {
			fs.run.why(err.Error())
			fs.run.c.abort()
		}
	})
	return sent
}

// list describes the agents, with what their frames said; none of a run that sends
// itself.
func (fs *feeds) list() []Agent {
	if fs == nil {
		return nil
	}
	list := slices.Clone(fs.remote.Agents())
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range list {
		a, f := &list[i], &fs.agents[i]
		for _, n := range f.sent {
			a.Sent += n
		}
		a.CPU, a.CPUs = f.cpu, f.health.CPUs
		if a.State == AgentRunning {
			a.Rate = f.rate
		}
		if f.evidence.Seconds > 0 {
			v := Judge(&f.evidence)
			a.Verdict = v.Code
		}
		if a.State == AgentLost {
			a.NotSent = fs.run.notSent(Segment{i + 1, len(list)}, f.sent)
		}
	}
	return list
}

// unreported is how many messages agents that were lost may have sent after their last
// frames: what comes of them is no surprise. Where a step has no schedule that says how
// many these are, it is all that came.
func (fs *feeds) unreported(came int64) (n int64) {
	closed := fs != nil && slices.ContainsFunc(fs.run.steps, func(s *stepRun) bool { return s.sched == nil })
	for _, a := range fs.list() {
		if a.State == AgentLost {
			n += a.NotSent
			if closed {
				n += came
			}
		}
	}
	return n
}

// gather adds what the agents say of themselves to the evidence. Whether the generator is
// the limit is for each agent to say: what the controller's own process did counts for
// nothing.
func (fs *feeds) gather(e *Evidence) {
	list := fs.list()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	e.Late, e.Starved, e.Share, e.Queued, e.Seconds = 0, 0, 0, 0, 0
	for i := range list {
		own := fs.agents[i].evidence
		e.Queued += own.Queued
		e.Seconds += own.Seconds
		one := AgentEvidence{Name: list[i].Name, Own: own}
		if a := &list[i]; a.State == AgentLost {
			one.Lost = fmt.Sprintf("was lost at %v: %s; it had 1/%d of the load, of which %d messages were not sent or are not known to be",
				a.LostAt.Round(100*time.Millisecond), a.LostBecause, len(list), a.NotSent)
		}
		e.Agents = append(e.Agents, one)
	}
}
