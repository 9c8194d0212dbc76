package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// Rules say what a regression of B against A is.
//
// A percentile (of response, service and end to end) is worse when it is more than
// Percent higher, and by more than Floor, and by more than three times the noise: the standard error of the
// difference of the two runs' seconds, with each run's seconds counted as fewer
// the more one resembles the one before. It is judged when at least ten values lie
// above it in both runs. The highest backlog is worse by Percent, by more than a
// tenth of a second of what B accepted, and by more than three times the spread of
// the seconds' backlogs. A rate is worse when it is more than Percent lower. A
// count of what must not happen is worse when it is higher, and failures when
// their share of what was sent is over 0.1% of it higher.
//
// Nothing is judged when one of the runs is GENERATOR_BOUND or INCONCLUSIVE: its
// figures are not the server's.
type Rules struct {
	Percent float64       `json:"percent"`  // default 10
	Floor   time.Duration `json:"floor_ns"` // default 100 us
}

func (r Rules) withDefaults() Rules {
	r.Percent = cmp.Or(r.Percent, 10)
	r.Floor = cmp.Or(r.Floor, 100*time.Microsecond)
	return r
}

// Change is what became of one figure.
type Change string

// The changes.
const (
	Same     Change = "same" // or better or worse by less than the rules ask for
	Better   Change = "better"
	Worse    Change = "worse"
	Unjudged Change = "unjudged"
)

// Row compares one figure of two runs.
type Row struct {
	Step   string  `json:"step,omitempty"` // empty: of the whole run
	Figure string  `json:"figure"`
	Unit   string  `json:"unit"` // ns, /s, count or share
	A      float64 `json:"a"`
	B      float64 `json:"b"`
	Noise  float64 `json:"noise,omitempty"` // three standard errors, in Unit
	Change Change  `json:"change"`
	Why    string  `json:"why,omitempty"` // it was not judged
}

// Comparison of two runs.
type Comparison struct {
	Rules       Rules    `json:"rules"`
	Rows        []Row    `json:"rows"`
	Notes       []string `json:"notes,omitempty"`
	Regressions int      `json:"regressions"`
	// Judged is false where a run's verdict forbids it.
	Judged bool `json:"judged"`
}

// Compare holds run b against run a.
func Compare(a, b *load.Result, rules Rules) Comparison {
	c := Comparison{Rules: rules.withDefaults(), Judged: true}
	for name, r := range map[string]*load.Result{"A": a, "B": b} {
		if !r.Verdict.OfServer() {
			c.Judged = false
			c.Notes = append(c.Notes, fmt.Sprintf("%s is %s: nothing is judged", name, r.Verdict.Code))
		}
		if r.Partial {
			c.Notes = append(c.Notes, name+" was stopped early")
		}
	}
	slices.Sort(c.Notes)
	c.differences(a, b)
	c.whole(a, b)
	for _, s := range measured(a) {
		if t := stepOf(b, &s.StepSnapshot); t != nil {
			c.step(a, b, s, t)
		} else {
			c.Notes = append(c.Notes, "B has no step "+stepName(&s.StepSnapshot))
		}
	}
	for _, t := range measured(b) {
		if stepOf(a, &t.StepSnapshot) == nil {
			c.Notes = append(c.Notes, "A has no step "+stepName(&t.StepSnapshot))
		}
	}
	for i := range c.Rows {
		row := &c.Rows[i]
		if !c.Judged && row.Change != Unjudged {
			row.Change, row.Why = Unjudged, "verdict"
		}
		if row.Change == Worse {
			c.Regressions++
		}
	}
	return c
}

func stepOf(r *load.Result, like *load.StepSnapshot) *load.StepResult {
	for _, s := range measured(r) {
		if s.Phase == like.Phase && s.Name == like.Name {
			return s
		}
	}
	return nil
}

// differences notes what makes runs hard to compare.
func (c *Comparison) differences(a, b *load.Result) {
	note := func(what, x, y string) {
		if x != y {
			c.Notes = append(c.Notes, fmt.Sprintf("%s: A %s, B %s", what, x, y))
		}
	}
	if a.Scenario.Digest != b.Scenario.Digest {
		c.Notes = append(c.Notes, "the scenarios are not the same")
	}
	ea, eb := &a.Environment, &b.Environment
	note("CPU", ea.CPU, eb.CPU)
	note("CPUs", fmt.Sprint(ea.CPUs), fmt.Sprint(eb.CPUs))
	note("processors of Go", fmt.Sprint(ea.MaxProcs), fmt.Sprint(eb.MaxProcs))
	note("Go", ea.Go, eb.Go)
	note("server", ea.Server, eb.Server)
	note("version", ea.Version, eb.Version)
	if math.Abs(ea.Load-eb.Load) > 1 {
		note("load of the machine before", digits3(ea.Load), digits3(eb.Load))
	}
}

// add appends a row. The figure of B is as before from low to high; why says why it is
// not judged.
func (c *Comparison) add(row Row, why string, low, high float64, below, above Change) {
	row.Change, row.Why = Same, why
	switch {
	case why != "":
		row.Change = Unjudged
	case row.B < low:
		row.Change = below
	case row.B > high:
		row.Change = above
	}
	c.Rows = append(c.Rows, row)
}

// addLess is add for a figure of which less is better: within the percentage, or beyond,
// it is as before.
func (c *Comparison) addLess(row Row, why string, beyond float64) {
	limit := 1 + c.Rules.Percent/100
	c.add(row, why, min(row.A/limit, row.A-beyond), max(row.A*limit, row.A+beyond), Better, Worse)
}

// whole compares rates and counts.
func (c *Comparison) whole(a, b *load.Result) {
	unchecked := ""
	if !a.Ledger.Checked || !b.Ledger.Checked {
		unchecked = "no ledger"
	}
	rate := func(figure string, x, y float64) {
		limit := c.Rules.Percent / 100
		c.add(Row{Figure: figure, Unit: "/s", A: x, B: y}, "", x*(1-limit), x*(1+limit), Worse, Better)
	}
	rate("sent", a.Rates.Sent, b.Rates.Sent)
	rate("accepted", a.Rates.Acked, b.Rates.Acked)
	if unchecked == "" {
		rate("delivered", a.Rates.Delivered, b.Rates.Delivered)
	}
	failed := func(r *load.Result) float64 {
		return float64(r.Totals.Failed+r.Totals.Rejected) / float64(max(r.Totals.Sent, 1))
	}
	const share = 0.001
	c.add(Row{Figure: "failed", Unit: "share", A: failed(a), B: failed(b)}, "", failed(a)-share, failed(a)+share, Better, Worse)
	for _, n := range []struct {
		name string
		a, b int64
	}{
		{"lost", a.Totals.Lost, b.Totals.Lost}, {"duplicates", a.Totals.Duplicates, b.Totals.Duplicates},
		{"early", a.Totals.Early, b.Totals.Early}, {"reordered", a.Totals.Reordered, b.Totals.Reordered},
		{"unexpected", a.Totals.Unexpected, b.Totals.Unexpected}, {"unverified", a.Totals.Unverified, b.Totals.Unverified},
		{"pending", a.Ledger.Pending, b.Ledger.Pending},
	} {
		c.add(Row{Figure: n.name, Unit: "count", A: float64(n.a), B: float64(n.b)}, unchecked, float64(n.a), float64(n.a), Better, Worse)
	}
	peakA, noiseA := backlog(a)
	peakB, noiseB := backlog(b)
	noise := 3 * math.Hypot(noiseA, noiseB)
	c.addLess(Row{Figure: "backlog peak", Unit: "count", A: peakA, B: peakB, Noise: noise}, unchecked, max(noise, 0.1*b.Rates.Acked))
}

// backlog is the highest backlog of a second of sending, and the spread of them.
func backlog(r *load.Result) (peak, sigma float64) {
	var list []float64
	for i := range r.Seconds {
		if row := &r.Seconds[i]; !row.Draining {
			list = append(list, float64(row.Backlog))
		}
	}
	if len(list) == 0 {
		return 0, 0
	}
	sigma, _ = spread(list)
	return slices.Max(list), sigma
}

// step compares the percentiles of one step.
func (c *Comparison) step(a, b *load.Result, s, t *load.StepResult) {
	p50 := func(v *load.Brief) int64 { return v.P50 }
	p99 := func(v *load.Brief) int64 { return v.P99 }
	most := func(v *load.Brief) int64 { return v.Max }
	for _, k := range []struct {
		name string
		x, y *load.Quantiles
		of   func(*load.Result, *load.StepResult) []load.Brief
	}{
		{"response", &s.Response, &t.Response, everySecond(func(st *load.SecondStep) load.Brief { return st.Response })},
		{"service", &s.Service, &t.Service, everySecond(func(st *load.SecondStep) load.Brief { return st.Service })},
		{"end to end", &s.EndToEnd, &t.EndToEnd, func(_ *load.Result, s *load.StepResult) []load.Brief { return s.EndToEndParts }},
	} {
		if k.name == "end to end" && k.x.Count == 0 && k.y.Count == 0 {
			continue // when it arrived is not known, or all of it is for later
		}
		inA, inB := k.of(a, s), k.of(b, t)
		for _, q := range []struct {
			name   string
			a, b   int64
			above  int64 // one value in so many lies above it
			second func(*load.Brief) int64
		}{
			{" p50", k.x.P50, k.y.P50, 2, p50}, {" p99", k.x.P99, k.y.P99, 100, p99}, {" p99.9", k.x.P999, k.y.P999, 1000, most},
		} {
			row := Row{Step: stepName(&s.StepSnapshot), Figure: k.name + q.name, Unit: "ns", A: float64(q.a), B: float64(q.b)}
			const least = 10
			if k.x.Count < least*q.above || k.y.Count < least*q.above {
				c.addLess(row, "too few", 0)
				continue
			}
			row.Noise = 3 * math.Hypot(row.A*noise(figures(inA, q.second)), row.B*noise(figures(inB, q.second)))
			c.addLess(row, "", max(float64(c.Rules.Floor), row.Noise))
		}
	}
}

// everySecond returns what reads one kind of a step's times, second by second.
func everySecond(kind func(*load.SecondStep) load.Brief) func(*load.Result, *load.StepResult) []load.Brief {
	return func(r *load.Result, s *load.StepResult) (list []load.Brief) {
		for i := range r.Seconds {
			row := &r.Seconds[i]
			if row.Phase != s.Phase || row.Draining {
				continue
			}
			for j := range row.Steps {
				if st := &row.Steps[j]; st.Name == s.Name {
					list = append(list, kind(st))
				}
			}
		}
		return list
	}
}

// figures returns one figure of each run that has a value for it.
func figures(in []load.Brief, of func(*load.Brief) int64) (list []float64) {
	for i := range in {
		if in[i].Count > 0 {
			list = append(list, float64(of(&in[i])))
		}
	}
	return list
}

// noise is the standard error of the middle of a series, as a share of it. The
// spread is the median absolute deviation, which one stray second does not move.
func noise(list []float64) float64 {
	n := len(list)
	if n < 3 {
		return 0 // nothing to tell it from; the floor and the percentage remain
	}
	sigma, mid := spread(list)
	if mid <= 0 {
		return 0
	}
	alike := min(max(resemblance(list), 0), 0.95)
	independent := float64(n) * (1 - alike) / (1 + alike)
	return 1.2533 * sigma / math.Sqrt(max(independent, 1)) / mid
}

// spread is the standard deviation of a series without its stray values, from the
// median absolute deviation, and its median.
func spread(list []float64) (sigma, mid float64) {
	mid = median(list)
	dev := make([]float64, len(list))
	for i, v := range list {
		dev[i] = math.Abs(v - mid)
	}
	return 1.4826 * median(dev), mid
}

func median(list []float64) float64 {
	s := slices.Clone(list)
	slices.Sort(s)
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// resemblance is the autocorrelation of a series at one step, -1 to 1.
func resemblance(list []float64) float64 {
	mean := 0.0
	for _, v := range list {
		mean += v / float64(len(list))
	}
	var with, all float64
	for i, v := range list {
		all += (v - mean) * (v - mean)
		if i > 0 {
			with += (v - mean) * (list[i-1] - mean)
		}
	}
	if all == 0 {
		return 0
	}
	return with / all
}
