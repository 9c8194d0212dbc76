package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Remote sends the load of a run from other processes, which are called agents. Each agent runs one
// segment of the scenario. Once a second it sends a Frame that describes what it did. The run adds
// the frames to the recorders that workers of this process would use. So thresholds, screen,
// ledger, verdict and result are about all agents together. The number of intended messages is that
// of the whole scenario, so messages of a lost agent count as intended and not sent.
type Remote interface {
	// Run follows the agents until ctx ends. It calls the function feed with each frame of agent
	// i, to add the frame to the run. If the function returns an error of notify.KindInvalid, no
	// part of the frame was added. Run closes all connections before it returns.
	Run(ctx context.Context, feed func(i int, f *Frame) error)
	// Begin waits until all agents that are not lost have sent the previous phase. Then it
	// decides at which moment the phase begins, which is not before the planned moment, and sends
	// this moment to the agents. It returns an error if the phase cannot begin. Phase 0 can begin
	// only if every agent takes part.
	Begin(ctx context.Context, phase int, planned time.Time) (time.Time, error)
	// Sent waits until each agent has sent the phase or is lost. If ctx ends, Sent stops the agents
	// and waits for their last frames. It returns ErrNoAgents if every agent is lost.
	Sent(ctx context.Context, phase int) error
	// Steer sends the state of the arrivals to all agents. It does not wait for them.
	Steer(s SteerState)
	// Agents describes the agents. Agent i, counted from 0, runs segment i+1.
	Agents() []Agent
}

// ErrNoAgents ends a run after all its agents were lost.
var ErrNoAgents = &notify.Error{Kind: notify.KindUnavailable, Code: "agents_lost", Msg: "every agent was lost"}

// Agent is a process that sends one segment of the load of a run.
type Agent struct {
	Name        string        `json:"name"` // address of the agent, as the user gave it
	State       AgentState    `json:"state"`
	Host        string        `json:"host,omitempty"`
	Version     string        `json:"version,omitempty"`      // version of its notifyctl
	Offset      time.Duration `json:"clock_offset_ns"`        // its clock minus the clock of the controller
	Uncertainty time.Duration `json:"clock_uncertainty_ns"`   // largest error of Offset, in both directions
	LostAt      time.Duration `json:"lost_at_ns,omitempty"`   // since the run's start
	LostBecause string        `json:"lost_because,omitempty"` // empty: the agent was not lost
	Sent        int64         `json:"sent"`                   // messages that it reported as sent
	// NotSent is set for a lost agent. It is the number of due messages of the agent's segment that
	// the agent did not report as sent.
	NotSent int64   `json:"not_sent,omitempty"`
	Rate    float64 `json:"rate"` // messages/s sent in its last full second
	CPU     float64 `json:"cpu"`  // cores that its process used in its last full second
	CPUs    float64 `json:"cpus"` // cores that its process may use
	// Verdict is the verdict on the agent's own figures. GENERATOR_BOUND means that this agent is
	// the limit.
	Verdict string `json:"verdict,omitempty"`
}

// AgentState is the state of an agent.
type AgentState string

// The states of an agent.
const (
	AgentReady   AgentState = "ready" // connected, waits for the start
	AgentRunning AgentState = "running"
	AgentDone    AgentState = "done" // its last frame has arrived
	AgentLost    AgentState = "lost" // it died, or it was silent for too long
)

// feeds holds the figures that the agents sent to the run.
type feeds struct {
	run    *Run
	remote Remote

	mu     sync.Mutex
	agents []feed
	shown  time.Duration // result of the last call of elapsed, which never decreases
	over   bool          // true: all last frames have arrived
}

// feed holds the latest figures of one agent.
type feed struct {
	at       time.Duration // end of its last frame, since the run's start
	health   Health
	evidence Evidence
	rate     float64         // messages/s in its last full second
	cpu      float64         // cores used in its last full second
	sent     []int64         // messages sent, by step
	ended    []time.Duration // by step: when the step ended, since the run's start; 0: not yet
}

func newFeeds(r *Run) *feeds {
	f := &feeds{run: r, remote: r.cfg.Remote}
	for range f.remote.Agents() {
		f.agents = append(f.agents, feed{sent: make([]int64, len(r.steps)), ended: make([]time.Duration, len(r.steps))})
	}
	return f
}

// addFrame adds a frame of agent i to the run. If it returns an error of notify.KindInvalid, no
// part of the frame was added. Different goroutines may call addFrame at the same time for
// different agents, but not for the same agent.
func (fs *feeds) addFrame(i int, f *Frame) error {
	r := fs.run
	if len(f.Steps) > len(r.steps) {
		return notify.Invalid("bad_frame", "steps", fmt.Sprintf("the frame has %d steps, but the run has only %d", len(f.Steps), len(r.steps)))
	}
	wins := make([]*window, len(f.Steps))
	for j := range f.Steps {
		one := &f.Steps[j]
		if one.Step < 0 || one.Step >= len(r.steps) {
			return notify.Invalid("bad_frame", "step", fmt.Sprintf("the step index is %d, but must be from 0 to %d", one.Step, len(r.steps)-1))
		}
		var err error
		if wins[j], err = one.window(); err != nil {
			return err
		}
	}
	if err := r.promised.addEncoded(f.Promises, r.steps); err != nil {
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
	if length := f.At - own.at; length >= time.Second/2 { // the last frame may cover less than a second
		own.rate, own.cpu = PerSecond(sent, length), f.Health.CPU
	}
	own.at, own.health, own.evidence = f.At, f.Health, f.Evidence
	return nil
}

// silence is how long the figures of a second wait for a late frame.
const silence = 2 * time.Second

// elapsed returns the run time up to which the figures are complete. The parameter now is the
// current run time. The result is normally the end of the newest frame. If this frame ended longer
// ago than the duration silence, the result is the current run time minus silence. After the last
// frames of all agents have arrived, it is the current run time itself. The result never decreases.
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

// complete reports whether every running agent has sent the frame of one second. The parameter
// begin is the run time at which this second begins.
func (fs *feeds) complete(begin time.Duration) bool {
	list := fs.remote.Agents()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range list {
		if list[i].State == AgentRunning && fs.agents[i].at < begin+500*time.Millisecond && !fs.over {
			return false
		}
	}
	return true
}

// health combines the health of the agents. It leaves out the agents whose last frame ended at
// the run time begin or earlier. For pauses, lateness, shares and the machine's CPU it takes the
// highest value of all agents. For other figures it takes the sum.
func (fs *feeds) health(begin time.Duration) (sum Health) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i := range fs.agents {
		if h := &fs.agents[i].health; fs.agents[i].at > begin {
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

// stepEnd returns the run time at which the last agent ended a step. It returns the current run
// time, the parameter now, if no agent has ended the step, or if an agent that is not lost still
// runs it.
func (fs *feeds) stepEnd(s *stepRun, now time.Duration) (last time.Duration) {
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

// markAllSent records that the last frames of all agents have arrived.
func (fs *feeds) markAllSent() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.over = true
}

// waitSent returns a channel that is closed when the agents have sent a phase. It returns nil if
// this process sends the load. It starts a goroutine and adds it to the wait group senders.
func (fs *feeds) waitSent(ctx context.Context, phase int, senders *sync.WaitGroup) <-chan struct{} {
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

// list describes the agents, with the figures of their frames. It returns nil if this process sends
// the load.
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

// unreported returns how many messages lost agents may have sent after their last frames. Such
// messages are not unexpected if they arrive. The parameter came is the number of all messages that
// arrived. If a step is a closed loop, it has no schedule, so it is not known what a lost agent has
// sent. Then unreported adds the number of all messages that arrived, so that no message is
// unexpected.
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

// replaceEvidence replaces the evidence in e by the evidence that the agents sent. Judge then
// decides for each agent whether its generator is the limit. The process of the controller sends no
// load, so its figures do not count.
func (fs *feeds) replaceEvidence(e *Evidence) {
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
			one.Lost = fmt.Sprintf("was lost at %v: %s; it had 1/%d of the load, and did not report %d of its messages as sent",
				a.LostAt.Round(100*time.Millisecond), a.LostBecause, len(list), a.NotSent)
		}
		e.Agents = append(e.Agents, one)
	}
}
