package screen

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// scrollList returns at most h lines of a list, beginning at the scroll position. If the list has
// more lines, the last returned line says how many lines are hidden.
func scrollList(m *model, list []string, h int) []string {
	if h <= 0 {
		return nil
	}
	from := 0
	if m.panel != panelAll {
		from = min(m.scroll, max(0, len(list)-h))
	}
	list = list[from:]
	if len(list) > h {
		hidden := len(list) - h + 1
		list = append(slices.Clone(list[:h-1]), m.styles.Dim.Render(fmt.Sprintf(" %d more", hidden)))
	}
	return list
}

// stagesPanel draws the steps, the thresholds and the markers.
func stagesPanel(m *model, w, h int) []string {
	st, s := m.styles, m.snapshot
	var list []string
	for _, step := range m.filteredSteps() {
		sign := st.Good.Render(st.Now)
		if step.Phase != s.Phase.Name || s.State != load.StateRunning {
			sign = st.Dim.Render(st.OK)
		}
		name := step.Phase + "/" + step.Name
		if step.Warmup {
			name += " (warm-up)"
		}
		list = append(list, " "+sign+" "+st.Fit(term.Clean(name), max(8, w/2-4))+" "+term.Clean(step.Arrival))
	}
	for _, t := range s.Thresholds {
		sign, p := st.Wait, st.Dim
		switch {
		case t.Known && t.OK:
			sign, p = st.OK, st.Good
		case t.Known:
			sign, p = st.Fail, st.Bad
		}
		text := report.ThresholdValue(t)
		if t.Known && !t.OK {
			text += "  since " + report.FormatClock(t.Since)
		}
		list = append(list, " "+p.Render(sign)+" "+st.Fit(term.Clean(t.Expr), max(8, w/2-4, w-26))+" "+text)
	}
	for i := len(s.Markers) - 1; i >= 0; i-- {
		mk := &s.Markers[i]
		sign := st.Dim.Render(st.Mark)
		switch mk.Kind {
		case "fault":
			sign = st.Bad.Render("!")
		case "user", "threshold", "steer":
			sign = st.Warn.Render("+")
		}
		list = append(list, " "+sign+" "+st.Right(report.FormatClock(mk.At), 6)+"  "+term.Clean(mk.Kind)+"  "+term.Clean(mk.Text))
	}
	note := ""
	if s.Phase.Of > 0 {
		note = fmt.Sprintf("phase %d of %d", s.Phase.Index+1, s.Phase.Of)
	}
	return st.Lines(append([]string{st.Title("1", "stages, thresholds, marks", note, w)}, scrollList(m, list, h-1)...), w, h)
}

// latencyHeight returns how many lines the table of latencies has.
func latencyHeight(m *model) int { return len(latencyLines(m)) }

type latencyLine struct {
	name string
	q    load.Quantiles
	now  bool // true: the line describes the last second, which has fewer percentiles
}

// latencyLines returns a line for the last second, and then lines for each step. If the screen
// shows several panels and several steps, each step has only the line of its response times.
func latencyLines(m *model) (list []latencyLine) {
	if n := len(m.snapshot.Seconds); n > 0 && m.filter == "" {
		row := &m.snapshot.Seconds[n-1]
		if b := row.Response; b.Count > 0 {
			list = append(list, latencyLine{"last second", load.Quantiles{Count: b.Count, P50: b.P50, P99: b.P99, Max: b.Max}, true})
		}
	}
	steps := m.filteredSteps()
	for i := len(steps) - 1; i >= 0; i-- { // the latest step first
		s := steps[i]
		name := s.Phase + "/" + s.Name
		if s.Phase == s.Name || s.Phase == "" {
			name = s.Name
		}
		if len(steps) > 1 && m.panel == panelAll {
			if s.Response.Count > 0 {
				list = append(list, latencyLine{name: name, q: s.Response})
			}
			continue
		}
		for _, k := range []struct {
			name string
			q    load.Quantiles
		}{{"response", s.Response}, {"service", s.Service}, {"lag", s.Lag}, {"end to end", s.EndToEnd}, {"lateness", s.Lateness}} {
			if k.q.Count > 0 {
				label := k.name
				if len(steps) > 1 {
					label = name + " " + k.name
				}
				list = append(list, latencyLine{name: label, q: k.q})
			}
		}
	}
	return list
}

// latencyPanel draws the percentiles of the run.
func latencyPanel(m *model, w, h int) []string {
	st := m.styles
	type column struct {
		name string
		of   func(*load.Quantiles) int64
		full bool // true: a single second has no such percentile
	}
	cols := []column{
		{"p50", func(q *load.Quantiles) int64 { return q.P50 }, false}, {"p90", func(q *load.Quantiles) int64 { return q.P90 }, true},
		{"p99", func(q *load.Quantiles) int64 { return q.P99 }, false}, {"p99.9", func(q *load.Quantiles) int64 { return q.P999 }, true},
		{"p99.99", func(q *load.Quantiles) int64 { return q.P9999 }, true}, {"max", func(q *load.Quantiles) int64 { return q.Max }, false},
	}
	if w < 88 {
		cols = slices.Delete(cols, 4, 5)
	}
	if w < 60 {
		cols = slices.Delete(cols, 1, 2)
	}
	const wide, counts = 8, 8
	name := max(8, w-counts-len(cols)*wide-1)
	head := " " + st.Fit("", name) + st.Right("count", counts)
	for _, c := range cols {
		head += st.Right(c.name, wide)
	}
	var list []string
	for _, r := range latencyLines(m) {
		line := " " + st.Fit(term.Clean(r.name), name) + st.Right(report.FormatCount(float64(r.q.Count)), counts)
		for _, c := range cols {
			text := ""
			if !r.now || !c.full {
				text = report.Nanos(c.of(&r.q))
			}
			line += st.Right(text, wide)
		}
		if r.now {
			line = st.Bold.Render(line)
		}
		list = append(list, line)
	}
	what := "response, since the start"
	if len(m.filteredSteps()) <= 1 || m.panel != panelAll {
		what = "since the start"
	}
	if len(list) == 0 {
		list = []string{st.Dim.Render(" no answer yet")}
	}
	if h < 2 {
		return st.Lines([]string{st.Title("4", "latency", what, w)}, w, h)
	}
	out := append([]string{st.Title("4", "latency", what, w), st.Dim.Render(head)}, scrollList(m, list, h-2)...)
	return st.Lines(out, w, h)
}

// ledgerPanel draws what happened to all accepted messages.
func ledgerPanel(m *model, w, h int) []string {
	st, t := m.styles, &m.snapshot.Totals
	two, cw := w >= 44 && h > 4, w
	if two {
		cw = (w - 2) / 2
	}
	var list []string
	bad := func(name string, n int64) {
		text := term.Count(n)
		if n > 0 {
			name, text = st.Bad.Render(st.Bang)+" "+name, st.Bad.Render(text)
		} else {
			name = st.Good.Render(st.OK) + " " + name
		}
		list = append(list, st.pair(name, text, cw))
	}
	plain := func(name string, n int64) { list = append(list, st.pair("  "+name, term.Count(n), cw)) }
	lost := func() {
		if m.snapshot.State == load.StateDone || t.Lost > 0 {
			bad("lost", t.Lost)
		} else {
			list = append(list, st.pair(st.Wait+" lost", "after the drain", cw))
		}
	}
	if h <= 4 { // the shortest form
		plain("waiting", t.Backlog)
		lost()
		bad("duplicates", t.Duplicates)
	} else {
		plain("accepted", t.Acked)
		plain("delivered", t.Delivered)
		plain("waiting", t.Backlog)
		lost()
		bad("duplicates", t.Duplicates)
		bad("early, late", t.Early+t.Late)
		bad("reordered", t.Reordered)
		bad("unexpected", t.Unexpected)
		bad("unverified", t.Unverified)
		plain("failed", t.Failed)
		plain("rejected", t.Rejected)
		plain("sent", t.Sent)
	}
	head := st.Title("5", "ledger", "", w)
	if two {
		half := (len(list) + 1) / 2
		list = st.Beside(list[:half], list[half:], cw, w-2-cw)
	}
	return st.Lines(append([]string{head}, scrollList(m, list, h-1)...), w, h)
}

// pair returns a line with a name on the left and a value on the right.
func (s *styles) pair(name, value string, w int) string {
	return " " + s.Fit(name, max(1, w-paint.Width(value)-3)) + " " + value
}

// errorsPanel draws the failures, the most frequent failure first.
func errorsPanel(m *model, w, h int) []string {
	st := m.styles
	names := stepNames(m)
	var total int64
	var counts []load.ErrorCount
	for _, e := range m.snapshot.Errors {
		if m.filter == "" || names[e.Step] {
			counts = append(counts, e)
			total += e.Count
		}
	}
	slices.SortStableFunc(counts, func(a, b load.ErrorCount) int { return cmp.Compare(b.Count, a.Count) })
	note := "none"
	if total > 0 {
		note = report.FormatCount(float64(total))
	}
	var list []string
	for _, e := range counts {
		text := " " + st.Bad.Render(st.Right(report.FormatCount(float64(e.Count)), 6)) + " " + term.Clean(e.Code)
		if w >= 40 {
			text += st.Dim.Render("  "+term.Clean(e.Class)) + "  " + term.Clean(e.Step) + st.Dim.Render("  "+e.Last.UTC().Format("15:04:05Z"))
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		list = []string{" " + st.Good.Render(st.OK) + " no request failed"}
	}
	return st.Lines(append([]string{st.Title("6", "errors", note, w)}, scrollList(m, list, h-1)...), w, h)
}

// healthPanel draws the figures that show whether the generator or its machine is the limit.
func healthPanel(m *model, w, h int) []string {
	st, g := m.styles, &m.snapshot.Health
	var list []string
	gauge := func(name string, share float64, text string) {
		p := st.Good
		switch {
		case share > 0.95:
			p = st.Bad
		case share > 0.8:
			p = st.Warn
		}
		room := w - 11 - paint.Width(text) - 2
		if room < 4 {
			list = append(list, st.pair(name, text, w))
			return
		}
		list = append(list, " "+st.Fit(name, 9)+" "+p.Render(st.Bar(share, min(room, 30)))+paint.Spaces(room-30)+" "+text)
	}
	of := func(v, whole float64) float64 {
		if whole <= 0 {
			return 0
		}
		return v / whole
	}
	whose := "cpu"
	if g.Embedded {
		whose = "cpu, both"
	}
	gauge(whose, of(g.CPU, g.CPUs), fmt.Sprintf("%.2f of %.3g", g.CPU, g.CPUs))
	gauge("woke late", min(float64(g.LagP99)/10e6, 1), report.Nanos(int64(g.LagP99)))
	if g.CalibratedRate > 0 {
		gauge("asked", g.GeneratorShare, fmt.Sprintf("%.0f%% of %s/s", 100*g.GeneratorShare, report.FormatCount(g.CalibratedRate)))
	}
	gauge("machine", of(g.MachineCPU, g.CPUs), fmt.Sprintf("%.2f, steal %.1f%%", g.MachineCPU, 100*g.Steal))
	gauge("busy", g.Busy, fmt.Sprintf("%.0f%% of workers", 100*g.Busy))
	if h <= 4 { // the shortest form has only the gauges
		return st.Lines(append([]string{st.Title("7", "generator", "", w)}, list...), w, h)
	}
	list = append(list,
		st.pair("GC pause, cores", fmt.Sprintf("%s, %.2f", report.Nanos(int64(g.GCPause)), g.GCCPU), w),
		st.pair("memory", report.FormatBytes(g.RSS), w),
		st.pair("goroutines, sockets", fmt.Sprintf("%d, %d", g.Goroutines, g.Sockets), w))
	list = append(list, agentLines(m, w)...)
	list = append(list, serverPanel(m, w)...)
	note := ""
	if g.Embedded {
		note = "with notifyd in it"
	}
	return st.Lines(append([]string{st.Title("7", "generator", note, w)}, scrollList(m, list, h-1)...), w, h)
}

// agentLines returns a line for each agent: its rate and the offset of its clock, or its state.
func agentLines(m *model, w int) (list []string) {
	st := m.styles
	for i := range m.snapshot.Agents {
		a := &m.snapshot.Agents[i]
		text := string(a.State)
		switch a.State {
		case load.AgentLost:
			text = st.Bad.Render(st.Bang + " lost at " + report.FormatClock(a.LostAt))
		case load.AgentRunning:
			text = report.FormatCount(a.Rate) + "/s, clock " + report.Nanos(int64(a.Offset))
			if a.Verdict == load.GeneratorBound {
				text = st.Warn.Render(st.Bang) + " " + text
			}
		}
		list = append(list, st.pair(term.Clean(a.Name), text, w))
	}
	return list
}

// serverPanel returns lines with the figures that the server reports about itself.
func serverPanel(m *model, w int) (list []string) {
	st, s := m.styles, &m.snapshot.Server
	if !s.Known {
		return nil
	}
	open := 0
	for _, v := range s.Circuits {
		if v > 0 {
			open++
		}
	}
	var lag int64
	for _, v := range s.Lag {
		lag += v
	}
	list = append(list, st.pair("server: unread", term.Count(lag), w), st.pair("server: dead letters", term.Count(s.DLQ), w))
	text := "none"
	if open > 0 {
		text = st.Bad.Render(fmt.Sprintf("%s %d", st.Bang, open))
	}
	list = append(list, st.pair("server: open circuits", text, w))
	if q := s.TimerLateness; q.Count > 0 {
		list = append(list, st.pair("server: timers late p99", report.Nanos(q.P99), w))
	}
	return list
}
