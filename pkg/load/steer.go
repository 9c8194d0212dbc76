package load

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// steer is what people do to the arrivals of a run that goes on: they pause them, and
// change their pace. It is a clock by which the schedules go instead of the run's:
// it stands while paused, and goes faster where more is to come. What has become due
// stays due; what a phase has left when its time is over is not sent.
type steer struct {
	mu      sync.Mutex
	bends   []SteerChange   // never empty, the first at 0
	clocks  []time.Duration // of the schedules, at each bend
	pace    float64         // against the scenario's, while it is not paused
	paused  bool
	changed chan struct{} // closed at the next change
	bent    atomic.Bool   // it was changed once: until then nobody needs to ask for mu
}

// SteerChange is one change by hand: from then on messages come at Pace times the
// scenario's rate; 0: none.
type SteerChange struct {
	At   time.Duration `json:"at_ns"` // since the run's start
	Pace float64       `json:"pace"`
}

// SteerState is how the arrivals of a run are steered at the moment.
type SteerState struct {
	Pace    float64 `json:"pace"`              // of the rate, while it is not paused; 1: the scenario's
	Paused  bool    `json:"paused,omitempty"`  // nothing becomes due
	Changed bool    `json:"changed,omitempty"` // it was steered once: its figures are of no rate that was planned
}

// Paces beyond these are of another scenario.
const (
	paceLeast = 0.01
	paceMost  = 100
)

func newSteer() *steer {
	return &steer{bends: []SteerChange{{0, 1}}, clocks: []time.Duration{0}, pace: 1, changed: make(chan struct{})}
}

// set changes the pace from a moment on, which is not before the last change.
func (s *steer) set(at time.Duration, paused bool, pace float64) (was, is float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused, s.pace = paused, min(max(pace, paceLeast), paceMost)
	if is = s.pace; paused {
		is = 0
	}
	last := s.bends[len(s.bends)-1]
	if was = last.Pace; was == is {
		return was, is
	}
	at = max(at, last.At)
	s.clocks = append(s.clocks, s.clock(at))
	s.bends = append(s.bends, SteerChange{at, is})
	s.bent.Store(true)
	close(s.changed)
	s.changed = make(chan struct{})
	return was, is
}

// clock is the schedules' time at t since the run's start; mu is held.
func (s *steer) clock(t time.Duration) time.Duration {
	i := len(s.bends) - 1
	for i > 0 && s.bends[i].At > t {
		i--
	}
	return s.clocks[i] + time.Duration(float64(t-s.bends[i].At)*s.bends[i].Pace)
}

// when is the run's time at which the schedules' is c: never while they stand before
// it. A change closes changed.
func (s *steer) when(begin, c time.Duration) (t time.Duration, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == never {
		return never, s.changed
	}
	c += s.clock(begin)
	i := len(s.bends) - 1
	for i > 0 && s.clocks[i] > c {
		i--
	}
	// Where it stood, what was due at that very moment was so when that began; but if
	// it stood when begin came, when it went on.
	first := 0
	for first+1 < len(s.bends) && s.bends[first+1].At <= begin {
		first++
	}
	for i > first && s.clocks[i] == c {
		i--
	}
	for s.bends[i].Pace == 0 && i+1 < len(s.bends) && s.clocks[i+1] == c {
		i++
	}
	b := s.bends[i]
	if b.Pace == 0 {
		return never, s.changed
	}
	d := float64(c-s.clocks[i]) / b.Pace
	if d > math.MaxInt64/4 {
		return never, s.changed
	}
	return max(b.At+time.Duration(d)-begin, 0), s.changed
}

// over is how far the schedules' time went from begin for t.
func (s *steer) over(begin, t time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock(begin+t) - s.clock(begin)
}

// state is how it is steered, and what ends when that changes.
func (s *steer) state() (st SteerState, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SteerState{Pace: s.pace, Paused: s.paused, Changed: len(s.bends) > 1}, s.changed
}

// changes are those by hand.
func (s *steer) changes() []SteerChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bends[1:])
}

// steeredText says in a few words what was done until the run was so long; empty:
// nothing.
func steeredText(changes []SteerChange, length time.Duration) string {
	if len(changes) == 0 {
		return ""
	}
	paused, other := time.Duration(0), false
	for i, c := range changes {
		to := length
		if i+1 < len(changes) {
			to = changes[i+1].At
		}
		if c.Pace == 0 {
			paused += max(to-c.At, 0)
		}
		other = other || c.Pace != 0 && c.Pace != 1
	}
	var parts []string
	if paused > 0 {
		parts = append(parts, fmt.Sprintf("paused for %v", paused.Round(100*time.Millisecond)))
	}
	if other {
		parts = append(parts, "at another rate")
	}
	return strings.Join(parts, " and ")
}

// Steerable reports whether Pause and Pace do anything: Config.Steerable, and the run
// is no segment, whose others would know nothing of it, or is an agent's.
func (r *Run) Steerable() bool { return r.steer != nil }

// Pause stops the arrivals, or lets them go on: while paused nothing becomes due.
// What is due is sent, and the phases end when they were planned to. The run's
// verdict is Inconclusive from the first change, and thresholds but those of what
// was lost or repeated have no figure. It may be called from any goroutine.
func (r *Run) Pause(paused bool) {
	if r.steer == nil {
		return
	}
	st, _ := r.steer.state()
	r.steerTo(paused, st.Pace)
}

// Pace multiplies the rate of all steps by times, within 0.01 and 100 times that of
// the scenario: their schedules go so much faster. Steps without a rate do not
// notice. Otherwise it is like Pause.
func (r *Run) Pace(times float64) {
	if r.steer == nil || !(times > 0) {
		return
	}
	st, _ := r.steer.state()
	pace := st.Pace * times
	if math.Abs(pace-1) < 0.005 { // up and down again
		pace = 1
	}
	r.steerTo(st.Paused, pace)
}

// Steer makes the arrivals of an agent's run go as its controller's do.
func (r *Run) Steer(s SteerState) {
	if r.steer != nil {
		r.steerTo(s.Paused, s.Pace)
	}
}

func (r *Run) steerTo(paused bool, pace float64) {
	if r.latest.Load() == nil { // it has not begun
		return
	}
	at := r.since(time.Now())
	was, is := r.steer.set(at, paused, pace)
	if r.feeds != nil {
		st, _ := r.steer.state()
		r.cfg.Remote.Steer(st)
	}
	switch {
	case was == is:
	case is == 0:
		r.c.mark(Marker{At: at, Kind: "steer", Text: "paused"})
	default:
		r.c.mark(Marker{At: at, Kind: "steer", Text: fmt.Sprintf("rate %.0f%%", is*100)})
	}
}

// at is when request g of the step is due, since it began; changed: that may change.
func (s *stepRun) at(g int64) (due time.Duration, changed <-chan struct{}) {
	due = s.sched.at(g)
	if s.run.steer == nil {
		return due, nil
	}
	return s.run.steer.when(time.Duration(s.begin.Load()), due)
}

// was is when request g, which has been due, was that: at for each of many messages.
func (s *stepRun) was(g int64) time.Duration {
	if st := s.run.steer; st != nil && st.bent.Load() {
		due, _ := st.when(time.Duration(s.begin.Load()), s.sched.at(g))
		return due
	}
	return s.sched.at(g)
}

// by is how many requests of the phase are due by t since the step began.
func (s *stepRun) by(t time.Duration) int64 {
	if s.run.steer != nil {
		if s.length != never {
			t = min(t, s.length-1)
		}
		t = s.run.steer.over(time.Duration(s.begin.Load()), t)
		return min(s.sched.by(t), s.most)
	}
	return min(s.sched.by(t), s.last)
}

// until is when the step's last requests are due at the latest: without a steer, all
// that there are.
func (s *stepRun) until() int64 {
	if s.run.steer != nil {
		return s.most
	}
	return s.last
}
