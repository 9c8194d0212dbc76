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

// steer holds the changes that a user made to the arrivals of a run: pauses, and changes of the
// pace. It has a clock, which the schedules follow instead of the time of the run. The clock stops
// while the run is paused, and runs faster or slower if the pace changes. A request that has become
// due stays due, even if the run is then paused. A request that is not due when its phase ends is
// not sent.
type steer struct {
	mu            sync.Mutex      // guards the fields below, except wasChanged
	paceChanges   []SteerChange   // never empty; the first entry has At 0 and Pace 1
	clockAtChange []time.Duration // element i: time of this clock at paceChanges[i]
	pace          float64         // factor on the rate of the scenario while the run is not paused
	paused        bool            // true: the clock stands still
	changed       chan struct{}   // closed and replaced at each change
	wasChanged    atomic.Bool     // set at the first change; until then readers need not lock mu
}

// SteerChange is one change that a user made. After the time At, messages become due at Pace times
// the rate of the scenario. If Pace is 0, no message becomes due.
type SteerChange struct {
	At   time.Duration `json:"at_ns"` // since the run's start
	Pace float64       `json:"pace"`
}

// SteerState describes how the arrivals of a run are steered at the moment.
type SteerState struct {
	Pace   float64 `json:"pace"`             // factor on the rate while the run is not paused; 1: the rate of the scenario
	Paused bool    `json:"paused,omitempty"` // true: no message becomes due
	// Changed is true if the run has been steered. Then its figures do not belong to a planned
	// rate.
	Changed bool `json:"changed,omitempty"`
}

// The bounds of the pace.
const (
	minPace = 0.01
	maxPace = 100
)

func newSteer() *steer {
	return &steer{paceChanges: []SteerChange{{0, 1}}, clockAtChange: []time.Duration{0}, pace: 1, changed: make(chan struct{})}
}

// setPace changes the pace. The parameter moment is the run time of the change; if the last change
// was later, the new change happens at the same time as the last one. setPace returns the old and
// the new pace. The pace of a paused run is 0.
func (s *steer) setPace(moment time.Duration, paused bool, pace float64) (oldPace, newPace float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused, s.pace = paused, min(max(pace, minPace), maxPace)
	if newPace = s.pace; paused {
		newPace = 0
	}
	last := s.paceChanges[len(s.paceChanges)-1]
	if oldPace = last.Pace; oldPace == newPace {
		return oldPace, newPace
	}
	moment = max(moment, last.At)
	s.clockAtChange = append(s.clockAtChange, s.clockAt(moment))
	s.paceChanges = append(s.paceChanges, SteerChange{moment, newPace})
	s.wasChanged.Store(true)
	close(s.changed)
	s.changed = make(chan struct{})
	return oldPace, newPace
}

// clockAt returns what the clock of s shows when the time t has passed since the run's start. The
// caller holds s.mu.
func (s *steer) clockAt(t time.Duration) time.Duration {
	i := len(s.paceChanges) - 1
	for i > 0 && s.paceChanges[i].At > t {
		i--
	}
	return s.clockAtChange[i] + time.Duration(float64(t-s.paceChanges[i].At)*s.paceChanges[i].Pace)
}

// runTimeOf returns how much run time passes from the run time begin until the clock of s has
// advanced by c. If the clock stops before that, it returns the constant never. The channel changed
// is closed at the next change of the pace; then the caller must call runTimeOf again.
func (s *steer) runTimeOf(begin, c time.Duration) (t time.Duration, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == never {
		return never, s.changed
	}
	c += s.clockAt(begin)
	i := len(s.paceChanges) - 1
	for i > 0 && s.clockAtChange[i] > c {
		i--
	}
	// The clock may have stood still at the time c for a while. Normally the request became due
	// when the clock stopped. But if the clock already stood still at the run time begin, the
	// request became due when the clock started again.
	first := 0
	for first+1 < len(s.paceChanges) && s.paceChanges[first+1].At <= begin {
		first++
	}
	for i > first && s.clockAtChange[i] == c {
		i--
	}
	for s.paceChanges[i].Pace == 0 && i+1 < len(s.paceChanges) && s.clockAtChange[i+1] == c {
		i++
	}
	b := s.paceChanges[i]
	if b.Pace == 0 {
		return never, s.changed
	}
	d := float64(c-s.clockAtChange[i]) / b.Pace
	if d > math.MaxInt64/4 {
		return never, s.changed
	}
	return max(b.At+time.Duration(d)-begin, 0), s.changed
}

// clockBetween returns how far the clock advances in the time t after the run time begin.
func (s *steer) clockBetween(begin, t time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clockAt(begin+t) - s.clockAt(begin)
}

// state returns how the run is steered now, and a channel that is closed at the next change.
func (s *steer) state() (st SteerState, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SteerState{Pace: s.pace, Paused: s.paused, Changed: len(s.paceChanges) > 1}, s.changed
}

// changes returns the changes that the user made.
func (s *steer) changes() []SteerChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.paceChanges[1:])
}

// steeredText describes the changes in a run of this length in a few words. It returns "" if there
// were no changes.
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

// Steerable reports whether Pause and Pace have an effect. They need Config.Steerable. Normally the
// run of a segment cannot be steered, because the other segments would not follow. The run of an
// agent can be steered, because its controller steers all agents together.
func (r *Run) Steerable() bool { return r.steer != nil }

// Pause stops the arrivals if its parameter is true, and lets them continue if it is false. While
// the run is paused, no message becomes due. Messages that are already due are still sent, and
// phases end when planned. After the first change the run does not measure the planned rate any
// more, so its verdict is Inconclusive. Its thresholds then have no value at the end, except
// thresholds about guarantees that hold at any rate, such as "lost == 0". Any goroutine may call
// Pause.
func (r *Run) Pause(paused bool) {
	if r.steer == nil {
		return
	}
	st, _ := r.steer.state()
	r.steerTo(paused, st.Pace)
}

// Pace multiplies the rate of all steps by the given factor. The rate stays between 0.01 times and
// 100 times the rate of the scenario. Steps without a rate do not change. The verdict and the
// thresholds change as with Pause. Any goroutine may call Pace.
func (r *Run) Pace(factor float64) {
	if r.steer == nil || !(factor > 0) {
		return
	}
	st, _ := r.steer.state()
	pace := st.Pace * factor
	if math.Abs(pace-1) < 0.005 { // after an increase and a decrease that cancel each other
		pace = 1
	}
	r.steerTo(st.Paused, pace)
}

// Steer sets the state of the arrivals. The run of an agent gets the state of its controller's run.
func (r *Run) Steer(s SteerState) {
	if r.steer != nil {
		r.steerTo(s.Paused, s.Pace)
	}
}

func (r *Run) steerTo(paused bool, pace float64) {
	if r.latest.Load() == nil { // the run has not begun
		return
	}
	at := r.since(time.Now())
	was, is := r.steer.setPace(at, paused, pace)
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

// dueOf returns when request g of the step is due, counted from the start of the step. The channel
// changed is closed when the due time may have changed. It is nil if the run cannot be steered.
func (s *stepRun) dueOf(g int64) (due time.Duration, changed <-chan struct{}) {
	due = s.sched.dueTime(g)
	if s.run.steer == nil {
		return due, nil
	}
	return s.run.steer.runTimeOf(time.Duration(s.begin.Load()), due)
}

// pastDueOf returns when request g became due. The request must already be due. pastDueOf is fast
// enough to be called for each of many messages, because it returns no channel.
func (s *stepRun) pastDueOf(g int64) time.Duration {
	if st := s.run.steer; st != nil && st.wasChanged.Load() {
		due, _ := st.runTimeOf(time.Duration(s.begin.Load()), s.sched.dueTime(g))
		return due
	}
	return s.sched.dueTime(g)
}

// countDue returns how many requests of the phase are due when the time t has passed since the step
// began.
func (s *stepRun) countDue(t time.Duration) int64 {
	if s.run.steer != nil {
		if s.length != never {
			t = min(t, s.length-1)
		}
		t = s.run.steer.clockBetween(time.Duration(s.begin.Load()), t)
		return min(s.sched.countDue(t), s.mostRequests)
	}
	return min(s.sched.countDue(t), s.plannedRequests)
}

// requestLimit returns how many requests the step may send in this phase at most: the planned
// requests, or more if the run can be steered.
func (s *stepRun) requestLimit() int64 {
	if s.run.steer != nil {
		return s.mostRequests
	}
	return s.plannedRequests
}
