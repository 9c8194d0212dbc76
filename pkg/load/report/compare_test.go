package report

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

func changed(c *Comparison, want Change) (list []string) {
	for _, r := range c.Rows {
		if r.Change == want {
			list = append(list, strings.TrimPrefix(r.Step+" "+r.Figure, " "))
		}
	}
	return list
}

func TestCompare(t *testing.T) {
	t.Parallel()
	a := fixture(t)
	f := func(name string, change func(*load.Result), rules Rules, want ...string) {
		t.Helper()
		b := fixture(t)
		change(b)
		c := Compare(a, b, rules)
		if got := changed(&c, Worse); strings.Join(got, ", ") != strings.Join(want, ", ") || c.Regressions != len(want) {
			t.Errorf("%s: worse are %q (%d), want %q", name, got, c.Regressions, want)
		}
	}
	f("the same", func(*load.Result) {}, Rules{})
	f("lost", func(b *load.Result) { b.Totals.Lost = 1 }, Rules{}, "lost")
	f("duplicates", func(b *load.Result) { b.Totals.Duplicates = 2 }, Rules{}, "duplicates")
	f("accepted", func(b *load.Result) { b.Rates.Acked *= 0.89 }, Rules{}, "accepted")
	f("accepted within", func(b *load.Result) { b.Rates.Acked *= 0.91 }, Rules{})
	f("accepted, strict", func(b *load.Result) { b.Rates.Acked *= 0.91 }, Rules{Percent: 5}, "accepted")
	f("failed", func(b *load.Result) { b.Totals.Failed += b.Totals.Sent / 500 }, Rules{}, "failed")
	f("p50 by the floor", func(b *load.Result) { b.Steps[1].Response.P50 = a.Steps[1].Response.P50 + 90_000 }, Rules{Percent: 1})
	f("p50", func(b *load.Result) { b.Steps[1].Response.P50 *= 2 }, Rules{}, "steady/push response p50")
	f("service", func(b *load.Result) { b.Steps[1].Service.P50 *= 2 }, Rules{}, "steady/push service p50")
	// A lane was blocked for three seconds, so deliveries were late, although the server answered as fast
	// as before.
	f("end to end", func(b *load.Result) { b.Steps[1].EndToEnd.P50 *= 9; b.Steps[1].EndToEnd.P99 *= 90 }, Rules{}, "steady/push end to end p50", "steady/push end to end p99")
	f("backlog", func(b *load.Result) { b.Seconds[30].Backlog += 5000 }, Rules{}, "backlog peak")
	f("a little backlog", func(b *load.Result) { b.Seconds[30].Backlog += 20 }, Rules{})
	f("backlog of the drain", func(b *load.Result) { b.Seconds[62].Backlog, b.Seconds[62].Draining = 1e6, true }, Rules{})
	f("pending", func(b *load.Result) { b.Ledger.Pending = 1 }, Rules{}, "pending")
	f("warm-up", func(b *load.Result) { b.Steps[0].Response.P50 *= 9 }, Rules{})
	f("no ledger", func(b *load.Result) { b.Ledger.Checked = false; b.Totals.Lost = 5; b.Rates.Delivered = 0 }, Rules{})
	f("generator bound", func(b *load.Result) { b.Verdict.Code = load.GeneratorBound; b.Totals.Lost = 5; b.Rates.Acked = 1 }, Rules{})
	f("sink bound", func(b *load.Result) { b.Verdict.Code = load.SinkBound; b.Totals.Lost = 5 }, Rules{}, "lost")
}

// TestCompareFindsSlowness checks that answers that take 30% longer are Worse, although the seconds of the
// runs differ by chance. If the runs are exchanged, they are Better. A difference of 3% is Same.
func TestCompareFindsSlowness(t *testing.T) {
	t.Parallel()
	a, b := segmentOf(t, 1, 1, 1), segmentOf(t, 1, 1, 1.3)
	c := Compare(a, b, Rules{})
	if got := strings.Join(changed(&c, Worse), ", "); got != "steady/push response p50, steady/push service p50, steady/later response p50, steady/later response p99, steady/later service p50, steady/later service p99, steady/later end to end p50, spike/push response p50, spike/push response p99, spike/push service p50, spike/push service p99, spike/push end to end p50" {
		t.Errorf("worse: %s", got)
	}
	for _, r := range c.Rows {
		// The hanging provider is in both runs and determines the p99 of its step.
		if strings.Contains(r.Figure, "p99.9") && r.Change != Unjudged {
			t.Errorf("%s %s is judged from too few values", r.Step, r.Figure)
		}
	}
	back := Compare(b, a, Rules{})
	if back.Regressions != 0 || len(changed(&back, Better)) != c.Regressions {
		t.Errorf("the other way: %d worse, better %q", back.Regressions, changed(&back, Better))
	}
	little := Compare(a, segmentOf(t, 1, 1, 1.03), Rules{})
	if little.Regressions != 0 {
		t.Errorf("3%% slower: %q", changed(&little, Worse))
	}
}

// TestCompareKnowsNoise checks that the same change counts as noise if the seconds of the runs differ
// widely.
func TestCompareKnowsNoise(t *testing.T) {
	t.Parallel()
	of := func(p99 float64, seconds ...int64) *load.Result {
		r := &load.Result{Verdict: load.Verdict{Code: load.Valid}}
		s := load.StepSnapshot{Name: "push", Phase: "p"}
		s.Response = load.Quantiles{Count: 100_000, P50: 1e6, P99: int64(p99), P999: 9e6}
		r.Steps = []load.StepResult{{StepSnapshot: s}}
		for i := range 40 {
			v := seconds[i%len(seconds)]
			r.Seconds = append(r.Seconds, load.SecondRow{Second: i, Phase: "p", Steps: []load.SecondStep{{Name: "push", Response: load.Brief{Count: 2500, P50: 1e6, P99: v, Max: 9e6}}}})
		}
		return r
	}
	still := Compare(of(4e6, 4e6, 4.1e6, 3.9e6), of(5e6, 5e6, 5.1e6, 4.9e6), Rules{})
	if got := strings.Join(changed(&still, Worse), ", "); got != "p/push response p99" {
		t.Errorf("in calm seconds worse: %s", got)
	}
	wild := Compare(of(4e6, 1e6, 4e6, 9e6, 2e6, 7e6), of(5e6, 1e6, 5e6, 12e6, 2e6, 9e6), Rules{})
	if wild.Regressions != 0 {
		t.Errorf("in wild seconds worse: %q", changed(&wild, Worse))
	}
}

// TestCompareKnowsNoiseOfDelivery checks that the noise of end-to-end times is computed from their own
// seconds.
func TestCompareKnowsNoiseOfDelivery(t *testing.T) {
	t.Parallel()
	of := func(p99 float64, parts ...int64) *load.Result {
		s := load.StepResult{StepSnapshot: load.StepSnapshot{Name: "push", Phase: "p", EndToEnd: load.Quantiles{Count: 100_000, P50: 1e6, P99: int64(p99), P999: 9e6}}}
		for i := range 40 {
			s.EndToEndParts = append(s.EndToEndParts, load.Brief{Count: 2500, P50: 1e6, P99: parts[i%len(parts)], Max: 9e6}, load.Brief{})
		}
		return &load.Result{Verdict: load.Verdict{Code: load.Valid}, Steps: []load.StepResult{s}}
	}
	still := Compare(of(4e6, 4e6, 4.1e6, 3.9e6), of(5e6, 5e6, 5.1e6, 4.9e6), Rules{})
	if got := strings.Join(changed(&still, Worse), ", "); got != "p/push end to end p99" {
		t.Errorf("in calm seconds worse: %s", got)
	}
	wild := Compare(of(4e6, 1e6, 4e6, 9e6, 2e6, 7e6), of(5e6, 1e6, 5e6, 12e6, 2e6, 9e6), Rules{})
	if wild.Regressions != 0 {
		t.Errorf("in wild seconds worse: %q", changed(&wild, Worse))
	}
}

func TestCompareText(t *testing.T) {
	t.Parallel()
	a, b := segmentOf(t, 1, 1, 1), segmentOf(t, 1, 1, 1.3)
	b.Environment.CPU, b.Scenario.Digest, b.Totals.Lost = "Xeon\x1b[31m", "other", 3
	c := Compare(a, b, Rules{})
	var out bytes.Buffer
	if err := WriteComparison(&out, "20261120-093011-a", "20261120-093011-b", &c); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", out.Bytes())
	for _, l := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		if ansi.StringWidth(l) > 80 || notify.HasControl(l) {
			t.Errorf("line %q", l)
		}
	}
}

// TestMerge checks that the merged result of three segments has the figures that one generator would have
// counted.
func TestMerge(t *testing.T) {
	t.Parallel()
	whole := fixture(t)
	var parts []*load.Result
	for _, i := range []int{3, 1, 2} {
		parts = append(parts, segmentOf(t, i, 3, 1))
	}
	m, err := Merge(parts)
	if err != nil {
		t.Fatal(err)
	}
	// Delivered and Backlog are figures of the server. They depend on all segments together, so they are
	// not compared.
	whole.Totals.Delivered, whole.Totals.Backlog, m.Totals.Delivered, m.Totals.Backlog = 0, 0, 0, 0
	if m.Totals != whole.Totals {
		t.Errorf("totals %+v, want %+v", m.Totals, whole.Totals)
	}
	if len(m.Steps) != len(whole.Steps) {
		t.Fatalf("%d steps, want %d", len(m.Steps), len(whole.Steps))
	}
	for i := range m.Steps {
		got, want := &m.Steps[i], &whole.Steps[i]
		for k := range kinds {
			g, w := quantiles(&got.StepSnapshot, k), quantiles(&want.StepSnapshot, k)
			g.Mean, w.Mean = g.Mean/1000, w.Mean/1000 // sums of floats may differ in the last digits
			if g != w {
				t.Errorf("%s %s: %+v, want %+v", stepName(&got.StepSnapshot), kindNames[k], g, w)
			}
			if a, b := encodedHistogram(&got.Histograms, k), encodedHistogram(&want.Histograms, k); a != b {
				t.Errorf("%s %s: the histograms differ", stepName(&got.StepSnapshot), kindNames[k])
			}
		}
		if got.Totals != want.Totals {
			t.Errorf("%s: %+v, want %+v", got.Name, got.Totals, want.Totals)
		}
	}
	if len(m.Seconds) != len(whole.Seconds) || len(m.Intervals) != len(whole.Intervals) || len(m.Heat) != len(whole.Heat) {
		t.Fatalf("%d seconds, %d intervals, %d columns", len(m.Seconds), len(m.Intervals), len(m.Heat))
	}
	for i := range m.Heat {
		if m.Heat[i] != whole.Heat[i] {
			t.Errorf("heat of second %d differs", i)
		}
	}
	for i := range m.Intervals {
		l := &m.Intervals[i]
		if !slices.ContainsFunc(whole.Intervals, func(w load.Interval) bool { return w == *l }) {
			t.Errorf("interval at %s of %s %s differs", l.Start, l.Step, l.Kind)
		}
	}
	for i := range m.Seconds {
		if m.Seconds[i].Sent != whole.Seconds[i].Sent || m.Seconds[i].Acked != whole.Seconds[i].Acked {
			t.Errorf("second %d: %d sent, want %d", i, m.Seconds[i].Sent, whole.Seconds[i].Sent)
		}
	}
	if m.Segment != (load.Segment{I: 1, N: 1}) || m.Exit != 99 || m.Errors[0].Count != 3*whole.Errors[0].Count || len(m.Markers) != len(whole.Markers) {
		t.Errorf("segment %v, exit %d, errors %v, %d markers", m.Segment, m.Exit, m.Errors, len(m.Markers))
	}
	if m.Rates.Sent != whole.Rates.Sent {
		t.Errorf("sent %f/s, want %f", m.Rates.Sent, whole.Rates.Sent)
	}
}

// TestMergeOfOneServer checks that Merge does not add counts of a shared server, because each segment has
// read the counts of all segments.
func TestMergeOfOneServer(t *testing.T) {
	t.Parallel()
	merge := func(server string) *load.Result {
		a, b := segmentOf(t, 1, 2, 1), segmentOf(t, 2, 2, 1)
		for _, p := range []*load.Result{a, b} {
			p.Environment.Host, p.Environment.Server = "h", server
			p.Totals.Duplicates, p.Totals.Reordered, p.Ledger.Duplicates, p.Ledger.Reordered = 2, 3, 2, 3
			for i := range p.Seconds {
				p.Seconds[i].Acked, p.Seconds[i].Delivered = 5, 10
			}
		}
		m, err := Merge([]*load.Result{a, b})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	one, own := merge("http://127.0.0.1:7420"), merge("embedded")
	for _, c := range []struct {
		m                     *load.Result
		dup, moved, delivered int64
	}{{one, 2, 3, 10}, {own, 4, 6, 20}} {
		if c.m.Totals.Duplicates != c.dup || c.m.Ledger.Duplicates != c.dup || c.m.Totals.Reordered != c.moved || c.m.Ledger.Reordered != c.moved || c.m.Seconds[1].Delivered != c.delivered {
			t.Errorf("%+v, %+v, %d in a second; want %+v", c.m.Totals, c.m.Ledger, c.m.Seconds[1].Delivered, c)
		}
	}
	if one.Seconds[1].Backlog != 0 {
		t.Errorf("a backlog of %d", one.Seconds[1].Backlog)
	}
}

func TestMergeTakesTheWorst(t *testing.T) {
	t.Parallel()
	a, b := segmentOf(t, 1, 2, 1), segmentOf(t, 2, 2, 1)
	a.Exit, b.Exit = 0, 3
	a.Ledger.Checked = false
	b.Started = b.Started.Add(2 * time.Second)
	b.Verdict = load.Verdict{Code: load.GeneratorBound, Reasons: []string{"lag"}}
	a.Thresholds[1].OK, b.Thresholds[0].OK = true, false
	a.Thresholds[1].Value = 1
	b.Thresholds[3].OK, b.Thresholds[3].Known = false, false // its rate was changed during the run
	m, err := Merge([]*load.Result{b, a})
	if err != nil {
		t.Fatal(err)
	}
	if m.Exit != 3 || m.Ledger.Checked || m.Verdict.Code != load.GeneratorBound || m.Verdict.Reasons[0] != "segment 2: lag" || m.Sending != 62*time.Second {
		t.Errorf("exit %d, checked %t, verdict %+v, sending %s", m.Exit, m.Ledger.Checked, m.Verdict, m.Sending)
	}
	if len(m.Thresholds) != 4 || m.Thresholds[0].OK || m.Thresholds[1].OK || m.Thresholds[1].Value == 1 || !m.Thresholds[2].OK || m.Thresholds[3].OK {
		t.Errorf("thresholds %+v", m.Thresholds)
	}
	if first, last := m.Seconds[0], m.Seconds[len(m.Seconds)-1]; first.Second != 0 || last.Second != 64 {
		t.Errorf("seconds %d to %d", first.Second, last.Second)
	}
}

func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	f := func(want string, parts ...*load.Result) {
		t.Helper()
		if _, err := Merge(parts); notify.KindOf(err) != notify.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p := func(i, n int) *load.Result { return &load.Result{Segment: load.Segment{I: i, N: n}} }
	f("at least two", p(1, 1))
	f("there are 2 segments, but one of them is segment 1 of 3", p(1, 3), p(2, 3))
	f("is given twice", p(1, 2), p(1, 2))
	f("3 of 2 is not a valid segment", p(3, 2), p(1, 2))
	other := p(2, 2)
	other.Scenario.Digest = "x"
	f("different scenarios", p(1, 2), other)
	bad := p(2, 2)
	bad.Steps = []load.StepResult{{Histograms: load.Histograms{Lag: "HISTFAAAA"}}}
	f("not a valid HdrHistogram", p(1, 2), bad)
}
