package load

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/notifyd/notifyd/pkg/notify"
)

// search runs a search to its end. The function holds returns the outcome of each trial.
func search(s *Search, holds func(rate float64, confirm bool) Trial) (found float64, limit Limit, tries int) {
	for {
		r, confirm, done := s.Next()
		if done {
			found, limit = s.Found()
			return found, limit, tries
		}
		tries++
		t := holds(r, confirm)
		t.Rate, t.Confirm = r, confirm
		s.Tell(t)
	}
}

func upTo(most float64) func(float64, bool) Trial {
	return func(r float64, _ bool) Trial { return Trial{Held: r <= most} }
}

func TestSearch(t *testing.T) {
	t.Parallel()
	for _, most := range []float64{0.5, 3, 100, 777, 12_345, 5e6} {
		rate, limit, tries := search(NewSearch(100, 0, 0.05, 0), upTo(most))
		if rate > most || rate < most*0.95 || limit != LimitObjective || tries > 30 {
			t.Errorf("holds up to %v: found %v (%s) after %d", most, rate, limit, tries)
		}
	}
	if rate, limit, _ := search(NewSearch(100, 1000, 0.05, 0), upTo(1e9)); rate != 1000 || limit != LimitMost {
		t.Errorf("not beyond most: %v (%s)", rate, limit)
	}
	if rate, limit, tries := search(NewSearch(100, 0, 0.05, 0), upTo(0)); rate != 0 || limit != LimitNothing || tries > 15 {
		t.Errorf("nothing holds: %v (%s) after %d", rate, limit, tries)
	}
	if _, limit, tries := search(NewSearch(100, 0, 0.05, 30), upTo(0)); limit != LimitNothing || tries != 3 { // 100, 50, 30
		t.Errorf("the least: %s after %d", limit, tries)
	}
	rate, limit, _ := search(NewSearch(100, 0, 0.05, 0), func(r float64, _ bool) Trial { return Trial{Held: r <= 5000, GeneratorBound: r > 5000} })
	if rate < 4750 || rate > 5000 || limit != LimitGenerator {
		t.Errorf("the generator's bound: %v (%s)", rate, limit)
	}
}

// TestSearchConfirms checks that a rate that holds only in a short trial is not the result.
func TestSearchConfirms(t *testing.T) {
	t.Parallel()
	confirmed := 0.0
	rate, limit, tries := search(NewSearch(100, 0, 0.05, 0), func(r float64, confirm bool) Trial {
		held := r <= 1000
		if confirm {
			if held = r <= 800; held {
				confirmed = r
			}
		}
		return Trial{Held: held}
	})
	if rate != confirmed || rate > 800 || rate < 600 || limit != LimitObjective {
		t.Errorf("%v (%s) after %d, confirmed %v", rate, limit, tries, confirmed)
	}
}

// TestSearchEnds checks that every search ends and returns only a confirmed rate, even if the outcomes of
// the trials are random.
func TestSearchEnds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		held := map[float64]bool{}
		rate, limit, tries := search(NewSearch(rng.Float64()*1000+0.1, rng.Float64()*1e6*float64(seed%2), rng.Float64()/4, 0), func(r float64, confirm bool) Trial {
			if r <= 0 || math.IsInf(r, 0) || math.IsNaN(r) {
				t.Fatalf("seed %d: tries %v", seed, r)
			}
			tr := Trial{Held: rng.IntN(3) > 0, GeneratorBound: rng.IntN(5) == 0}
			if confirm && tr.Held {
				held[r] = true
			}
			return tr
		})
		if tries > maxTrials {
			t.Fatalf("seed %d: %d tries", seed, tries)
		}
		if rate > 0 && !held[rate] {
			t.Errorf("seed %d: %v (%s) was not confirmed", seed, rate, limit)
		}
	}
}

func TestAtRate(t *testing.T) {
	t.Parallel()
	s := Scenario{Name: "t", Phases: []PhaseSpec{{Name: "p", Duration: 1, Steps: []Step{{Name: "a", Rate: 30}, {Name: "b", Rate: 10, Count: 5}}}}, Objective: &Objective{}}
	trial := s.AtRate(400, 7e9)
	a, b := trial.Phases[0].Steps[0], trial.Phases[0].Steps[1]
	if a.Arrival.Rate != 300 || b.Arrival.Rate != 100 || b.Count != 0 || trial.Phases[0].Duration != 7e9 || len(trial.Thresholds) != 3 {
		t.Errorf("%+v %+v", a.Arrival, b.Arrival)
	}
	s.Objective.Step = "b"
	trial = s.AtRate(400, 7e9)
	if a, b := trial.Phases[0].Steps[0], trial.Phases[0].Steps[1]; a.Arrival.Rate != 30 || b.Arrival.Rate != 400 {
		t.Errorf("%+v %+v", a.Arrival, b.Arrival)
	}
	if err := trial.Validate(); err != nil {
		t.Error(err)
	}
}

// TestFindCapacity checks that a rate that holds counts even if the generator woke late. If the generator
// woke late and the rate did not hold, the rate is tried once more.
func TestFindCapacity(t *testing.T) {
	t.Parallel()
	s := SingleStep("t", time.Second, Step{Rate: 100})
	s.Objective = &Objective{From: 100, Most: 400, Hold: Duration(10 * time.Second), Within: 0.5}
	good := func(trial Scenario) *Result {
		r := &Result{Totals: Totals{Intended: 1000, Sent: 1000, Acked: 1000}, Verdict: Verdict{Code: Valid}}
		for _, h := range trial.Thresholds {
			r.Thresholds = append(r.Thresholds, ThresholdState{Expr: h.Expr, Known: true, OK: true})
		}
		return r
	}
	find := func(change func(rate float64, n int, r *Result)) (Capacity, error) {
		n := map[float64]int{}
		return FindCapacity(s, func(trial Scenario) (*Result, error) {
			r, rate := good(trial), float64(trial.Phases[0].Steps[0].Arrival.Rate)
			n[rate]++
			change(rate, n[rate], r)
			return r, nil
		}, nil)
	}
	late := Verdict{Code: GeneratorBound, Reasons: []string{"it woke late"}}
	if c, err := find(func(_ float64, _ int, r *Result) { r.Verdict = late }); err != nil || c.Rate != 400 || c.Limit != LimitMost || len(c.Trials) != 4 {
		t.Errorf("late, and all holds: %+v %v", c, err)
	}
	// A queue of requests that ended before the end of the trial does not make the rate fail.
	if c, err := find(func(_ float64, _ int, r *Result) {
		r.Sending, r.Verdict.Code = 10*time.Second, ConcurrencyBound
		r.Seconds = []SecondRow{{Sent: 500, Lag: Brief{P50: int64(5 * time.Second)}}, {Sent: 500, Lag: Brief{P50: int64(time.Millisecond)}}}
	}); err != nil || c.Rate != 400 {
		t.Errorf("a moment's queue: %+v %v", c, err)
	}
	miss := func(r *Result) { r.Thresholds[0].OK = false }
	c, err := find(func(rate float64, n int, r *Result) {
		if rate == 200 && n == 1 {
			r.Verdict = late
			miss(r)
		}
	})
	if err != nil || c.Rate != 400 || !c.Trials[1].Disturbed || c.Trials[1].Why != "lost == 0, and the generator is the limit: it woke late" || !c.Trials[2].Held {
		t.Errorf("disturbed once: %+v %v", c, err)
	}
	for what, change := range map[string]func(r *Result){
		"missed":  miss,
		"pending": func(r *Result) { r.Ledger.Pending = 1 },
		"sink":    func(r *Result) { r.Verdict.Code = SinkBound },
		"unsent":  func(r *Result) { r.Totals.Sent = 900 },
		"behind": func(r *Result) {
			r.Sending = 15 * time.Second
			r.Seconds = []SecondRow{{Sent: 500, Lag: Brief{P50: int64(5 * time.Second)}}, {Draining: true, Sent: 1}}
		},
	} {
		c, err := find(func(rate float64, _ int, r *Result) {
			if rate > 250 {
				change(r)
			}
		})
		if err != nil || c.Rate != 200 || c.Limit != LimitObjective {
			t.Errorf("%s: %+v %v", what, c, err)
		}
	}
	// The lowest rate is ten messages a second, which is 100 messages in a trial of 10 s.
	if c, err = find(func(_ float64, _ int, r *Result) { miss(r) }); err != nil || c.Rate != 0 || c.Limit != LimitNothing || c.Trials[len(c.Trials)-1].Rate != 10 {
		t.Errorf("nothing: %+v %v", c, err)
	}
	// The lowest rate does not hold, and at the higher rates the generator was the limit.
	c, err = find(func(rate float64, _ int, r *Result) {
		if miss(r); rate > 10 {
			r.Verdict = late
		}
	})
	if err != nil || c.Rate != 0 || c.Limit != LimitNothing || c.Verdict.Code != GeneratorBound {
		t.Errorf("nothing, for the generator's sake: %+v %v", c, err)
	}
	if _, err = find(func(_ float64, _ int, r *Result) { r.Thresholds[2] = ThresholdState{Expr: "backlog_slope < 0.01"} }); notify.KindOf(err) != notify.KindInvalid {
		t.Errorf("no figure: %v", err)
	}
}

// TestSlope checks that the slope is 0 for a backlog that only varies with the messages in flight.
func TestSlope(t *testing.T) {
	t.Parallel()
	slope := func(backlogs ...int64) (float64, bool) {
		c := &coordinator{}
		for _, b := range backlogs {
			c.seconds = append(c.seconds, SecondRow{Length: time.Second, Sent: 100, Acked: 100, Backlog: b})
		}
		c.seconds = append(c.seconds, SecondRow{Length: time.Second, Draining: true, Backlog: 9999})
		return c.backlogSlope(c.defaultSlopeWindow())
	}
	if v, ok := slope(10, 20, 30, 40, 50, 60, 70); !ok || math.Abs(v-0.1) > 1e-9 {
		t.Errorf("it grows by a tenth: %v %v", v, ok)
	}
	if v, ok := slope(3, 9, 2, 7, 4, 8, 5); !ok || v != 0 {
		t.Errorf("it goes up and down: %v %v", v, ok)
	}
	if v, ok := slope(60, 50, 40, 30, 20); !ok || math.Abs(v+0.1) > 1e-9 {
		t.Errorf("it falls: %v %v", v, ok)
	}
	if _, ok := slope(1, 2); ok {
		t.Error("two seconds are a slope")
	}
}

// TestCapacityOfALimitedServer checks that the limit of a server with 20,000 messages a second is
// found within 5%, and that the uncertainty covers it.
func TestCapacityOfALimitedServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 20_000
		s := SingleStep("t", time.Second, Step{Target: Batch, Size: 100, Rate: 1000, Workers: 8})
		s.Objective = &Objective{From: 1000, Hold: Duration(3 * time.Second), Within: 0.02, Holds: []Threshold{{Expr: "failed == 0"}}}
		c, err := FindCapacity(s, func(trial Scenario) (*Result, error) {
			bucket := rate.NewLimiter(limit/100, 5)
			tg := &target{latency: time.Millisecond, fail: func(int) error {
				if !bucket.Allow() {
					return &notify.Error{Kind: notify.KindThrottled, Code: "rate_limited", Msg: "too many"}
				}
				return nil
			}}
			return drive(t, trial, Config{Target: tg, health: still}), nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.Rate < 0.95*limit || c.Rate > 1.05*limit || c.Limit != LimitObjective {
			t.Errorf("found %+v", c)
		}
		if share, ok := c.Uncertainty(); !ok || share > 0.02+1e-9 || c.MissedAt < limit {
			t.Errorf("the limit is said to lie between %v and %v", c.Rate, c.MissedAt)
		}
	})
}
