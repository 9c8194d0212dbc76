package load

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// Search finds the highest rate that holds: doubled until one does not, then
// halved between, then confirmed for longer. It is a pure state machine: ask Next
// for the rate to try and Tell what came of it, until Next says that it is done.
type Search struct {
	from, most, within, least float64

	good, bad float64 // highest that held, lowest that did not; bad 0: none yet
	rate      float64 // to try
	confirm   bool    // the trial is the long one
	done      bool
	limit     Limit
	tries     int
}

// Limit says why a search ended where it did.
type Limit string

// The limits.
const (
	LimitObjective Limit = "objective" // more does not hold
	LimitGenerator Limit = "generator" // more cannot be generated here
	LimitMost      Limit = "most"      // nobody asked for more
	LimitNothing   Limit = "nothing"   // not even the lowest rate tried holds
	LimitUnsteady  Limit = "unsteady"  // what held once did not hold again: nothing was confirmed
	LimitStopped   Limit = "stopped"   // somebody ended the search
)

// Trial is what became of a rate.
type Trial struct {
	Rate      float64 `json:"rate"`
	Confirm   bool    `json:"confirm,omitempty"`
	Held      bool    `json:"held"`
	Generator bool    `json:"generator_bound,omitempty"` // it says nothing of the server
	Disturbed bool    `json:"disturbed,omitempty"`       // for that reason it is tried again
	Why       string  `json:"why,omitempty"`             // it did not hold
}

// maxTries ends a search that noise keeps from ending.
const maxTries = 40

// NewSearch begins at from, not beyond most (0: no bound), goes down to least (0: a
// thousandth of from), and ends when the answer is known within a share. from is
// above 0; within from 0.001 to 1.
func NewSearch(from, most, within, least float64) *Search {
	if most <= 0 {
		most = math.Inf(1)
	}
	if least <= 0 {
		least = from / 1024
	}
	from = min(from, most)
	return &Search{from: from, most: most, within: min(max(within, 0.001), 1), least: min(least, from), rate: from}
}

// Next returns the rate to try, and whether the trial is the long one.
func (s *Search) Next() (rate float64, confirm, done bool) { return s.rate, s.confirm, s.done }

// Found returns the highest rate that was confirmed, and what limits it; 0 where
// none was.
func (s *Search) Found() (rate float64, limit Limit) {
	if s.limit == LimitNothing || s.limit == LimitUnsteady || !s.done {
		return 0, s.limit
	}
	return s.good, s.limit
}

// Tell says what became of the rate that Next named.
func (s *Search) Tell(t Trial) {
	if s.done {
		return
	}
	s.tries++
	switch {
	case t.Held && s.confirm:
		s.good, s.done = s.rate, true
		s.limit = cmp.Or(s.limit, LimitObjective)
		return
	case t.Held:
		s.good = s.rate
		if s.rate >= s.most {
			s.limit = LimitMost
		}
	default:
		// What the generator cannot offer bounds the search like what the server
		// cannot take, but the answer says whose bound it is.
		if s.bad == 0 || s.rate < s.bad {
			s.bad, s.limit = s.rate, LimitObjective
			if t.Generator {
				s.limit = LimitGenerator
			}
		}
		if s.confirm {
			s.confirm = false
			// It held for a moment and not for long: not good after all.
			s.good = 0
			if low := s.rate * (1 - 2*s.within); low > s.least {
				s.good = low // to be confirmed as well
			}
		}
	}
	s.choose()
}

func (s *Search) choose() {
	if s.tries >= maxTries {
		s.limit, s.done = LimitUnsteady, true
		return
	}
	switch {
	case s.good == 0 && s.bad > 0: // below what was begun with
		if s.bad <= s.least {
			s.limit, s.done = LimitNothing, true
			return
		}
		s.rate = max(s.bad/2, s.least)
	case s.bad == 0 && s.good < s.most:
		s.rate = min(2*s.good, s.most)
	case s.bad > 0 && s.bad > s.good*(1+s.within) && !math.IsInf(s.bad, 1):
		s.rate = (s.good + s.bad) / 2
	default:
		s.rate, s.confirm = s.good, true
	}
}

// AtRate returns the scenario of one trial: every phase but warm-ups as long as
// length, the objective's step (all where it names none) at rate together, its
// conditions as thresholds.
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

// objective is the scenario's, with its defaults.
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

// Capacity is what a search found.
type Capacity struct {
	Scenario string    `json:"scenario"`
	Rate     float64   `json:"rate"`                // messages/s that held; 0: none did
	MissedAt float64   `json:"missed_at,omitempty"` // the lowest rate that did not hold: the limit lies between; 0: all held
	Limit    Limit     `json:"limit"`
	Trials   []Trial   `json:"trials"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	Verdict  Verdict   `json:"verdict"` // of the confirmation
}

// Uncertainty is by what share the limit may lie above Rate; ok is false where no rate was
// missed.
func (c *Capacity) Uncertainty() (share float64, ok bool) {
	if c.Rate <= 0 || c.MissedAt <= c.Rate {
		return 0, false
	}
	return c.MissedAt/c.Rate - 1, true
}

// FindCapacity tries rates with run, which runs one trial's scenario, until the
// search is done. A condition that has no figure, though messages were accepted, is
// an error of notify.KindInvalid: no rate would ever hold it.
func FindCapacity(s Scenario, run func(Scenario) (*Result, error), said func(Trial)) (Capacity, error) {
	s = s.WithDefaults()
	o := s.objective()
	out := Capacity{Scenario: s.Name, Started: time.Now().UTC()}
	// With fewer messages a trial says nothing of anybody.
	search := NewSearch(float64(o.From), float64(o.Most), o.Within, fewest/o.Hold.of().Seconds())
	var ours *Verdict // of the last trial that the generator bounded
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
		if t.Generator {
			ours = &res.Verdict
		}
		// The machine may have been busy with something else for a moment: once more.
		t.Disturbed = t.Generator && offered(res) && !repeated
		repeated = t.Disturbed
		out.Trials = append(out.Trials, t)
		if said != nil {
			said(t)
		}
		if !t.Disturbed {
			search.Tell(t)
		}
	}
	if out.Limit == "" {
		out.Rate, out.Limit = search.Found()
	}
	if out.Rate > 0 {
		out.MissedAt = search.bad
	}
	if out.Rate == 0 && ours != nil { // nothing held, and not for the server's sake alone
		out.Verdict = *ours
	}
	out.Seconds = time.Since(out.Started).Seconds()
	return out, nil
}

// offered reports whether what was due was sent.
func offered(r *Result) bool {
	return float64(r.Totals.Sent) >= sentEnough*float64(r.Totals.Intended)
}

// trialOf says whether a rate held. A generator that wakes late makes every figure
// worse and none better: what holds although it did, holds. A rate at which every worker
// waits does not hold, even if all was sent in the end: the queue of requests that are due
// grows for as long as the rate lasts, and an objective without response times does not
// show it.
func trialOf(res *Result) (Trial, error) {
	var t Trial
	for _, th := range res.Thresholds {
		switch {
		case th.OK || t.Why != "":
		case !th.Known && res.Totals.Acked > 0:
			return t, notify.Invalid(codeScenario, "objective.holds",
				th.Expr+" has no figure in such a run: a slope needs a hold of 3s or more, and what was delivered a ledger, of simulators")
		default:
			t.Why = th.Expr
		}
	}
	left := res.Ledger.Pending + res.Ledger.Unverified
	if t.Why == "" && left > 0 {
		t.Why = fmt.Sprintf("%d were still on their way when the drain's time was over", left)
	}
	switch code := res.Verdict.Code; {
	case t.Why == "" && offered(res) && code != SinkBound && code != ConcurrencyBound:
		t.Held = true
		return t, nil
	case code == GeneratorBound:
		if t.Generator = true; t.Why != "" {
			t.Why += ", and "
		}
		t.Why += "the generator is the limit"
	case t.Why == "" && code == SinkBound:
		t.Why = "the server did not take what was offered"
	case t.Why == "" && !offered(res):
		t.Why = "not all that was due was sent"
	case t.Why == "":
		t.Why = "requests waited for a free worker"
	}
	if code := res.Verdict.Code; len(res.Verdict.Reasons) > 0 && code != Inconclusive && code != Valid {
		t.Why += ": " + res.Verdict.Reasons[0]
	}
	return t, nil
}
