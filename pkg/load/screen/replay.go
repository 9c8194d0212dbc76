package screen

import (
	"cmp"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/notifyd/notifyd/pkg/load"
)

// Replay is a Player of a run that is over: it shows its seconds again, at any
// speed. Counts and rates are what they were; percentiles of steps are those of
// the intervals until then, and of what was kept for the whole run alone they come
// at the end, as do the ledger and the verdict.
type Replay struct {
	r     *load.Result
	now   func() time.Time
	at    time.Time     // of the clock, when pos was true
	pos   time.Duration // of the run
	rate  float64
	still bool

	end       time.Duration
	intervals []load.Interval // by their end
	phases    []string
	steps     map[stepKey]*replayStep
	next      int // of intervals: the first that steps do not have
	shown     *load.Snapshot
	second    int // of shown
	done      chan struct{}
}

type stepKey struct{ phase, name string }

// replayStep is what a step has reached.
type replayStep struct {
	hists  map[string]*hdrhistogram.Histogram // by kind
	latest [3]load.Quantiles                  // lag, service, response
	dirty  bool
}

// NewReplay shows a run from its beginning. A nil clock is time.Now.
func NewReplay(r *load.Result, clock func() time.Time) *Replay {
	if clock == nil {
		clock = time.Now
	}
	p := &Replay{r: r, now: clock, at: clock(), rate: 1, second: -1, done: make(chan struct{})}
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
	p.rewind()
	return p
}

func (p *Replay) rewind() {
	p.steps, p.next = map[stepKey]*replayStep{}, 0
}

// Done is part of Source: a replay has no end.
func (p *Replay) Done() <-chan struct{} { return p.done }

// position is where the replay is now.
func (p *Replay) position() time.Duration {
	pos := p.pos
	if !p.still {
		pos += time.Duration(float64(p.now().Sub(p.at)) * p.rate)
	}
	return min(max(pos, 0), p.end)
}

func (p *Replay) move(pos time.Duration) { p.pos, p.at = min(max(pos, 0), p.end), p.now() }

// Pause is part of Player.
func (p *Replay) Pause(stopped bool) {
	p.move(p.position())
	p.still = stopped
}

// Paused is part of Player.
func (p *Replay) Paused() bool { return p.still }

// Seek is part of Player.
func (p *Replay) Seek(by time.Duration) { p.move(p.position() + by) }

// Speed is part of Player; the rate stays between 1/8 and 64.
func (p *Replay) Speed(times float64) {
	p.move(p.position())
	p.rate = min(max(p.rate*times, 0.125), 64)
}

// Rate is part of Player.
func (p *Replay) Rate() float64 { return p.rate }

// Latest is part of Source.
func (p *Replay) Latest() *load.Snapshot {
	second := int(p.position() / time.Second)
	if second == p.second {
		return p.shown
	}
	if second < p.second {
		p.rewind()
	}
	p.second = second
	p.shown = p.build(second)
	return p.shown
}

// build is the run when so many seconds were over.
func (p *Replay) build(second int) *load.Snapshot {
	r := p.r
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
		s.Phase = p.phase(last.Phase)
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
	p.reach(s.Elapsed)
	for i := range r.Steps {
		k := stepKey{r.Steps[i].Phase, r.Steps[i].Name}
		if steps[k] == nil {
			continue // it has not begun
		}
		step := r.Steps[i].StepSnapshot
		if s.Elapsed < p.end {
			p.until(&step, k)
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

func (p *Replay) phase(name string) load.Phase {
	out := load.Phase{Name: name, Index: slices.Index(p.phases, name), Of: len(p.phases)}
	for i := range p.r.Seconds {
		row := &p.r.Seconds[i]
		if row.Phase == name && !row.Draining {
			if out.Ends == 0 {
				out.Began = time.Duration(row.Second) * time.Second
			}
			out.Ends = time.Duration(row.Second+1) * time.Second
		}
	}
	return out
}

// reach adds the intervals that were over by then.
func (p *Replay) reach(t time.Duration) {
	for ; p.next < len(p.intervals); p.next++ {
		l := &p.intervals[p.next]
		if l.Start+l.Length > t {
			return
		}
		h, err := load.DecodeHistogram(l.Histogram)
		if err != nil {
			continue // a damaged one is left out
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
		s.dirty = true
	}
}

// until gives a step the percentiles it had by then.
func (p *Replay) until(step *load.StepSnapshot, k stepKey) {
	step.EndToEnd, step.Lateness = load.Quantiles{}, load.Quantiles{}
	s := p.steps[k]
	if s == nil {
		step.Lag, step.Service, step.Response = load.Quantiles{}, load.Quantiles{}, load.Quantiles{}
		return
	}
	if s.dirty {
		for i, kind := range []string{"lag", "service", "response"} {
			s.latest[i] = load.QuantilesOf(s.hists[kind])
		}
		s.dirty = false
	}
	step.Lag, step.Service, step.Response = s.latest[0], s.latest[1], s.latest[2]
}
