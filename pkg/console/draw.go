package console

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

// sheet is a thing in full.
type sheet struct {
	key   string
	title string
	lines [][2]string // name and value
	next  []string    // command lines
}

// draw is the frame: exactly height lines of width columns.
func (m *model) draw() string {
	w, h := m.width, m.height
	if w <= 0 || h <= 0 {
		return ""
	}
	lines := []string{m.header(w), m.tabLine(w)}
	if body := h - 4; body > 0 {
		lines = append(lines, m.style.lines(m.body(w, body), w, body)...)
	}
	lines = append(lines, m.status(w), m.keyLine(w))
	return strings.Join(m.style.lines(lines, w, h), "\n")
}

func (m *model) header(w int) string {
	st := &m.style
	name := "notifyd"
	if m.opt.Context != "" {
		name += " " + term.Clean(m.opt.Context)
	}
	band := &st.band
	if m.opt.Protected {
		name, band = name+" PROTECTED", &st.alarm
	}
	left := band.Render(" " + name + " ")
	clock := m.now.UTC().Format("15:04:05Z")
	state, style := m.linkState()
	right := style.Render(state) + "  " + clock + " "
	room := w - ansi.StringWidth(left) - ansi.StringWidth(right) - 2
	if room < 0 {
		return left + " " + style.Render(state)
	}
	return left + " " + st.fit(term.Clean(m.opt.URL), room) + " " + right
}

// linkState is whether the server answers, in a few words.
func (m *model) linkState() (string, *lipgloss.Style) {
	st := &m.style
	switch {
	case !m.link.away.IsZero():
		return st.fail + " away", &st.bad
	case m.frozen:
		return "= stopped", &st.warn
	case m.opt.ReadOnly != "":
		return st.ok + " read only", &st.good
	}
	for f := range feeds {
		if !m.states[f].good.IsZero() || m.states[f].refused != nil {
			return st.ok + " answers", &st.good
		}
	}
	return "asking", &st.dim
}

// tabLine names the pages, with what on them needs somebody.
func (m *model) tabLine(w int) string {
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
	if n := len(m.open()); n > 0 {
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
				b.WriteString(st.band.Render("[" + text + "]"))
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

// status is the line over the keys: what is wrong, or what was done.
func (m *model) status(w int) string {
	st := &m.style
	switch {
	case m.layer == layerFilter:
		return m.inputLine("filter", w)
	case !m.link.away.IsZero():
		again := "asking again"
		if d := m.link.next.Sub(m.now); d > 0 {
			again = fmt.Sprintf("asking again in %s (r: now)", span(d+time.Second))
		}
		return st.bad.Render(st.fit(fmt.Sprintf(" %s the server is away for %s; %s: %s", st.fail, span(m.now.Sub(m.link.away)), again, term.Clean(cause(m.link.err))), w))
	case m.said.text != "":
		style, sign := &st.bold, st.more
		switch {
		case m.said.bad:
			style, sign = &st.warn, st.bang
		case m.said.done:
			sign = st.ok
		}
		return style.Render(st.fit(" "+sign+" "+term.Clean(m.said.text), w))
	case m.frozen:
		return st.warn.Render(st.fit(" = stopped: what is shown is old; p goes on", w))
	case m.opt.ReadOnly != "" && len(hintsOf[m.tab]) > 0:
		return st.dim.Render(st.fit(" read only: "+term.Clean(m.opt.ReadOnly), w))
	}
	return ""
}

// inputLine is what is being typed, and what is wrong with it.
func (m *model) inputLine(name string, w int) string {
	st := &m.style
	line := st.bold.Render(" "+name+": ") + st.fit(term.Clean(m.input.Value()), max(8, min(w-len(name)-4, 60)))
	if m.wrong != "" {
		line = st.fit(" "+name+": "+term.Clean(m.input.Value()), w/3) + " " + st.warn.Render(st.bang+" "+term.Clean(m.wrong))
	}
	return st.fit(line, w)
}

// cursor stands where one types.
func (m *model) cursor() *tea.Cursor {
	if m.layer != layerFilter || m.width <= 0 || m.height < 2 {
		return nil
	}
	before := term.Clean(string([]rune(m.input.Value())[:m.input.Position()]))
	x := len(" filter: ") + ansi.StringWidth(before)
	return tea.NewCursor(min(x, m.width-1), m.height-2)
}

// keyLine is the keys that do something here.
func (m *model) keyLine(w int) string {
	st := &m.style
	var list []hint
	switch m.layer {
	case layerFilter:
		list = []hint{{"enter", "apply", false}, {"esc", "leave", false}}
	case layerHelp:
		list = []hint{{"any key", "back", false}}
	case layerConfirm:
		list = []hint{{"y", "yes", false}, {"n, esc", "no", false}}
		if m.ask.word != "" {
			list = []hint{{"enter", "yes", false}, {"esc", "no", false}}
		}
		if m.ask.busy != "" {
			list = []hint{{"esc", "give up", false}}
		}
	default:
		for _, k := range hintsOf[m.tab] {
			if m.opt.ReadOnly == "" && m.refusal(k) == "" {
				list = append(list, k)
			}
		}
		list = append(list, hint{"q", "quit", false}, hint{"?", "help", false})
		if m.layer == layerDetail {
			list = append(list, hint{"esc", "back", false})
		} else if m.tab != tabOverview {
			list = append(list, hint{"enter", "details", false}, hint{"/", "filter", false})
		}
		list = append(list, hint{"1-5", "page", false}, hint{"p", map[bool]string{false: "stop", true: "go on"}[m.frozen], false}, hint{"r", "refresh", false})
	}
	var b strings.Builder
	for _, k := range list {
		if w -= len(k.keys) + len(k.does) + 3; w < 0 {
			break // what is not to be seen is in the help
		}
		b.WriteString(" " + st.accent.Bold(true).Render(k.keys) + " " + k.does + " ")
	}
	return b.String()
}

// body is the page, and what lies over it.
func (m *model) body(w, h int) []string {
	switch m.layer {
	case layerHelp:
		return m.help(w)
	case layerDetail:
		return m.drawSheet(w, h)
	case layerConfirm:
		return m.drawQuestion(w)
	}
	switch m.tab {
	case tabOverview:
		return m.overview(w, h)
	case tabLetters:
		return m.lettersPage(w, h)
	case tabJobs:
		return m.jobsPage(w, h)
	case tabCircuits:
		return m.circuitsPage(w, h)
	}
	return m.schedulesPage(w, h)
}

// note is how old a panel is when that is not as it should be, or why it is empty.
func (m *model) note(f feed) string {
	s := &m.states[f]
	if s.good.IsZero() {
		if s.refused != nil {
			return "refused"
		}
		return "asking"
	}
	if age := m.now.Sub(s.good); age > 3*every[f].seen+2*time.Second {
		return "old: " + ago(m.now, s.good)
	}
	return ""
}

// trouble says in place of a panel why there is nothing in it; ok is false when
// there is something.
func (m *model) trouble(f feed) (line string, ok bool) {
	s := &m.states[f]
	if s.refused != nil {
		return " " + m.style.warn.Render(m.style.bang+" "+term.Clean(describe(s.refused))), true
	}
	if s.good.IsZero() {
		return m.style.dim.Render(" no answer yet"), true
	}
	return "", false
}

func (m *model) help(w int) []string {
	st := &m.style
	out := []string{st.title("keys", "", w)}
	add := func(list []hint) {
		for _, k := range list {
			out = append(out, " "+st.accent.Bold(true).Render(st.fit(k.keys, 13))+" "+k.does)
		}
	}
	add(hintsAll)
	for t := range tabs {
		if len(hintsOf[t]) > 0 {
			var parts []string
			for _, k := range hintsOf[t] {
				parts = append(parts, st.accent.Bold(true).Render(k.keys)+" "+k.does)
			}
			out = append(out, " "+st.fit(tabNames[t], 13)+" "+strings.Join(parts, "  "))
		}
	}
	changes := "capital letters; they ask first, and show the command that does the same"
	if m.opt.ReadOnly != "" {
		changes = "capital letters; they are off: " + term.Clean(m.opt.ReadOnly)
	}
	out = append(out, st.wrap("changes", changes, w)...)
	return append(out, st.wrap("filters", "words a row must hold; of dead letters "+strings.Join(api.LetterWords(), ":, ")+":, such as channel:push since:-2h", w)...)
}

func (m *model) drawSheet(w, h int) []string {
	st := &m.style
	d := &m.detail
	out := []string{st.title(term.Clean(d.title), "", w)}
	room := max(1, h-1-len(d.next)-1)
	var lines []string
	for _, l := range d.lines {
		if l[1] != "" {
			lines = append(lines, st.wrap(l[0], term.Clean(l[1]), w)...)
		}
	}
	from := min(m.scroll, max(0, len(lines)-room))
	shown := lines[from:min(len(lines), from+room)]
	out = append(out, shown...)
	if hidden := len(lines) - from - len(shown); hidden > 0 {
		out[len(out)-1] = st.dim.Render(fmt.Sprintf(" %d more lines: j", hidden+1))
	}
	out = append(out, "")
	for _, c := range d.next {
		out = append(out, " "+st.accent.Render("$ "+term.Clean(c)))
	}
	return out
}

// wrap writes a name and a value that may need more than one line.
func (s *styles) wrap(name, value string, w int) (out []string) {
	room := max(8, w-16)
	for i, line := range strings.Split(ansi.Hardwrap(ansi.Wordwrap(value, room, ""), room, true), "\n") {
		if i > 0 {
			name = ""
		}
		out = append(out, " "+s.dim.Render(s.fit(term.Clean(name), 13))+" "+line)
	}
	return out
}

func (m *model) drawQuestion(w int) []string {
	st, q := &m.style, m.ask
	out := []string{st.title("confirm", "", w), "", " " + st.warn.Render(st.bang+" "+term.Clean(q.title)), ""}
	where := m.opt.URL
	if m.opt.Context != "" {
		where = m.opt.Context + ", " + where
	}
	if m.opt.Protected {
		where += ", PROTECTED"
	}
	out = append(out, st.wrap("server", term.Clean(where), w)...)
	for _, f := range q.facts {
		if f[1] != "" {
			out = append(out, st.wrap(f[0], term.Clean(f[1]), w)...)
		}
	}
	out = append(out, st.wrap("the same as", term.Clean(q.command), w)...)
	out = append(out, "")
	switch {
	case q.busy != "":
		out = append(out, " "+q.busy+" ...")
	case q.word != "":
		out = append(out, " type "+st.bold.Render(term.Clean(q.word))+" and enter to go on, esc to leave it", m.inputLine("context", w))
	default:
		out = append(out, " "+st.bold.Render("y")+" to do it, "+st.bold.Render("n")+" or esc to leave it")
	}
	return out
}
