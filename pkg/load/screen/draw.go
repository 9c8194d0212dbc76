package screen

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/term"
)

// draw is the frame: exactly height lines of width columns.
func (m *model) draw() string {
	w, h := m.width, m.height
	if w <= 0 || h <= 0 {
		return ""
	}
	st := m.st
	lines := []string{m.header(w), m.timeline(w)}
	if body := h - 4; body > 0 {
		lines = append(lines, st.lines(m.body(w, body), w, body)...)
	}
	lines = append(lines, m.status(w), m.keyLine(w))
	return strings.Join(st.lines(lines, w, h), "\n")
}

// header is what runs, how far it is, and whether its figures count.
func (m *model) header(w int) string {
	st := m.st
	left := st.band.render(" load ")
	if m.player() != nil {
		left = st.band.render(" replay ")
	}
	right, time := "", ""
	if s := m.snap; s != nil {
		right = m.verdict() + " "
		time = m.state() + "  " + report.Clock(s.Elapsed)
		if s.Planned > 0 {
			time += " of " + report.Clock(s.Planned)
		}
		if p := m.player(); p != nil {
			time += fmt.Sprintf("  %gx", p.Rate())
		}
	}
	room := w - width(left) - width(time) - width(right) - 4
	if room < 4 {
		return left + " " + time + " " + right
	}
	return left + " " + st.bold.render(st.fit(m.name(), room)) + " " + time + "  " + right
}

func (m *model) state() string {
	st := m.st
	if p := m.player(); p != nil && p.Paused() {
		return st.warn.render("= paused")
	}
	if m.frozen {
		return st.warn.render("= frozen")
	}
	switch m.snap.State {
	case load.StateRunning:
		if m.stopping {
			return st.warn.render(st.now + " stopping")
		}
		if s := m.snap.Steer; s != nil && s.Paused {
			return st.warn.render("= load paused")
		}
		return st.good.render(st.now) + " running"
	case load.StateDone:
		return st.good.render(st.ok) + " done"
	}
	return st.warn.render(st.wait) + " " + term.Clean(string(m.snap.State))
}

// verdict is a sign and a word.
func (m *model) verdict() string {
	st := m.st
	switch v := m.snap.Verdict; v {
	case load.Valid:
		return st.good.render(st.ok + " " + v)
	case "":
		return ""
	case load.Inconclusive:
		return st.warn.render(st.bang + " " + v)
	default:
		return st.bad.render(st.fail + " " + term.Clean(v))
	}
}

// timeline is the phase, how far the run is with its marks, and the thresholds.
func (m *model) timeline(w int) string {
	st, s := m.st, m.snap
	if s == nil {
		return ""
	}
	left := " " + term.Clean(s.Phase.Name)
	if s.Phase.Of > 1 {
		left = fmt.Sprintf(" %d/%d%s", s.Phase.Index+1, s.Phase.Of, left)
	}
	if width(left) > 30 {
		left = st.fit(left, 30)
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
		right = fmt.Sprintf("thresholds %s", st.good.render(fmt.Sprintf("%s %d", st.ok, good)))
		if bad > 0 {
			right += " " + st.bad.render(fmt.Sprintf("%s %d", st.fail, bad))
		}
		if rest := len(s.Thresholds) - good - bad; rest > 0 {
			right += fmt.Sprintf(" %s %d", st.wait, rest)
		}
		right += " "
	}
	if ends := s.Phase.Ends - s.Elapsed; s.State == load.StateRunning && s.Phase.Ends > 0 && ends >= 0 {
		left += " " + report.Clock(ends) + " left"
	}
	room := w - width(left) - width(right) - 3
	if room < 10 || s.Planned <= 0 {
		return st.fit(left, max(0, w-width(right))) + right
	}
	return left + " " + m.track(room) + "  " + right
}

// track is the run as a bar, with the beginnings of phases and faults on it.
func (m *model) track(w int) string {
	st, s := m.st, m.snap
	at := func(d time.Duration) int { return min(int(float64(w)*d.Seconds()/s.Planned.Seconds()), w-1) }
	cells := []rune(st.bar(s.Elapsed.Seconds()/s.Planned.Seconds(), w))
	styled := make([]paint, w)
	for _, mk := range s.Markers {
		i := at(mk.At)
		if i < 0 {
			continue
		}
		switch mk.Kind {
		case "phase":
			if i > 0 && styled[i].on == "" {
				cells[i], _ = utf8.DecodeRuneInString(st.mark)
			}
		case "fault":
			cells[i], styled[i] = '!', st.bad
		default:
			cells[i], styled[i] = '+', st.warn
		}
	}
	var b strings.Builder
	for i, c := range cells {
		if styled[i].on != "" {
			b.WriteString(styled[i].render(string(c)))
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// status is the line over the keys: what is typed, asked, or was done.
func (m *model) status(w int) string {
	st := m.st
	switch {
	case m.layer == layerFilter:
		return m.inputLine("filter", w)
	case m.layer == layerMark:
		return m.inputLine("mark", w)
	case m.layer == layerStop:
		return st.warn.render(st.fit(" "+st.bang+" stop the run now? What was accepted is still awaited, and the summary is printed.", w))
	case m.layer == layerSteer:
		return st.warn.render(st.fit(" "+st.bang+" change the load by hand? The run is then no measurement: INCONCLUSIVE.", w))
	case m.said != "":
		return st.bold.render(st.fit(" "+term.Clean(m.said), w))
	case m.frozen:
		return st.warn.render(st.fit(" = frozen: the run goes on; space shows it again", w))
	}
	var parts []string
	if m.filter != "" {
		parts = append(parts, "filter: "+term.Clean(m.filter)+" (esc: none)")
	}
	if s := m.snap; s != nil && s.Steer != nil && s.Steer.Changed {
		text := fmt.Sprintf("rate %.0f%% of the scenario's", 100*s.Steer.Pace)
		if s.Steer.Paused {
			text = "the load is paused (p: go on), " + text
		}
		parts = append(parts, text)
	}
	if d := windows[m.window]; d > 0 {
		parts = append(parts, "window "+report.Clock(d))
	}
	if m.ended && m.opt.Stay && m.player() == nil {
		parts = append(parts, "the run is over: q")
	}
	return st.dim.render(st.fit(" "+strings.Join(parts, "   "), w))
}

func (m *model) inputLine(name string, w int) string {
	st := m.st
	return st.fit(st.bold.render(" "+name+": ")+term.Clean(m.input.Value()), w)
}

// cursor stands where one types.
func (m *model) cursor() *tea.Cursor {
	name := map[layer]string{layerFilter: " filter: ", layerMark: " mark: "}[m.layer]
	if name == "" || m.width <= 0 || m.height < 2 {
		return nil
	}
	before := term.Clean(string([]rune(m.input.Value())[:m.input.Position()]))
	return tea.NewCursor(min(len(name)+ansi.StringWidth(before), m.width-1), m.height-2)
}

func (m *model) keyLine(w int) string {
	var b strings.Builder
	for _, k := range m.hints() {
		if w -= len(k.keys) + len(k.does) + 3; w < 0 {
			break // what is not to be seen is in the help
		}
		b.WriteString(" " + m.st.key.render(k.keys) + " " + k.does + " ")
	}
	return b.String()
}

// body is the panels, or what lies over them.
func (m *model) body(w, h int) []string {
	st := m.st
	switch {
	case m.layer == layerHelp:
		out := []string{st.title("", "keys", "", w)}
		for _, k := range helpKeys {
			out = append(out, " "+st.key.render(st.fit(k.keys, 13))+" "+k.does)
		}
		return out
	case m.snap == nil:
		return []string{"", " waiting for the first second of the run"}
	case m.panel == panelAll:
		return m.all(w, h)
	}
	return m.one(m.panel, w, h)
}

// one is a panel that has the screen for itself.
func (m *model) one(p panel, w, h int) []string {
	switch p {
	case panelStages:
		return m.stages(w, h)
	case panelRates:
		return m.rates(w, h)
	case panelBacklog:
		return m.backlog(w, h)
	case panelLatency:
		table := m.latency(w, min(h/2, 2+max(4, m.latencyRows())))
		return append(table, m.heat(w, h-len(table))...)
	case panelLedger:
		return m.ledger(w, h)
	case panelErrors:
		return m.errors(w, h)
	}
	return m.health(w, h)
}

// all is the panels at once: in two columns where there is room, else below each
// other.
func (m *model) all(w, h int) []string {
	st := m.st
	if w >= 120 && h >= 34 {
		lw := (w - 2) * 5 / 8
		rw := w - 2 - lw
		share := func(part, of int) int { return h * part / of }
		table := min(2+max(4, m.latencyRows()), share(2, 9))
		waiting := share(9, 44)
		heat := min(m.heatRows(), h-waiting-table-share(12, 44))
		left := m.rates(lw, h-waiting-table-heat)
		left = append(left, m.backlog(lw, waiting)...)
		left = append(left, m.latency(lw, table)...)
		left = append(left, m.heat(lw, heat)...)
		right := m.stages(rw, share(15, 44))
		right = append(right, m.ledger(rw, 7)...)
		right = append(right, m.errors(rw, share(7, 44))...)
		right = append(right, m.health(rw, h-len(right))...)
		return st.beside(left, right, lw, rw)
	}
	if w < 60 || h < 16 {
		out := m.rates(w, max(4, h/2))
		return append(out, m.latency(w, h-len(out))...)
	}
	bottom := 4
	table := min(2+max(2, m.latencyRows()), max(4, h/3))
	chart := h - bottom - table
	var extra []string
	if chart > 14 {
		extra = m.heat(w, min(10, chart-9))
		chart -= len(extra)
	}
	out := m.rates(w, chart)
	out = append(out, m.latency(w, table)...)
	out = append(out, extra...)
	third := (w - 4) / 3
	low := st.beside(m.ledger(third, bottom), m.errors(third, bottom), third, third)
	low = st.beside(low, m.health(w-2*third-4, bottom), 2*third+2, w-2*third-4)
	return append(out, low...)
}
