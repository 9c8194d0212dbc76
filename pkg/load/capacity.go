package load

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// Search finds the highest rate that holds. A rate holds if a trial with this rate meets all
// conditions of the objective. Search doubles the rate until a rate does not hold. Then it halves
// the interval between the highest rate that held and the lowest rate that did not hold, until this
// interval is small. At last it confirms the result with a longer trial. Search itself runs
// nothing: call Next to get the rate of the next trial, and Tell to report the outcome. Repeat both
// calls until Next returns done.
type Search struct {
	from, most, within, least float64

	// highestHeld is the highest rate that held, and lowestMissed the lowest rate that did not
	// hold. 0: no such rate yet.
	highestHeld, lowestMissed float64
	nextRate                  float64 // rate of the next trial
	confirm                   bool    // true: the next trial is the long trial that confirms the rate
	done                      bool
	limit                     Limit
	trials                    int
}

// Limit says why a search ended.
type Limit string

// The limits.
const (
	LimitObjective Limit = "objective" // a higher rate does not hold
	LimitGenerator Limit = "generator" // this generator cannot offer a higher rate
	LimitMost      Limit = "most"      // the search reached objective.most
	LimitNothing   Limit = "nothing"   // not even the lowest rate held
	LimitUnsteady  Limit = "unsteady"  // rates held in short trials, but no rate was confirmed
	LimitStopped   Limit = "stopped"   // the user stopped the search
)

// Trial is the outcome of one run with one rate.
type Trial struct {
	Rate    float64 `json:"rate"`
	Confirm bool    `json:"confirm,omitempty"`
	Held    bool    `json:"held"`
	// GeneratorBound is true if the generator was the limit. Then the trial shows nothing about the
	// server.
	GeneratorBound bool `json:"generator_bound,omitempty"`
	// Disturbed is true if the generator was disturbed. Then the rate is tried again.
	Disturbed bool   `json:"disturbed,omitempty"`
	Why       string `json:"why,omitempty"` // why the rate did not hold
}

// maxTrials is the highest number of trials of a search. Without this limit a search might never
// end, because noise can make its trials contradict each other.
const maxTrials = 40

// NewSearch returns a search with these parameters:
//   - from is the first rate. It must be above 0.
//   - most is the highest rate that the search tries. 0 means no limit.
//   - least is the lowest rate that the search tries. 0 means 1/1024 of the first rate.
//   - within is the precision: the search ends when the lowest rate that does not hold is this near
//     to the highest rate that holds. 0.05 means 5%. NewSearch limits it to 0.001 to 1.
func NewSearch(from, most, within, least float64) *Search {
	if most <= 0 {
		most = math.Inf(1)
	}
	if least <= 0 {
		least = from / 1024
	}
	from = min(from, most)
	return &Search{from: from, most: most, within: min(max(within, 0.001), 1), least: min(least, from), nextRate: from}
}

// Next returns the rate to try. The result confirm is true if the trial is the long trial that
// confirms the rate. The result done is true if the search has ended.
func (s *Search) Next() (rate float64, confirm, done bool) { return s.nextRate, s.confirm, s.done }

// Found returns the highest rate that was confirmed, and the reason why no higher rate was found.
// The rate is 0 if no rate was confirmed.
func (s *Search) Found() (rate float64, limit Limit) {
	if s.limit == LimitNothing || s.limit == LimitUnsteady || !s.done {
		return 0, s.limit
	}
	return s.highestHeld, s.limit
}

// Tell reports the outcome of the trial with the rate that Next returned.
func (s *Search) Tell(t Trial) {
	if s.done {
		return
	}
	s.trials++
	switch {
	case t.Held && s.confirm:
		s.highestHeld, s.done = s.nextRate, true
		s.limit = cmp.Or(s.limit, LimitObjective)
		return
	case t.Held:
		s.highestHeld = s.nextRate
		if s.nextRate >= s.most {
			s.limit = LimitMost
		}
	default:
		// A rate that the generator cannot send is also an upper bound of the search. s.limit says
		// whether the objective or the generator was the reason.
		if s.lowestMissed == 0 || s.nextRate < s.lowestMissed {
			s.lowestMissed, s.limit = s.nextRate, LimitObjective
			if t.GeneratorBound {
				s.limit = LimitGenerator
			}
		}
		if s.confirm {
			s.confirm = false
			// The rate held for a short trial, but not for the long one.
			s.highestHeld = 0
			if low := s.nextRate * (1 - 2*s.within); low > s.least {
				s.highestHeld = low // this rate must be confirmed, too
			}
		}
	}
	s.chooseNext()
}

func (s *Search) chooseNext() {
	if s.trials >= maxTrials {
		s.limit, s.done = LimitUnsteady, true
		return
	}
	switch {
	case s.highestHeld == 0 && s.lowestMissed > 0: // no rate has held yet: try a lower rate
		if s.lowestMissed <= s.least {
			s.limit, s.done = LimitNothing, true
			return
		}
		s.nextRate = max(s.lowestMissed/2, s.least)
	case s.lowestMissed == 0 && s.highestHeld < s.most:
		s.nextRate = min(2*s.highestHeld, s.most)
	case s.lowestMissed > 0 && s.lowestMissed > s.highestHeld*(1+s.within) && !math.IsInf(s.lowestMissed, 1):
		s.nextRate = (s.highestHeld + s.lowestMissed) / 2
	default:
		s.nextRate, s.confirm = s.highestHeld, true
	}
}

// AtRate returns the scenario of one trial. The parameter length is the length of each phase;
// only warm-ups keep their duration. The step that the objective names gets the rate. If the
// objective names no step, the steps of a phase divide the rate in proportion to their rates in
// the scenario. The conditions of the objective replace the thresholds.
func (s Scenario) AtRate(rate float64, length time.Duration) Scenario {
	s = s.WithDefaults()
	o := s.objective()
	for i := range s.Phases {
		p := &s.Phases[i]
		if !p.Warmup {
			p.Duration = Duration(length)
		}
		sum := 0.0
		chosen := func(st *Step) bool { return o.Step == "" || st.Name == o.Step }
		for j := range p.Steps {
			if chosen(&p.Steps[j]) {
				sum += max(float64(p.Steps[j].Arrival.Rate), 1)
			}
		}
		for j := range p.Steps {
			if st := &p.Steps[j]; chosen(st) {
				r := Number(rate * max(float64(st.Arrival.Rate), 1) / sum)
				st.Rate, st.Count = r, 0
				st.Arrival = Arrival{Shape: "constant", Rate: r, Poisson: st.Arrival.Poisson || st.Arrival.Shape == "poisson"}
			}
		}
	}
	s.Thresholds = o.Holds
	return s
}

// objective returns the objective of the scenario, with defaults for values that are not set.
func (s *Scenario) objective() Objective {
	var o Objective
	if s.Objective != nil {
		o = *s.Objective
	}
	o.Hold = cmp.Or(o.Hold, Duration(10*time.Second))
	o.Confirm = cmp.Or(o.Confirm, 3*o.Hold)
	o.Within = cmp.Or(o.Within, 0.05)
	if len(o.Holds) == 0 {
		o.Holds = []Threshold{{Expr: "lost == 0"}, {Expr: "failed == 0"}, {Expr: "backlog_slope < 0.01"}}
	}
	if o.From == 0 {
		for i := range s.Phases {
			sum := Number(0)
			for j := range s.Phases[i].Steps {
				if st := &s.Phases[i].Steps[j]; o.Step == "" || st.Name == o.Step {
					sum += st.Arrival.Rate
				}
			}
			o.From = max(o.From, sum/10)
		}
		o.From = max(o.From, 1)
	}
	return o
}

// Capacity is the result of a search.
type Capacity struct {
	Scenario string  `json:"scenario"`
	Rate     float64 `json:"rate"` // highest rate that was confirmed, in messages/s; 0: no rate was confirmed
	// MissedAt is the lowest rate that did not hold. The highest rate that can hold is below it. 0:
	// all rates held, or no rate was confirmed.
	MissedAt float64   `json:"missed_at,omitempty"`
	Limit    Limit     `json:"limit"`
	Trials   []Trial   `json:"trials"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	// Verdict is the verdict of the last trial, normally of the confirmation. If no rate was
	// confirmed, it is the verdict of the last trial in which the generator was the limit, if there
	// was such a trial.
	Verdict Verdict `json:"verdict"`
}

// Uncertainty returns how far the highest rate that can hold may be above Rate, as a share of Rate.
// The result ok is false if every rate held, or if no rate was confirmed.
func (c *Capacity) Uncertainty() (share float64, ok bool) {
	if c.Rate <= 0 || c.MissedAt <= c.Rate {
		return 0, false
	}
	return c.MissedAt/c.Rate - 1, true
}

// FindCapacity searches for the highest rate that holds. It calls the function run with the
// scenario of each trial. If onTrial is not nil, it calls onTrial with each outcome. It returns
// an error of notify.KindInvalid if a condition has no value although messages were accepted,
// because then no rate could hold.
func FindCapacity(s Scenario, run func(Scenario) (*Result, error), onTrial func(Trial)) (Capacity, error) {
	s = s.WithDefaults()
	o := s.objective()
	out := Capacity{Scenario: s.Name, Started: time.Now().UTC()}
	// The last argument is the lowest rate: a trial at a lower rate has too few messages for a
	// verdict.
	search := NewSearch(float64(o.From), float64(o.Most), o.Within, minMessages/o.Hold.of().Seconds())
	var ours *Verdict // verdict of the last trial in which the generator was the limit
	for repeated := false; ; {
		rate, confirm, done := search.Next()
		if done {
			break
		}
		length := o.Hold
		if confirm {
			length = o.Confirm
		}
		res, err := run(s.AtRate(rate, length.of()))
		if err != nil {
			return out, err
		}
		out.Verdict = res.Verdict
		if res.Partial && res.Exit == term.ExitInterrupt {
			out.Limit = LimitStopped
			break
		}
		t, err := trialOf(res)
		if err != nil {
			return out, err
		}
		t.Rate, t.Confirm = rate, confirm
		if t.GeneratorBound {
			ours = &res.Verdict
		}
		// Another program may have used the machine for a moment. So repeat the trial once.
		t.Disturbed = t.GeneratorBound && sentInFull(res) && !repeated
		repeated = t.Disturbed
		out.Trials = append(out.Trials, t)
		if onTrial != nil {
			onTrial(t)
		}
		if !t.Disturbed {
			search.Tell(t)
		}
	}
	if out.Limit == "" {
		out.Rate, out.Limit = search.Found()
	}
	if out.Rate > 0 {
		out.MissedAt = search.lowestMissed
	}
	if out.Rate == 0 && ours != nil { // no rate was confirmed, and the generator was the limit in at least one trial
		out.Verdict = *ours
	}
	out.Seconds = time.Since(out.Started).Seconds()
	return out, nil
}

// sentInFull reports whether at least minSentShare of the intended messages were sent.
func sentInFull(r *Result) bool {
	return float64(r.Totals.Sent) >= minSentShare*float64(r.Totals.Intended)
}

// fellBehind reports whether requests still waited for a free worker when the phases ended. It
// returns true if, in the last second, the median request started later than its due time by more
// than 5% of the time of all phases. Then the server handled less than the rate, even if all
// requests were sent in the end. A queue that ended earlier does not count, because a short
// disturbance caused it.
func fellBehind(r *Result) bool {
	for _, row := range slices.Backward(r.Seconds) {
		if !row.Draining && row.Sent > 0 {
			return time.Duration(row.Lag.P50) > r.Sending/20
		}
	}
	return false
}

// trialOf decides whether a rate held. A rate holds if the run met the conditions, even if the
// generator woke late: a late generator makes figures worse, never better. A rate does not hold if
// the run fell behind: its requests waited until they could be sent. Only response times show this,
// and an objective may have no condition on them, so trialOf checks it itself.
func trialOf(res *Result) (Trial, error) {
	var t Trial
	for _, th := range res.Thresholds {
		switch {
		case th.OK || t.Why != "":
		case !th.Known && res.Totals.Acked > 0:
			return t, notify.Invalid(codeScenario, "objective.holds",
				fmt.Sprintf("the condition %q has no value in this run: backlog_slope needs an objective.hold of 3s or more, and metrics of deliveries need simulators", th.Expr))
		default:
			t.Why = th.Expr
		}
	}
	left := res.Ledger.Pending + res.Ledger.Unverified
	if t.Why == "" && left > 0 {
		t.Why = fmt.Sprintf("%d messages had not been delivered when the drain ended", left)
	}
	switch code := res.Verdict.Code; {
	case t.Why == "" && sentInFull(res) && code != SinkBound && !fellBehind(res):
		t.Held = true
		return t, nil
	case code == GeneratorBound:
		if t.GeneratorBound = true; t.Why != "" {
			t.Why += ", and "
		}
		t.Why += "the generator is the limit"
	case t.Why == "" && code == SinkBound:
		t.Why = "the server did not accept the offered load"
	case t.Why == "" && !sentInFull(res):
		t.Why = "not all due messages were sent"
	case t.Why == "":
		t.Why = "at the end requests still waited for a free worker"
	}
	if code := res.Verdict.Code; len(res.Verdict.Reasons) > 0 && code != Inconclusive && code != Valid {
		t.Why += ": " + res.Verdict.Reasons[0]
	}
	return t, nil
}
