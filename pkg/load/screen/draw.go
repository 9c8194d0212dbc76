package screen

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// draw returns the text of the frame, which fills the screen: m.height lines of m.width columns.
func (m *model) draw() string {
	w, h := m.width, m.height
	if w <= 0 || h <= 0 {
		return ""
	}
	st := m.styles
	lines := []string{m.headerLine(w), m.timelineLine(w)}
	if body := h - 4; body > 0 {
		lines = append(lines, st.Lines(m.panelArea(w, body), w, body)...)
	}
	lines = append(lines, m.statusLine(w), m.styles.KeyLine(m.hints(), w))
	return strings.Join(st.Lines(lines, w, h), "\n")
}

// headerLine returns a line with the scenario, the state and time of the run, and the verdict.
func (m *model) headerLine(w int) string {
	st := m.styles
	left := st.Band.Render(" load ")
	if m.player() != nil {
		left = st.Band.Render(" replay ")
	}
	right, time := "", ""
	if s := m.snapshot; s != nil {
		right = m.verdictText() + " "
		time = m.stateText() + "  " + report.FormatClock(s.Elapsed)
		if s.Planned > 0 {
			time += " of " + report.FormatClock(s.Planned)
		}
		if p := m.player(); p != nil {
			time += fmt.Sprintf("  %gx", p.Rate())
		}
	}
	room := w - paint.Width(left) - paint.Width(time) - paint.Width(right) - 4
	if room < 4 {
		return left + " " + time + " " + right
	}
	return left + " " + st.Bold.Render(st.Fit(m.name(), room)) + " " + time + "  " + right
}

func (m *model) stateText() string {
	st := m.styles
	if p := m.player(); p != nil && p.Paused() {
		return st.Warn.Render("= paused")
	}
	if m.frozen {
		return st.Warn.Render("= frozen")
	}
	switch m.snapshot.State {
	case load.StateRunning:
		if m.stopping {
			return st.Warn.Render(st.Now + " stopping")
		}
		if s := m.snapshot.Steer; s != nil && s.Paused {
			return st.Warn.Render("= load paused")
		}
		return st.Good.Render(st.Now) + " running" + m.agentsText()
	case load.StateDone:
		return st.Good.Render(st.OK) + " done"
	}
	return st.Warn.Render(st.Wait) + " " + term.Clean(string(m.snapshot.State))
}

// agentsText says how many agents are not lost. It returns "" if the run has no agents.
func (m *model) agentsText() string {
	n, lost := len(m.snapshot.Agents), 0
	for i := range m.snapshot.Agents {
		if m.snapshot.Agents[i].State == load.AgentLost {
			lost++
		}
	}
	switch {
	case n == 0:
		return ""
	case lost > 0:
		return m.styles.Bad.Render(fmt.Sprintf(" %s %d of %d agents", m.styles.Bang, n-lost, n))
	}
	return fmt.Sprintf(" %d agents", n)
}

// verdictText returns the verdict with a sign before it.
func (m *model) verdictText() string {
	st := m.styles
	switch v := m.snapshot.Verdict; v {
	case load.Valid:
		return st.Good.Render(st.OK + " " + v)
	case "":
		return ""
	case load.Inconclusive:
		return st.Warn.Render(st.Bang + " " + v)
	default:
		return st.Bad.Render(st.Fail + " " + term.Clean(v))
	}
}

// timelineLine returns a line with the phase, the progress of the run and the thresholds.
func (m *model) timelineLine(w int) string {
	st, s := m.styles, m.snapshot
	if s == nil {
		return ""
	}
	left := " " + term.Clean(s.Phase.Name)
	if s.Phase.Of > 1 {
		left = fmt.Sprintf(" %d/%d%s", s.Phase.Index+1, s.Phase.Of, left)
	}
	if paint.Width(left) > 30 {
		left = st.Fit(left, 30)
	}
	good, bad := 0, 0
	for _, t := range s.Thresholds {
		switch {
		case t.Known && t.OK:
			good++
		case t.Known:
			bad++
		}
	}
	right := ""
	if len(s.Thresholds) > 0 {
		right = fmt.Sprintf("thresholds %s", st.Good.Render(fmt.Sprintf("%s %d", st.OK, good)))
		if bad > 0 {
			right += " " + st.Bad.Render(fmt.Sprintf("%s %d", st.Fail, bad))
		}
		if rest := len(s.Thresholds) - good - bad; rest > 0 {
			right += fmt.Sprintf(" %s %d", st.Wait, rest)
		}
		right += " "
	}
	if ends := s.Phase.Ends - s.Elapsed; s.State == load.StateRunning && s.Phase.Ends > 0 && ends >= 0 {
		left += " " + report.FormatClock(ends) + " left"
	}
	room := w - paint.Width(left) - paint.Width(right) - 3
	if room < 10 || s.Planned <= 0 {
		return st.Fit(left, max(0, w-paint.Width(right))) + right
	}
	return left + " " + m.progressBar(room) + "  " + right
}

// progressBar draws the progress of the run as a bar. It draws phases, faults and marks on the bar.
func (m *model) progressBar(w int) string {
	st, s := m.styles, m.snapshot
	at := func(d time.Duration) int { return min(int(float64(w)*d.Seconds()/s.Planned.Seconds()), w-1) }
	cells := []rune(st.Bar(s.Elapsed.Seconds()/s.Planned.Seconds(), w))
	styled := make([]paint.Paint, w)
	for _, mk := range s.Markers {
		i := at(mk.At)
		if i < 0 {
			continue
		}
		switch mk.Kind {
		case "phase":
			if i > 0 && styled[i].On == "" {
				cells[i], _ = utf8.DecodeRuneInString(st.Mark)
			}
		case "fault":
			cells[i], styled[i] = '!', st.Bad
		default:
			cells[i], styled[i] = '+', st.Warn
		}
	}
	var b strings.Builder
	for i, c := range cells {
		if styled[i].On != "" {
			b.WriteString(styled[i].Render(string(c)))
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// statusLine returns the line above the keys. The line shows an input, a question, a message, or
// the settings that differ from their defaults.
func (m *model) statusLine(w int) string {
	st := m.styles
	switch {
	case m.layer == layerFilter:
		return m.inputLine("filter", w)
	case m.layer == layerMark:
		return m.inputLine("mark", w)
	case m.layer == layerStop:
		return st.Warn.Render(st.Fit(" "+st.Bang+" stop the run now? What was accepted is still awaited, and the summary is printed.", w))
	case m.layer == layerSteer:
		return st.Warn.Render(st.Fit(" "+st.Bang+" change the load by hand? The run is then no measurement: INCONCLUSIVE.", w))
	case m.message != "":
		return st.Bold.Render(st.Fit(" "+term.Clean(m.message), w))
	case m.frozen:
		return st.Warn.Render(st.Fit(" = frozen: the run goes on; space shows it again", w))
	}
	var parts []string
	if m.filter != "" {
		parts = append(parts, "filter: "+term.Clean(m.filter)+" (esc: none)")
	}
	if s := m.snapshot; s != nil && s.Steer != nil && s.Steer.Changed {
		text := fmt.Sprintf("rate %.0f%% of the scenario's", 100*s.Steer.Pace)
		if s.Steer.Paused {
			text = "the load is paused (p: go on), " + text
		}
		parts = append(parts, text)
	}
	if d := windows[m.window]; d > 0 {
		parts = append(parts, "window "+report.FormatClock(d))
	}
	if m.ended && m.options.Stay && m.player() == nil {
		parts = append(parts, "the run is over: q")
	}
	return st.Dim.Render(st.Fit(" "+strings.Join(parts, "   "), w))
}

func (m *model) inputLine(name string, w int) string {
	st := m.styles
	return st.Fit(st.Bold.Render(" "+name+": ")+term.Clean(m.input.Value()), w)
}

// cursor returns the cursor of the input line, or nil if no input line is open.
func (m *model) cursor() *tea.Cursor {
	name := map[layer]string{layerFilter: " filter: ", layerMark: " mark: "}[m.layer]
	if name == "" || m.width <= 0 || m.height < 2 {
		return nil
	}
	return paint.Cursor(name, &m.input, m.width, m.height-2)
}

// panelArea returns the panels. If the help is open, it returns the help instead.
func (m *model) panelArea(w, h int) []string {
	st := m.styles
	switch {
	case m.layer == layerHelp:
		out := []string{st.Title("", "keys", "", w)}
		for _, k := range helpKeys {
			out = append(out, " "+st.Key.Render(st.Fit(k[0], 13))+" "+k[1])
		}
		return out
	case m.snapshot == nil:
		return []string{"", " waiting for the first second of the run"}
	case m.panel == panelAll:
		return m.allPanels(w, h)
	}
	return m.onePanel(m.panel, w, h)
}

// onePanel draws one panel on the whole screen.
func (m *model) onePanel(p panel, w, h int) []string {
	switch p {
	case panelStages:
		return stagesPanel(m, w, h)
	case panelRates:
		return ratesPanel(m, w, h)
	case panelBacklog:
		return backlogPanel(m, w, h)
	case panelLatency:
		table := latencyPanel(m, w, min(h/2, 2+max(4, latencyHeight(m))))
		return append(table, heatPanel(m, w, h-len(table))...)
	case panelLedger:
		return ledgerPanel(m, w, h)
	case panelErrors:
		return errorsPanel(m, w, h)
	}
	return healthPanel(m, w, h)
}

// allPanels draws several panels at once. A large terminal has two columns of panels. In a smaller
// terminal the panels are below each other.
func (m *model) allPanels(w, h int) []string {
	st := m.styles
	if w >= 120 && h >= 34 {
		lw := (w - 2) * 5 / 8
		rw := w - 2 - lw
		share := func(part, of int) int { return h * part / of }
		table := min(2+max(4, latencyHeight(m)), share(2, 9))
		waiting := share(9, 44)
		heat := min(heatHeight(m), h-waiting-table-share(12, 44))
		left := ratesPanel(m, lw, h-waiting-table-heat)
		left = append(left, backlogPanel(m, lw, waiting)...)
		left = append(left, latencyPanel(m, lw, table)...)
		left = append(left, heatPanel(m, lw, heat)...)
		right := stagesPanel(m, rw, share(15, 44))
		right = append(right, ledgerPanel(m, rw, 7)...)
		right = append(right, errorsPanel(m, rw, share(7, 44))...)
		right = append(right, healthPanel(m, rw, h-len(right))...)
		return st.Beside(left, right, lw, rw)
	}
	if w < 60 || h < 16 {
		out := ratesPanel(m, w, max(4, h/2))
		return append(out, latencyPanel(m, w, h-len(out))...)
	}
	bottom := 4
	table := min(2+max(2, latencyHeight(m)), max(4, h/3))
	chart := h - bottom - table
	var extra []string
	if chart > 14 {
		extra = heatPanel(m, w, min(10, chart-9))
		chart -= len(extra)
	}
	out := ratesPanel(m, w, chart)
	out = append(out, latencyPanel(m, w, table)...)
	out = append(out, extra...)
	third := (w - 4) / 3
	low := st.Beside(ledgerPanel(m, third, bottom), errorsPanel(m, third, bottom), third, third)
	low = st.Beside(low, healthPanel(m, w-2*third-4, bottom), 2*third+2, w-2*third-4)
	return append(out, low...)
}
