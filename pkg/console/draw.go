package console

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// detailSheet is the detail page of a row.
type detailSheet struct {
	key   string
	title string
	lines [][2]string // name and value
	next  []string    // command lines that may be useful next
}

// draw returns the frame, which fills the terminal exactly: m.height lines of m.width columns.
func (m *model) draw() string {
	w, h := m.width, m.height
	if w <= 0 || h <= 0 {
		return ""
	}
	lines := []string{m.header(w), tabLine(m, w)}
	if body := h - 4; body > 0 {
		lines = append(lines, m.style.Lines(m.body(w, body), w, body)...)
	}
	lines = append(lines, m.status(w), keysLine(m, w))
	return strings.Join(m.style.Lines(lines, w, h), "\n")
}

func (m *model) header(w int) string {
	st := &m.style
	name := "notifyd"
	if m.opt.Context != "" {
		name += " " + term.Clean(m.opt.Context)
	}
	band := &st.Band
	if m.opt.Protected {
		name, band = name+" PROTECTED", &st.Alarm
	}
	left := band.Render(" " + name + " ")
	clock := m.now.UTC().Format("15:04:05Z")
	state, style := linkState(m)
	right := style.Render(state) + "  " + clock + " "
	room := w - ansi.StringWidth(left) - ansi.StringWidth(right) - 2
	if room < 0 {
		return left + " " + style.Render(state)
	}
	return left + " " + st.Fit(term.Clean(m.opt.URL), room) + " " + right
}

// linkState returns a short text that says whether the server answers.
func linkState(m *model) (string, *paint.Paint) {
	st := &m.style
	switch {
	case !m.link.awaySince.IsZero():
		return st.Fail + " no answer", &st.Bad
	case m.frozen:
		return "= paused", &st.Warn
	case m.opt.ReadOnly != "":
		return st.OK + " read only", &st.Good
	}
	for f := range feeds {
		if !m.states[f].lastAnswer.IsZero() || m.states[f].refused != nil {
			return st.OK + " answers", &st.Good
		}
	}
	return "asking", &st.Dim
}

// tabLine returns the names of the pages, with the number of items that need attention.
func tabLine(m *model, w int) string {
	st := &m.style
	notes := [tabs]string{}
	if n := m.data.top.Total; n > 0 {
		notes[tabLetters] = term.Count(n)
	}
	running, waits := 0, 0
	for i := range m.data.jobs {
		switch m.data.jobs[i].State {
		case "running":
			running++
		case "waiting", "stopped", "failed", "paused":
			waits++
		}
	}
	switch {
	case waits > 0:
		notes[tabJobs] = term.Count(waits) + "!"
	case running > 0:
		notes[tabJobs] = term.Count(running)
	}
	if n := len(notClosedCircuits(m)); n > 0 {
		notes[tabCircuits] = term.Count(n) + "!"
	}
	build := func(short bool) string {
		var b strings.Builder
		for t := range tabs {
			text := fmt.Sprint(int(t) + 1)
			if !short || t == m.tab {
				text += " " + tabNames[t]
			}
			if notes[t] != "" {
				text += " (" + notes[t] + ")"
			}
			if t == m.tab {
				b.WriteString(st.Band.Render("[" + text + "]"))
			} else {
				b.WriteString(" " + text + " ")
			}
		}
		return b.String()
	}
	line := build(false)
	if ansi.StringWidth(line) > w {
		line = build(true)
	}
	return line
}

// status returns the line above the key hints: a problem, or the result of the last change.
func (m *model) status(w int) string {
	st := &m.style
	switch {
	case m.layer == layerFilter:
		return m.inputLine("filter", w)
	case !m.link.awaySince.IsZero():
		again := "trying again"
		if d := m.link.nextTry.Sub(m.now); d > 0 {
			again = fmt.Sprintf("next try in %s (r: now)", spanText(d+time.Second))
		}
		return st.Bad.Render(st.Fit(fmt.Sprintf(" %s no answer from the server for %s; %s: %s", st.Fail, spanText(m.now.Sub(m.link.awaySince)), again, term.Clean(cause(m.link.lastErr))), w))
	case m.notice.text != "":
		style, sign := &st.Bold, st.More
		switch {
		case m.notice.bad:
			style, sign = &st.Warn, st.Bang
		case m.notice.done:
			sign = st.OK
		}
		return style.Render(st.Fit(" "+sign+" "+term.Clean(m.notice.text), w))
	case m.frozen:
		return st.Warn.Render(st.Fit(" = paused: the page shows old data; p continues", w))
	case m.opt.ReadOnly != "" && len(hintsOf[m.tab]) > 0:
		return st.Dim.Render(st.Fit(" read only: "+term.Clean(m.opt.ReadOnly), w))
	}
	return ""
}

// inputLine returns the line with the name and the text of the input, and with the error of that
// text, if there is one.
func (m *model) inputLine(name string, w int) string {
	st := &m.style
	line := st.Bold.Render(" "+name+": ") + st.Fit(term.Clean(m.input.Value()), max(8, min(w-len(name)-4, 60)))
	if m.inputError != "" {
		line = st.Fit(" "+name+": "+term.Clean(m.input.Value()), w/3) + " " + st.Warn.Render(st.Bang+" "+term.Clean(m.inputError))
	}
	return st.Fit(line, w)
}

// cursor returns the position of the text cursor.
func (m *model) cursor() *tea.Cursor {
	if m.layer != layerFilter || m.width <= 0 || m.height < 2 {
		return nil
	}
	return paint.Cursor(" filter: ", &m.input, m.width, m.height-2)
}

// keysLine returns the hints for the keys that work on this page.
func keysLine(m *model, w int) string {
	var list []paint.Hint
	switch m.layer {
	case layerFilter:
		list = []paint.Hint{{"enter", "apply"}, {"esc", "leave"}}
	case layerHelp:
		list = []paint.Hint{{"any key", "back"}}
	case layerConfirm:
		list = []paint.Hint{{"y", "yes"}, {"n, esc", "no"}}
		if m.confirming.word != "" {
			list = []paint.Hint{{"enter", "yes"}, {"esc", "no"}}
		}
		if m.confirming.busy != "" {
			list = []paint.Hint{{"esc", "cancel"}}
		}
	default:
		for _, k := range hintsOf[m.tab] {
			if m.opt.ReadOnly == "" && m.whyNotOffered(k) == "" {
				list = append(list, k)
			}
		}
		list = append(list, paint.Hint{"q", "quit"}, paint.Hint{"?", "help"})
		if m.layer == layerDetail {
			list = append(list, paint.Hint{"esc", "back"})
		} else if m.tab != tabOverview {
			list = append(list, paint.Hint{"enter", "details"}, paint.Hint{"/", "filter"})
		}
		list = append(list, paint.Hint{"1-5", "page"}, paint.Hint{"p", map[bool]string{false: "pause", true: "continue"}[m.frozen]}, paint.Hint{"r", "refresh"})
	}
	return m.style.KeyLine(list, w)
}

// body returns the page, or the layer that is shown instead of the page.
func (m *model) body(w, h int) []string {
	switch m.layer {
	case layerHelp:
		return m.help(w)
	case layerDetail:
		return drawSheet(m, w, h)
	case layerConfirm:
		return drawQuestion(m, w)
	}
	switch m.tab {
	case tabOverview:
		return overview(m, w, h)
	case tabLetters:
		return lettersPage(m, w, h)
	case tabJobs:
		return jobsPage(m, w, h)
	case tabCircuits:
		return circuitsPage(m, w, h)
	}
	return schedulesPage(m, w, h)
}

// ageNote returns a note for the title of a panel: "asking" or "refused" if the panel has no data,
// or the age of the data if they are too old. Otherwise it returns "".
func (m *model) ageNote(f feed) string {
	s := &m.states[f]
	if s.lastAnswer.IsZero() {
		if s.refused != nil {
			return "refused"
		}
		return "asking"
	}
	if age := m.now.Sub(s.lastAnswer); age > 3*pollInterval[f].seen+2*time.Second {
		return "old: " + ago(m.now, s.lastAnswer)
	}
	return ""
}

// panelProblem returns a line to show instead of a panel that has no data. The result ok is false
// if the panel has data.
func panelProblem(m *model, f feed) (line string, ok bool) {
	s := &m.states[f]
	if s.refused != nil {
		return " " + m.style.Warn.Render(m.style.Bang+" "+term.Clean(describe(s.refused))), true
	}
	if s.lastAnswer.IsZero() {
		return m.style.Dim.Render(" no answer yet"), true
	}
	return "", false
}

func (m *model) help(w int) []string {
	st := &m.style
	out := []string{st.Title("", "keys", "", w)}
	add := func(list []paint.Hint) {
		for _, k := range list {
			out = append(out, " "+st.Key.Render(st.Fit(k[0], 13))+" "+k[1])
		}
	}
	add(hintsAll)
	for t := range tabs {
		if len(hintsOf[t]) > 0 {
			var parts []string
			for _, k := range hintsOf[t] {
				parts = append(parts, st.Key.Render(k[0])+" "+k[1])
			}
			out = append(out, " "+st.Fit(tabNames[t], 13)+" "+strings.Join(parts, "  "))
		}
	}
	changes := "capital letters; each asks for confirmation, and shows the command that does the same"
	if m.opt.ReadOnly != "" {
		changes = "capital letters; they are off: " + term.Clean(m.opt.ReadOnly)
	}
	out = append(out, wrap(st, "changes", changes, w)...)
	return append(out, wrap(st, "filters", "words that a row must contain; for dead letters "+strings.Join(api.LetterWords(), ":, ")+":, such as channel:push since:-2h", w)...)
}

func drawSheet(m *model, w, h int) []string {
	st := &m.style
	d := &m.detail
	out := []string{st.Title("", term.Clean(d.title), "", w)}
	room := max(1, h-1-len(d.next)-1)
	var lines []string
	for _, l := range d.lines {
		if l[1] != "" {
			lines = append(lines, wrap(st, l[0], term.Clean(l[1]), w)...)
		}
	}
	from := min(m.scroll, max(0, len(lines)-room))
	shown := lines[from:min(len(lines), from+room)]
	out = append(out, shown...)
	if hidden := len(lines) - from - len(shown); hidden > 0 {
		out[len(out)-1] = st.Dim.Render(fmt.Sprintf(" %d more lines: j", hidden+1))
	}
	out = append(out, "")
	for _, c := range d.next {
		out = append(out, " "+st.Accent.Render("$ "+term.Clean(c)))
	}
	return out
}

// wrap returns the lines that show a name and a value. It breaks a long value into several lines.
func wrap(s *paint.Styles, name, value string, w int) (out []string) {
	room := max(8, w-16)
	for i, line := range strings.Split(ansi.Hardwrap(ansi.Wordwrap(value, room, ""), room, true), "\n") {
		if i > 0 {
			name = ""
		}
		out = append(out, " "+s.Dim.Render(s.Fit(term.Clean(name), 13))+" "+line)
	}
	return out
}

func drawQuestion(m *model, w int) []string {
	st, q := &m.style, m.confirming
	out := []string{st.Title("", "confirm", "", w), "", " " + st.Warn.Render(st.Bang+" "+term.Clean(q.title)), ""}
	where := m.opt.URL
	if m.opt.Context != "" {
		where = m.opt.Context + ", " + where
	}
	if m.opt.Protected {
		where += ", PROTECTED"
	}
	out = append(out, wrap(st, "server", term.Clean(where), w)...)
	for _, f := range q.facts {
		if f[1] != "" {
			out = append(out, wrap(st, f[0], term.Clean(f[1]), w)...)
		}
	}
	out = append(out, wrap(st, "the same as", term.Clean(q.command), w)...)
	out = append(out, "")
	switch {
	case q.busy != "":
		out = append(out, " "+q.busy+" ...")
	case q.word != "":
		out = append(out, " type "+st.Bold.Render(term.Clean(q.word))+" and press enter to confirm, esc to cancel", m.inputLine("context", w))
	default:
		out = append(out, " "+st.Bold.Render("y")+" to confirm, "+st.Bold.Render("n")+" or esc to cancel")
	}
	return out
}
