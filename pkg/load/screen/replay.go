package screen

import (
	"cmp"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// Replay is a Player of a finished run. It shows the seconds of the run again, at any speed. Counts
// and rates are those of the moment that is shown. Percentiles of steps come from the intervals
// that ended before this moment. The ledger, the verdict and percentiles that exist only for the
// whole run appear at the end.
type Replay struct {
	result *load.Result
	now    func() time.Time
	posAt  time.Time     // clock time at which pos was set
	pos    time.Duration // position in the run at the time posAt
	speed  float64
	paused bool

	end          time.Duration
	intervals    []load.Interval // sorted by their end
	phases       []string
	steps        map[stepKey]*replayStep
	nextInterval int // index of the first interval that has not been added to steps
	shown        *load.Snapshot
	shownSecond  int // the second that the snapshot shown describes
	done         chan struct{}
}

type stepKey struct{ phase, name string }

// replayStep holds the percentiles of a step, from its start to the position of the replay.
type replayStep struct {
	// hists holds a histogram for each kind of latency.
	hists   map[string]*hdrhistogram.Histogram
	latest  [3]load.Quantiles // lag, service, response
	changed bool
}

// NewReplay returns a replay that begins at the start of a run. If the parameter clock is nil, the
// replay uses time.Now.
func NewReplay(r *load.Result, clock func() time.Time) *Replay {
	if clock == nil {
		clock = time.Now
	}
	p := &Replay{result: r, now: clock, posAt: clock(), speed: 1, shownSecond: -1, done: make(chan struct{})}
	if n := len(r.Seconds); n > 0 {
		p.end = time.Duration(r.Seconds[n-1].Second+1) * time.Second
	}
	p.intervals = slices.Clone(r.Intervals)
	slices.SortStableFunc(p.intervals, func(a, b load.Interval) int { return cmp.Compare(a.Start+a.Length, b.Start+b.Length) })
	for i := range r.Seconds {
		if name := r.Seconds[i].Phase; !slices.Contains(p.phases, name) {
			p.phases = append(p.phases, name)
		}
	}
	p.resetSteps()
	return p
}

func (p *Replay) resetSteps() {
	p.steps, p.nextInterval = map[stepKey]*replayStep{}, 0
}

// Done implements Source. Its channel is never closed, because a replay stays open at its end.
func (p *Replay) Done() <-chan struct{} { return p.done }

// position returns the current position in the run.
func (p *Replay) position() time.Duration {
	pos := p.pos
	if !p.paused {
		pos += time.Duration(float64(p.now().Sub(p.posAt)) * p.speed)
	}
	return min(max(pos, 0), p.end)
}

func (p *Replay) moveTo(pos time.Duration) { p.pos, p.posAt = min(max(pos, 0), p.end), p.now() }

// Pause implements Player.
func (p *Replay) Pause(stopped bool) {
	p.moveTo(p.position())
	p.paused = stopped
}

// Paused implements Player.
func (p *Replay) Paused() bool { return p.paused }

// Seek implements Player.
func (p *Replay) Seek(by time.Duration) { p.moveTo(p.position() + by) }

// Speed implements Player. The speed stays between 1/8 and 64.
func (p *Replay) Speed(times float64) {
	p.moveTo(p.position())
	p.speed = min(max(p.speed*times, 0.125), 64)
}

// Rate implements Player.
func (p *Replay) Rate() float64 { return p.speed }

// Latest implements Source.
func (p *Replay) Latest() *load.Snapshot {
	second := int(p.position() / time.Second)
	if second == p.shownSecond {
		return p.shown
	}
	if second < p.shownSecond {
		p.resetSteps()
	}
	p.shownSecond = second
	p.shown = p.snapshotAt(second)
	return p.shown
}

// snapshotAt returns the snapshot of the run after the given number of seconds.
func (p *Replay) snapshotAt(second int) *load.Snapshot {
	r := p.result
	s := &load.Snapshot{
		At: r.Started.Add(time.Duration(second) * time.Second), Elapsed: time.Duration(second) * time.Second, Planned: r.Sending,
		State: load.StateRunning, Scenario: r.Scenario.Name,
	}
	n, _ := slices.BinarySearchFunc(r.Seconds, second, func(row load.SecondRow, at int) int { return cmp.Compare(row.Second, at) })
	rows := r.Seconds[:n]
	steps := map[stepKey]*load.Totals{}
	for i := range rows {
		addSecond(s, &rows[i], steps)
	}
	if n > 0 {
		last := &rows[n-1]
		sec := max(last.Length.Seconds(), 0.001)
		s.Rates = load.Rates{
			Intended: float64(last.Intended) / sec, Sent: float64(last.Sent) / sec, Acked: float64(last.Acked) / sec,
			Delivered: float64(last.Delivered) / sec, Failed: float64(last.Failed) / sec,
		}
		s.Health, s.Totals.Backlog = last.Health, last.Backlog
		s.Phase = p.phaseOf(last.Phase)
		if last.Draining {
			s.State = load.StateDraining
		}
	}
	s.Seconds = rows[max(0, n-load.KeepSeconds):]
	for i := range r.Heat {
		if r.Heat[i].Second < second && r.Heat[i].Second >= second-load.KeepSeconds {
			s.Heat = append(s.Heat, r.Heat[i])
		}
	}
	for _, m := range r.Markers {
		if m.At <= s.Elapsed {
			s.Markers = append(s.Markers, m)
		}
	}
	for _, e := range r.Errors {
		if !e.Last.After(s.At) {
			s.Errors = append(s.Errors, e)
		}
	}
	for _, t := range r.Thresholds {
		t.Known = t.Known && t.Since <= s.Elapsed
		s.Thresholds = append(s.Thresholds, t)
	}
	p.addIntervals(s.Elapsed)
	for i := range r.Steps {
		k := stepKey{r.Steps[i].Phase, r.Steps[i].Name}
		if steps[k] == nil {
			continue // the step has not begun
		}
		step := r.Steps[i].StepSnapshot
		if s.Elapsed < p.end {
			p.setQuantiles(&step, k)
			step.Totals, step.Rates = *steps[k], load.Rates{}
		}
		s.Steps = append(s.Steps, step)
	}
	if s.Elapsed >= p.end {
		s.State, s.Totals, s.Verdict, s.Server, s.Errors = load.StateDone, r.Totals, r.Verdict.Code, r.Server, r.Errors
	}
	return s
}

func addSecond(s *load.Snapshot, row *load.SecondRow, steps map[stepKey]*load.Totals) {
	t := &s.Totals
	t.Intended += row.Intended
	t.Sent += row.Sent
	t.Acked += row.Acked
	t.Delivered += row.Delivered
	t.Failed += row.Failed
	for j := range row.Steps {
		k := stepKey{row.Phase, row.Steps[j].Name}
		if steps[k] == nil {
			steps[k] = &load.Totals{}
		}
		steps[k].Sent += row.Steps[j].Sent
		steps[k].Acked += row.Steps[j].Acked
		steps[k].Failed += row.Steps[j].Failed
	}
}

func (p *Replay) phaseOf(name string) load.Phase {
	out := load.Phase{Name: name, Index: slices.Index(p.phases, name), Of: len(p.phases)}
	for i := range p.result.Seconds {
		row := &p.result.Seconds[i]
		if row.Phase == name && !row.Draining {
			if out.Ends == 0 {
				out.Began = time.Duration(row.Second) * time.Second
			}
			out.Ends = time.Duration(row.Second+1) * time.Second
		}
	}
	return out
}

// addIntervals adds the latencies of each interval that ended at the time t or earlier to the
// histograms of its step.
func (p *Replay) addIntervals(t time.Duration) {
	for ; p.nextInterval < len(p.intervals); p.nextInterval++ {
		l := &p.intervals[p.nextInterval]
		if l.Start+l.Length > t {
			return
		}
		h, err := load.DecodeHistogram(l.Histogram)
		if err != nil {
			continue // leave out a damaged histogram
		}
		k := stepKey{l.Phase, l.Step}
		s := p.steps[k]
		if s == nil {
			s = &replayStep{hists: map[string]*hdrhistogram.Histogram{}}
			p.steps[k] = s
		}
		if s.hists[l.Kind] == nil {
			s.hists[l.Kind] = load.NewHistogram()
		}
		s.hists[l.Kind].Merge(h)
		s.changed = true
	}
}

// setQuantiles sets the percentiles of a step to their values at the position of the replay.
func (p *Replay) setQuantiles(step *load.StepSnapshot, k stepKey) {
	step.EndToEnd, step.Lateness = load.Quantiles{}, load.Quantiles{}
	s := p.steps[k]
	if s == nil {
		step.Lag, step.Service, step.Response = load.Quantiles{}, load.Quantiles{}, load.Quantiles{}
		return
	}
	if s.changed {
		for i, kind := range []string{"lag", "service", "response"} {
			s.latest[i] = load.QuantilesOf(s.hists[kind])
		}
		s.changed = false
	}
	step.Lag, step.Service, step.Response = s.latest[0], s.latest[1], s.latest[2]
}
