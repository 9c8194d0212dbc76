package console

import (
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// tab is one of the pages.
type tab int

const (
	tabOverview tab = iota
	tabLetters
	tabJobs
	tabCircuits
	tabSchedules
	tabs // how many
)

var tabNames = [tabs]string{"overview", "dead letters", "jobs", "circuits", "schedules"}

// hints of every page, and of each. What changes the server is a capital letter.
var (
	hintsAll = []paint.Hint{
		{"1-5, tab", "page"}, {"j/k, arrows", "move"}, {"g/G", "first, last"}, {"pgup/pgdn", "a screen"},
		{"enter", "details"}, {"esc", "back; clear the filter"}, {"/", "filter"},
		{"r", "ask again now"}, {"p", "stop and go on asking"}, {"?", "help"}, {"q", "quit"},
	}
	hintsOf = [tabs][]paint.Hint{
		tabLetters:  {{"R", "replay"}},
		tabJobs:     {{"P", "pause"}, {"R", "resume"}, {"X", "cancel"}, {"A", "approve"}},
		tabCircuits: {{"O", "hold open"}, {"C", "hold closed"}, {"R", "reset"}},
	}
)

// key does what a key means where it is pressed.
func (m *model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if name == "ctrl+c" {
		m.interrupted = true
		return tea.Quit
	}
	switch m.layer {
	case layerFilter:
		return m.keyFilter(name, k)
	case layerConfirm:
		return m.keyConfirm(name, k)
	case layerHelp:
		m.layer = m.under
		return nil
	}
	if cmd, ok := m.keyMove(name); ok {
		return cmd
	}
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.under, m.layer = m.layer, layerHelp
	case "r":
		return m.refresh()
	case "p":
		if m.frozen = !m.frozen; !m.frozen {
			return m.refresh()
		}
	case "esc", "backspace":
		m.back()
		return m.poll()
	case "/":
		if m.tab != tabOverview {
			m.layer, m.wrong = layerFilter, ""
			text := m.filter[m.tab]
			if text != "" {
				text += " " // what is typed is a word of its own
			}
			m.input.SetValue(text)
			m.input.CursorEnd()
			m.input.Focus()
		}
	case "enter":
		if key := m.chosen[m.tab]; key != "" && m.layer == layerNone {
			m.detail, m.scroll, m.layer = sheetOf(m, key), 0, layerDetail
		}
	default:
		if m.layer == layerNone || m.layer == layerDetail {
			return m.change(name)
		}
	}
	return nil
}

// back leaves the detail, or takes the filter away.
func (m *model) back() {
	switch {
	case m.layer == layerDetail:
		m.layer = layerNone
	case m.tab == tabLetters && m.filter[m.tab] != "state:dead":
		m.setFilter("state:dead")
	case m.tab != tabLetters:
		m.filter[m.tab] = ""
		m.keepChosen()
	}
	m.said = notice{}
}

// keyMove moves between pages and rows; ok is false when the key does not.
func (m *model) keyMove(name string) (cmd tea.Cmd, ok bool) {
	if i := strings.Index("12345", name); len(name) == 1 && i >= 0 {
		return m.turn(tab(i)), true
	}
	page := max(1, m.height-10)
	step := map[string]int{"down": 1, "j": 1, "up": -1, "k": -1, "pgdown": page, "ctrl+d": page, "pgup": -page, "ctrl+u": -page, "home": -1 << 20, "g": -1 << 20, "end": 1 << 20, "G": 1 << 20}
	switch name {
	case "tab", "right", "l":
		return m.turn((m.tab + 1) % tabs), true
	case "shift+tab", "left", "h":
		return m.turn((m.tab + tabs - 1) % tabs), true
	}
	d, ok := step[name]
	if !ok {
		return nil, false
	}
	if m.layer == layerDetail {
		m.scroll = max(0, min(m.scroll+d, len(m.detail.lines)-1))
		return nil, true
	}
	keys := keysOf(m)
	if len(keys) > 0 {
		i := max(0, min(m.at(keys)+d, len(keys)-1))
		m.chosen[m.tab], m.index[m.tab] = keys[i], i
	}
	return nil, true
}

func (m *model) turn(t tab) tea.Cmd {
	m.tab, m.layer = t, layerNone
	m.keepChosen()
	return m.poll()
}

func (m *model) keyFilter(name string, k tea.KeyPressMsg) tea.Cmd {
	switch name {
	case "esc":
		m.layer = layerNone
		m.input.Blur()
	case "enter":
		text := strings.TrimSpace(m.input.Value())
		if m.tab == tabLetters {
			q, err := parseFilter(text, m.now, m.opt.Parse)
			if err != nil {
				m.wrong = err.Error()
				return nil
			}
			m.filter[m.tab], m.query = text, q
			m.renew(feedLetters)
			m.data.letters = api.DeadLetterPage{}
		} else {
			m.filter[m.tab] = text
		}
		m.layer = layerNone
		m.input.Blur()
		m.keepChosen()
		return m.poll()
	default:
		return m.typed(k)
	}
	return nil
}

// typed passes what is typed on to the line that is being written.
func (m *model) typed(msg tea.Msg) tea.Cmd {
	if m.layer == layerFilter || m.layer == layerConfirm && m.ask.word != "" {
		m.wrong = ""
		m.input, _ = m.input.Update(msg) // what it would want besides is its own cursor
	}
	return nil
}
