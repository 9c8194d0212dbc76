package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// Rules say when a figure of run B is a regression against run A.
//
// A percentile (of response, service and end to end) is worse if three conditions hold: it is
// higher by more than Percent, by more than Floor, and by more than three times the noise. The
// noise is the standard error of the difference between the two runs, estimated from their seconds.
// The more similar the figures of neighbouring seconds are, the fewer independent seconds there
// are, and the larger is the noise. A percentile is judged only if at least ten values are above it
// in both runs.
//
// The highest backlog is worse if three conditions hold: it is higher by more than Percent, by more
// than a tenth of what B accepts per second, and by more than three times the spread of the
// backlogs of the seconds.
//
// A rate is worse if it is lower by more than Percent. A count, such as the number of losses or
// duplicates, is worse if it is higher by any amount. Failures are worse if their share of the sent
// messages is higher by more than 0.1 percentage points.
//
// If the verdict of a run is GENERATOR_BOUND or INCONCLUSIVE, nothing is judged, because the
// figures of such a run do not describe the server.
type Rules struct {
	Percent float64       `json:"percent"`  // default 10
	Floor   time.Duration `json:"floor_ns"` // default 100 us
}

func (r Rules) withDefaults() Rules {
	r.Percent = cmp.Or(r.Percent, 10)
	r.Floor = cmp.Or(r.Floor, 100*time.Microsecond)
	return r
}

// Change says how a figure of run B differs from the same figure of run A.
type Change string

// The changes.
const (
	Same     Change = "same" // equal, or the difference is too small for the rules
	Better   Change = "better"
	Worse    Change = "worse"
	Unjudged Change = "unjudged"
)

// Row compares one figure of two runs.
type Row struct {
	Step            string  `json:"step,omitempty"` // empty: the figure describes the whole run
	Figure          string  `json:"figure"`
	Unit            string  `json:"unit"` // ns, /s, count or share
	A               float64 `json:"a"`
	B               float64 `json:"b"`
	Noise           float64 `json:"noise,omitempty"` // three times the noise of a percentile, or three times the spread of the backlogs; in Unit
	Change          Change  `json:"change"`
	UnjudgedBecause string  `json:"why,omitempty"` // why the figure was not judged
}

// Comparison is the result of Compare.
type Comparison struct {
	Rules       Rules    `json:"rules"`
	Rows        []Row    `json:"rows"`
	Notes       []string `json:"notes,omitempty"`
	Regressions int      `json:"regressions"`
	// Judged is false if a run's verdict says that its figures do not describe the server.
	Judged bool `json:"judged"`
}

// Compare compares run b with run a by the rules.
func Compare(a, b *load.Result, rules Rules) Comparison {
	c := Comparison{Rules: rules.withDefaults(), Judged: true}
	for name, r := range map[string]*load.Result{"A": a, "B": b} {
		if !r.Verdict.OfServer() {
			c.Judged = false
			c.Notes = append(c.Notes, fmt.Sprintf("the verdict of run %s is %s, so nothing is judged", name, r.Verdict.Code))
		}
		if r.Partial {
			c.Notes = append(c.Notes, "run "+name+" was stopped early")
		}
	}
	slices.Sort(c.Notes)
	c.noteDifferences(a, b)
	c.compareWholeRun(a, b)
	for _, s := range measuredSteps(a) {
		if t := stepOf(b, &s.StepSnapshot); t != nil {
			c.compareStep(a, b, s, t)
		} else {
			c.Notes = append(c.Notes, "run B has no step "+stepName(&s.StepSnapshot))
		}
	}
	for _, t := range measuredSteps(b) {
		if stepOf(a, &t.StepSnapshot) == nil {
			c.Notes = append(c.Notes, "run A has no step "+stepName(&t.StepSnapshot))
		}
	}
	for i := range c.Rows {
		row := &c.Rows[i]
		if !c.Judged && row.Change != Unjudged {
			row.Change, row.UnjudgedBecause = Unjudged, "verdict"
		}
		if row.Change == Worse {
			c.Regressions++
		}
	}
	return c
}

func stepOf(r *load.Result, like *load.StepSnapshot) *load.StepResult {
	for _, s := range measuredSteps(r) {
		if s.Phase == like.Phase && s.Name == like.Name {
			return s
		}
	}
	return nil
}

// noteDifferences adds a note for each difference between the environments that makes the runs hard
// to compare.
func (c *Comparison) noteDifferences(a, b *load.Result) {
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
	note("GOMAXPROCS", fmt.Sprint(ea.MaxProcs), fmt.Sprint(eb.MaxProcs))
	note("Go", ea.Go, eb.Go)
	note("server", ea.Server, eb.Server)
	note("version", ea.Version, eb.Version)
	if math.Abs(ea.Load-eb.Load) > 1 {
		note("load average of the machine before the run", digits3(ea.Load), digits3(eb.Load))
	}
}

// addRow appends a row and judges it. If the figure of run B is less than low, the row gets the
// change given by the parameter below; if it is greater than high, the row gets the change given by
// the parameter above. Otherwise the change is Same. If the parameter why is not empty, it is the
// reason why the row cannot be judged; then the change is Unjudged.
func (c *Comparison) addRow(row Row, why string, low, high float64, below, above Change) {
	row.Change, row.UnjudgedBecause = Same, why
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

// addLessIsBetter appends a row for a figure that should be low. The row is Same if the figure of B
// differs from that of A by at most Rules.Percent, or by at most the absolute amount in the
// parameter beyond.
func (c *Comparison) addLessIsBetter(row Row, why string, beyond float64) {
	limit := 1 + c.Rules.Percent/100
	c.addRow(row, why, min(row.A/limit, row.A-beyond), max(row.A*limit, row.A+beyond), Better, Worse)
}

// compareWholeRun compares the rates, counts and backlogs of the whole runs.
func (c *Comparison) compareWholeRun(a, b *load.Result) {
	unchecked := ""
	if !a.Ledger.Checked || !b.Ledger.Checked {
		unchecked = "no ledger"
	}
	rate := func(figure string, x, y float64) {
		limit := c.Rules.Percent / 100
		c.addRow(Row{Figure: figure, Unit: "/s", A: x, B: y}, "", x*(1-limit), x*(1+limit), Worse, Better)
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
	c.addRow(Row{Figure: "failed", Unit: "share", A: failed(a), B: failed(b)}, "", failed(a)-share, failed(a)+share, Better, Worse)
	for _, n := range []struct {
		name string
		a, b int64
	}{
		{"lost", a.Totals.Lost, b.Totals.Lost}, {"duplicates", a.Totals.Duplicates, b.Totals.Duplicates},
		{"early", a.Totals.Early, b.Totals.Early}, {"reordered", a.Totals.Reordered, b.Totals.Reordered},
		{"unexpected", a.Totals.Unexpected, b.Totals.Unexpected}, {"unverified", a.Totals.Unverified, b.Totals.Unverified},
		{"pending", a.Ledger.Pending, b.Ledger.Pending},
	} {
		c.addRow(Row{Figure: n.name, Unit: "count", A: float64(n.a), B: float64(n.b)}, unchecked, float64(n.a), float64(n.a), Better, Worse)
	}
	peakA, noiseA := backlogPeak(a)
	peakB, noiseB := backlogPeak(b)
	noise := 3 * math.Hypot(noiseA, noiseB)
	c.addLessIsBetter(Row{Figure: "backlog peak", Unit: "count", A: peakA, B: peakB, Noise: noise}, unchecked, max(noise, 0.1*b.Rates.Acked))
}

// backlogPeak returns the highest backlog at the end of a second of sending. The result sigma is the
// standard deviation of the backlogs of all these seconds.
func backlogPeak(r *load.Result) (peak, sigma float64) {
	var list []float64
	for i := range r.Seconds {
		if row := &r.Seconds[i]; !row.Draining {
			list = append(list, float64(row.Backlog))
		}
	}
	if len(list) == 0 {
		return 0, 0
	}
	sigma, _ = robustDeviation(list)
	return slices.Max(list), sigma
}

// compareStep compares the percentiles of one step. The parameter s is the step in run a, and t is
// the step in run b.
func (c *Comparison) compareStep(a, b *load.Result, s, t *load.StepResult) {
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
			continue // no delivery was measured, or all messages were scheduled
		}
		inA, inB := k.of(a, s), k.of(b, t)
		for _, q := range []struct {
			name   string
			a, b   int64
			above  int64 // one of this many values is above the percentile
			second func(*load.Brief) int64
		}{
			{" p50", k.x.P50, k.y.P50, 2, p50}, {" p99", k.x.P99, k.y.P99, 100, p99}, {" p99.9", k.x.P999, k.y.P999, 1000, most},
		} {
			row := Row{Step: stepName(&s.StepSnapshot), Figure: k.name + q.name, Unit: "ns", A: float64(q.a), B: float64(q.b)}
			const least = 10
			if k.x.Count < least*q.above || k.y.Count < least*q.above {
				c.addLessIsBetter(row, "too few", 0)
				continue
			}
			row.Noise = 3 * math.Hypot(row.A*relativeNoise(figuresOf(inA, q.second)), row.B*relativeNoise(figuresOf(inB, q.second)))
			c.addLessIsBetter(row, "", max(float64(c.Rules.Floor), row.Noise))
		}
	}
}

// everySecond returns a function that lists one kind of times of a step, with one Brief for each
// second. The parameter kind returns this kind of times from the figures of one second.
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

// figuresOf returns one figure of each second that has values, in order. The function readFigure
// reads the figure from the times of a second.
func figuresOf(in []load.Brief, readFigure func(*load.Brief) int64) (list []float64) {
	for i := range in {
		if in[i].Count > 0 {
			list = append(list, float64(readFigure(&in[i])))
		}
	}
	return list
}

// relativeNoise returns the standard error of the median of a series, as a share of the median. It
// uses the median absolute deviation, so a single unusual second does not change it.
func relativeNoise(list []float64) float64 {
	n := len(list)
	if n < 3 {
		return 0 // too few values to estimate the noise; floor and percentage still apply
	}
	sigma, mid := robustDeviation(list)
	if mid <= 0 {
		return 0
	}
	alike := min(max(autocorrelation(list), 0), 0.95)
	independent := float64(n) * (1 - alike) / (1 + alike)
	return 1.2533 * sigma / math.Sqrt(max(independent, 1)) / mid
}

// robustDeviation estimates the standard deviation of a series from its median absolute deviation.
// So a few unusual values do not change it. It also returns the median.
func robustDeviation(list []float64) (sigma, mid float64) {
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

// autocorrelation returns the correlation of a series with the same series one step later, -1 to 1.
func autocorrelation(list []float64) float64 {
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
