package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

const textWidth = 80

// textPage collects the lines of a summary. It truncates lines that are wider than textWidth.
type textPage struct{ b bytes.Buffer }

func (p *textPage) line(format string, args ...any) {
	text := strings.TrimRight(ansi.Truncate(fmt.Sprintf(format, args...), textWidth, "~"), " ")
	p.b.WriteString(text)
	p.b.WriteByte('\n')
}

// para writes a name, and a text to the right of it. It wraps the text into several lines if
// needed.
func (p *textPage) para(name, text string) {
	const indent = 12
	room := textWidth - indent
	for _, l := range strings.Split(ansi.Hardwrap(ansi.Wordwrap(term.Clean(text), room, ""), room, true), "\n") {
		p.line("%-*s%s", indent, name, l)
		name = ""
	}
}

// WriteText writes the summary of a run for people. The summary is plain ASCII, except names in the
// scenario. Its lines are at most 80 columns wide, except the last line, which is for programs
// (FinalLine).
func WriteText(w io.Writer, r *load.Result) error {
	p := &textPage{}
	p.writeHead(r)
	p.writeFlow(r)
	p.writeLatency(r)
	p.writeThresholds(r)
	p.writeLedger(r)
	p.writeEvents(r)
	p.writeHealth(r)
	p.b.WriteByte('\n')
	p.para("verdict", verdictLine(&r.Verdict))
	for _, reason := range r.Verdict.Reasons {
		p.para("", "- "+reason)
	}
	p.b.WriteByte('\n')
	p.b.WriteString(FinalLine(r))
	p.b.WriteByte('\n')
	_, err := w.Write(p.b.Bytes())
	return err
}

var verdictMeans = map[string]string{
	load.Valid:            "the figures are the server's",
	load.GeneratorBound:   "the figures show the generator, not the server",
	load.SinkBound:        "the server did not accept the offered load",
	load.ConcurrencyBound: "the figures are the server's; its answers used up the workers",
	load.Inconclusive:     "too little, too short or too disturbed to say",
}

func verdictLine(v *load.Verdict) string {
	if m := verdictMeans[v.Code]; m != "" {
		return v.Code + ": " + m
	}
	return v.Code
}

func (p *textPage) writeHead(r *load.Result) {
	p.para("scenario", r.Scenario.Name)
	if r.Scenario.About != "" {
		p.para("", r.Scenario.About)
	}
	what := fmt.Sprintf("%s, %s of sending", r.Started.UTC().Format("2006-01-02 15:04:05Z"), FormatSeconds(r.Sending))
	if r.DrainTime > 0 {
		what += ", " + FormatSeconds(r.DrainTime) + " until the last delivery"
	}
	p.para("when", what)
	detail := fmt.Sprintf("seed %d", r.Scenario.Seed)
	if r.Scenario.Scale != "" {
		detail += ", scale " + r.Scenario.Scale
	}
	if r.Segment.N > 1 {
		detail += fmt.Sprintf(", segment %d of %d", r.Segment.I, r.Segment.N)
	}
	if r.Environment.Server != "" {
		detail += ", server " + r.Environment.Server
	}
	p.para("", detail)
	if r.Partial {
		why := cmp.Or(r.Stopped, "it was stopped")
		p.para("PARTIAL", "the figures end where the run was stopped: "+why)
	}
}

func (p *textPage) writeFlow(r *load.Result) {
	t := &r.Totals
	p.b.WriteByte('\n')
	row := func(name string, n int64, rate float64, note string) {
		p.line("%-12s%16s   %12s/s   %s", name, term.Count(n), term.Count(int64(rate+0.5)), note)
	}
	row("intended", t.Intended, r.Rates.Intended, "")
	row("sent", t.Sent, r.Rates.Sent, percent(float64(t.Sent), float64(t.Intended))+" of what was due")
	row("accepted", t.Acked, r.Rates.Acked, percent(float64(t.Acked), float64(t.Sent))+" of what was sent")
	if r.Ledger.Checked || t.Delivered > 0 {
		row("delivered", t.Delivered, r.Rates.Delivered, percent(float64(t.Delivered), float64(t.Acked))+" of what was accepted")
	}
	if t.Failed+t.Rejected > 0 {
		p.line("%-12s%16s   rejected %s, backlog at the end %s", "failed", term.Count(t.Failed), term.Count(t.Rejected), term.Count(t.Backlog))
	} else if t.Backlog > 0 {
		p.line("%-12s%16s", "backlog", term.Count(t.Backlog))
	}
}

func (p *textPage) writeLatency(r *load.Result) {
	steps := measuredSteps(r)
	p.b.WriteByte('\n')
	p.line("%-12s%14s %8s %8s %8s %8s %8s %7s", "latency", "count", "p50", "p90", "p99", "p99.9", "p99.99", "max")
	row := func(name string, q load.Quantiles) {
		if q.Count > 0 {
			p.line("%-12s%14s %8s %8s %8s %8s %8s %7s", ansi.Truncate(name, 12, "~"), term.Count(q.Count),
				Nanos(q.P50), Nanos(q.P90), Nanos(q.P99), percentileOrDash(q.Count, 1000, q.P999), percentileOrDash(q.Count, 10_000, q.P9999), Nanos(q.Max))
		}
	}
	for k := range kinds {
		row(kindNames[k], overallQuantiles(steps, k))
	}
	if len(steps) > 1 {
		p.line("response of each step")
		for _, s := range steps {
			name := stepName(&s.StepSnapshot)
			if ansi.StringWidth(name) > 11 {
				p.line("  %s", term.Clean(name))
				name = ""
			}
			row(" "+term.Clean(name), s.Response)
		}
	}
}

// percentileOrDash formats a percentile, or returns "-" if fewer than ten values are above it. The
// parameter oneIn means that one of oneIn values is above the percentile: for p99.9 it is 1000.
func percentileOrDash(count, oneIn, ns int64) string {
	if count < 10*oneIn {
		return "-"
	}
	return Nanos(ns)
}

func stepName(s *load.StepSnapshot) string {
	if s.Phase == "" || s.Phase == s.Name {
		return s.Name
	}
	return s.Phase + "/" + s.Name
}

func (p *textPage) writeThresholds(r *load.Result) {
	if len(r.Thresholds) == 0 {
		return
	}
	p.b.WriteByte('\n')
	name := "thresholds"
	for _, t := range r.Thresholds {
		p.line("%-12s%-7s %-40s %s", name, ThresholdWord(t), term.Clean(t.Expr), ThresholdValue(t))
		name = ""
	}
}

// ThresholdWord returns "ok", "MISSED" or "unknown".
func ThresholdWord(t load.ThresholdState) string {
	switch {
	case !t.Known:
		return "unknown"
	case t.OK:
		return "ok"
	}
	return "MISSED"
}

func (p *textPage) writeLedger(r *load.Result) {
	p.b.WriteByte('\n')
	l := &r.Ledger
	if !l.Checked {
		p.para("ledger", "none: the delivery of accepted messages was not checked")
		return
	}
	p.para("ledger", fmt.Sprintf("lost %s, duplicates %s, reordered %s, early %s, late %s, unexpected %s",
		term.Count(l.Lost), term.Count(l.Duplicates), term.Count(l.Reordered), term.Count(l.Early), term.Count(l.Late), term.Count(l.Unexpected)))
	p.para("", fmt.Sprintf("of %s accepted, %s delivered, %s ended otherwise, %s still on their way, %s unverified",
		term.Count(l.Expected), term.Count(l.Delivered), term.Count(l.Ended), term.Count(l.Pending), term.Count(l.Unverified)))
	for _, e := range l.Examples {
		p.para("", "see "+e)
	}
}

func (p *textPage) writeEvents(r *load.Result) {
	if len(r.Errors) > 0 {
		p.b.WriteByte('\n')
		const shown = 8
		list := slices.Clone(r.Errors)
		slices.SortStableFunc(list, func(a, b load.ErrorCount) int { return int(min(1, max(-1, b.Count-a.Count))) })
		name := "errors"
		for i, e := range list {
			if i == shown {
				p.line("%-12s%d more kinds", "", len(list)-i)
				break
			}
			p.line("%-12s%12s  %s %s  (%s)", name, term.Count(e.Count), term.Clean(e.Class), term.Clean(e.Code), term.Clean(e.Step))
			name = ""
		}
	}
	if len(r.Faults) > 0 {
		p.b.WriteByte('\n')
		name := "faults"
		for _, f := range r.Faults {
			p.para(name, faultLine(&f))
			name = ""
		}
	}
}

// serverLine returns the figures that the server reported about itself at the end of the run.
func serverLine(s *load.Server) string {
	unread := int64(0)
	for _, n := range s.Lag {
		unread += n
	}
	text := fmt.Sprintf("at the end %s records of its log not read, %s dead letters", term.Count(unread), term.Count(s.DLQ))
	open := []string{}
	for name, n := range s.Circuits {
		if n > 0 {
			open = append(open, name)
		}
	}
	if slices.Sort(open); len(open) > 0 {
		text += ", open circuits: " + strings.Join(open, ", ")
	}
	return text
}

func faultLine(f *load.FaultResult) string {
	if f.Error != "" {
		return fmt.Sprintf("%s at %s: %s", f.Name, FormatClock(f.Began), f.Error)
	}
	drained := "not drained"
	if f.Drained >= 0 {
		drained = "drained " + FormatSeconds(f.Drained) + " after it"
	}
	return fmt.Sprintf("%s, %s to %s: backlog %s, at most %s, %s", f.Name, FormatClock(f.Began), FormatClock(f.Ended),
		FormatCount(float64(f.BacklogBefore)), FormatCount(float64(f.BacklogPeak)), drained)
}

func (p *textPage) writeHealth(r *load.Result) {
	p.b.WriteByte('\n')
	h := &r.Health
	whose := "generator"
	if h.Embedded {
		whose = "process" // the figures include notifyd
	}
	p.para(whose, fmt.Sprintf("%.2f of %.3g cores, %s of CPU a message, GC pause %s, memory %s",
		h.CPU, h.CPUs, Nanos(int64(h.NsPerMessage)), Nanos(int64(h.GCPause)), FormatBytes(h.RSS)))
	text := fmt.Sprintf("lag p99 %s at worst (second %d), machine %.2f cores busy, steal %.1f%%",
		Nanos(int64(h.LagP99)), h.WorstLagSecond, h.MachineCPU, 100*h.Steal)
	if h.CalibratedRate > 0 {
		text += fmt.Sprintf(", %s/s to the null sink: this run asked for %.1f%% of it", FormatCount(h.CalibratedRate), 100*h.GeneratorShare)
	}
	p.para("", text)
	name := "agents"
	for i := range r.Agents {
		p.para(name, r.Agents[i].Name+": "+AgentText(&r.Agents[i]))
		name = ""
	}
	if r.Server.Known {
		p.para("server", serverLine(&r.Server))
	}
}

// AgentText describes an agent: its sent messages, its CPU and the offset of its clock. For a lost
// agent it says when and why the agent was lost.
func AgentText(a *load.Agent) string {
	if a.State == load.AgentLost {
		return fmt.Sprintf("LOST at %s: %s; %s sent, %s not sent", FormatClock(a.LostAt), a.LostBecause, term.Count(a.Sent), term.Count(a.NotSent))
	}
	text := fmt.Sprintf("%s sent, %.2f of %.3g cores, clock %s off", term.Count(a.Sent), a.CPU, a.CPUs, Nanos(int64(a.Offset)))
	if a.Verdict == load.GeneratorBound {
		text = "the limit: " + text
	}
	return text
}

// FinalLine returns the figures of a run as one line for programs. The line consists of names and
// values without spaces. Times are in microseconds.
func FinalLine(r *load.Result) string {
	t := &r.Totals
	q := overallQuantiles(measuredSteps(r), response)
	var b strings.Builder
	b.WriteString("load")
	add := func(name string, v any) { fmt.Fprintf(&b, " %s=%v", name, v) }
	add("scenario", asciiWord(r.Scenario.Name))
	add("verdict", asciiWord(r.Verdict.Code))
	add("exit", r.Exit)
	add("sent", t.Sent)
	add("accepted", t.Acked)
	add("delivered", t.Delivered)
	add("failed", t.Failed+t.Rejected)
	add("lost", t.Lost)
	add("duplicates", t.Duplicates)
	add("accepted_per_s", int64(r.Rates.Acked+0.5))
	add("p50_us", q.P50/1000)
	add("p99_us", q.P99/1000)
	if q.Count >= 10_000 {
		add("p999_us", q.P999/1000)
	} else {
		add("p999_us", "-") // fewer than ten values are above this percentile
	}
	if len(r.Thresholds) > 0 {
		add("missed", countMissed(r))
	}
	return b.String()
}

// countMissed returns the number of thresholds that do not hold.
func countMissed(r *load.Result) (n int) {
	for _, t := range r.Thresholds {
		if !t.OK {
			n++
		}
	}
	return n
}

// asciiWord makes one word of a text. It replaces everything except ASCII letters, digits, dots,
// dashes and underscores with dashes. An empty text becomes "-".
func asciiWord(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, s)
	if s == "" {
		return "-"
	}
	return s
}
