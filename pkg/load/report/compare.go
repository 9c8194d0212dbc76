package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/load"
)

// Rules say what a regression of B against A is.
//
// A percentile is worse when it is more than Percent higher, and by more than
// Floor, and by more than three times the noise: the standard error of the
// difference of the two runs' seconds, with each run's seconds counted as fewer
// the more one resembles the one before. It is judged when at least ten values lie
// above it in both runs. A rate is worse when it is more than Percent lower. A
// count of what must not happen is worse when it is higher, and failures when
// their share of what was sent is over 0.1% of it higher.
//
// Nothing is judged when one of the runs is GENERATOR_BOUND or INCONCLUSIVE: its
// figures are not the server's.
type Rules struct {
	Percent float64       // default 10
	Floor   time.Duration // default 100 us
}

func (r Rules) withDefaults() Rules {
	if r.Percent == 0 {
		r.Percent = 10
	}
	if r.Floor == 0 {
		r.Floor = 100 * time.Microsecond
	}
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
		if v := r.Verdict.Code; v == load.GeneratorBound || v == load.Inconclusive {
			c.Judged = false
			c.Notes = append(c.Notes, fmt.Sprintf("%s is %s: nothing is judged", name, v))
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

// whole compares rates and counts.
func (c *Comparison) whole(a, b *load.Result) {
	lower := func(figure string, x, y float64) {
		row := Row{Figure: figure, Unit: "/s", A: x, B: y, Change: Same}
		switch limit := c.Rules.Percent / 100; {
		case y < x*(1-limit):
			row.Change = Worse
		case y > x*(1+limit):
			row.Change = Better
		}
		c.Rows = append(c.Rows, row)
	}
	lower("sent", a.Rates.Sent, b.Rates.Sent)
	lower("accepted", a.Rates.Acked, b.Rates.Acked)
	if a.Ledger.Checked && b.Ledger.Checked {
		lower("delivered", a.Rates.Delivered, b.Rates.Delivered)
	}
	failed := func(r *load.Result) float64 {
		if r.Totals.Sent == 0 {
			return 0
		}
		return float64(r.Totals.Failed+r.Totals.Rejected) / float64(r.Totals.Sent)
	}
	row := Row{Figure: "failed", Unit: "share", A: failed(a), B: failed(b), Change: Same}
	const share = 0.001
	switch d := row.B - row.A; {
	case d > share:
		row.Change = Worse
	case d < -share:
		row.Change = Better
	}
	c.Rows = append(c.Rows, row)
	for _, n := range []struct {
		name string
		a, b int64
	}{
		{"lost", a.Totals.Lost, b.Totals.Lost}, {"duplicates", a.Totals.Duplicates, b.Totals.Duplicates},
		{"early", a.Totals.Early, b.Totals.Early}, {"reordered", a.Totals.Reordered, b.Totals.Reordered},
		{"unexpected", a.Totals.Unexpected, b.Totals.Unexpected}, {"unverified", a.Totals.Unverified, b.Totals.Unverified},
	} {
		row := Row{Figure: n.name, Unit: "count", A: float64(n.a), B: float64(n.b), Change: Same}
		switch {
		case !a.Ledger.Checked || !b.Ledger.Checked:
			row.Change, row.Why = Unjudged, "no ledger"
		case n.b > n.a:
			row.Change = Worse
		case n.b < n.a:
			row.Change = Better
		}
		c.Rows = append(c.Rows, row)
	}
}

// step compares the percentiles of one step.
func (c *Comparison) step(a, b *load.Result, s, t *load.StepResult) {
	x, y := &s.Response, &t.Response
	p50 := func(v *load.Brief) int64 { return v.P50 }
	p99 := func(v *load.Brief) int64 { return v.P99 }
	most := func(v *load.Brief) int64 { return v.Max }
	for _, q := range []struct {
		name   string
		a, b   int64
		above  int64 // one value in so many lies above it
		second func(*load.Brief) int64
	}{
		{"response p50", x.P50, y.P50, 2, p50}, {"response p99", x.P99, y.P99, 100, p99}, {"response p99.9", x.P999, y.P999, 1000, most},
	} {
		row := Row{Step: stepName(&s.StepSnapshot), Figure: q.name, Unit: "ns", A: float64(q.a), B: float64(q.b)}
		const least = 10
		if x.Count < least*q.above || y.Count < least*q.above {
			row.Change, row.Why = Unjudged, "too few"
			c.Rows = append(c.Rows, row)
			continue
		}
		row.Noise = 3 * math.Hypot(row.A*noise(perSecond(a, s, q.second)), row.B*noise(perSecond(b, t, q.second)))
		row.Change = c.Rules.judge(row.A, row.B, row.Noise)
		c.Rows = append(c.Rows, row)
	}
}

// judge is for figures of which less is better.
func (r Rules) judge(a, b, noise float64) Change {
	beyond := max(float64(r.Floor), noise)
	switch limit := r.Percent / 100; {
	case b > a*(1+limit) && b-a > beyond:
		return Worse
	case a > b*(1+limit) && a-b > beyond:
		return Better
	}
	return Same
}

// perSecond is a figure of a step, second by second.
func perSecond(r *load.Result, s *load.StepResult, of func(*load.Brief) int64) (list []float64) {
	for i := range r.Seconds {
		row := &r.Seconds[i]
		if row.Phase != s.Phase || row.Draining {
			continue
		}
		for j := range row.Steps {
			if st := &row.Steps[j]; st.Name == s.Name && st.Response.Count > 0 {
				list = append(list, float64(of(&st.Response)))
			}
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
	mid := median(list)
	if mid <= 0 {
		return 0
	}
	dev := make([]float64, n)
	for i, v := range list {
		dev[i] = math.Abs(v - mid)
	}
	sigma := 1.4826 * median(dev)
	alike := min(max(resemblance(list), 0), 0.95)
	independent := float64(n) * (1 - alike) / (1 + alike)
	return 1.2533 * sigma / math.Sqrt(max(independent, 1)) / mid
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

// WriteComparison writes a comparison for people, at most 80 columns wide.
func WriteComparison(w io.Writer, a, b string, c *Comparison) error {
	p := &page{}
	p.para("A", a)
	p.para("B", b)
	for _, n := range c.Notes {
		p.para("note", n)
	}
	p.b.WriteByte('\n')
	p.line("%-22s %-15s %10s %10s %8s %8s", "step", "figure", "A", "B", "change", "")
	last := ""
	for _, r := range c.Rows {
		step := r.Step
		if step == last {
			step = ""
		}
		last = r.Step
		diff := "-"
		if r.A != 0 {
			diff = fmt.Sprintf("%+.1f%%", 100*(r.B-r.A)/r.A)
		} else if r.B != 0 {
			diff = "new"
		}
		word := map[Change]string{Better: "better", Worse: "WORSE", Unjudged: r.Why}[r.Change]
		p.line("%-22s %-15s %10s %10s %8s %s", ansi.Truncate(cli.Clean(step), 22, "~"), r.Figure, figure(r.A, r.Unit), figure(r.B, r.Unit), diff, word)
	}
	p.b.WriteByte('\n')
	switch {
	case !c.Judged:
		p.para("result", "not judged")
	case c.Regressions > 0:
		p.para("result", fmt.Sprintf("%d figures are worse: by over %g%%, %s and three times the noise", c.Regressions, c.Rules.Percent, Nanos(int64(c.Rules.Floor))))
	default:
		p.para("result", "nothing is worse")
	}
	fmt.Fprintf(&p.b, "\ncompare judged=%t regressions=%d rows=%d\n", c.Judged, c.Regressions, len(c.Rows))
	_, err := w.Write(p.b.Bytes())
	return err
}

func figure(v float64, unit string) string {
	switch unit {
	case "ns":
		return Nanos(int64(v))
	case "/s":
		return Short(v) + "/s"
	case "share":
		return strings.TrimSuffix(fmt.Sprintf("%.3f", 100*v), "0") + "%"
	}
	return cli.Count(int64(v))
}
