package console

import (
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// tab is the number of a page.
type tab int

const (
	tabOverview tab = iota
	tabLetters
	tabJobs
	tabCircuits
	tabSchedules
	tabs // number of tabs
)

var tabNames = [tabs]string{"overview", "dead letters", "jobs", "circuits", "schedules"}

// hintsAll has the hints for the keys that work on every page, and hintsOf the hints for the keys
// that work on one page. The keys in hintsOf are capital letters, and each makes a change of the
// server.
var (
	hintsAll = []paint.Hint{
		{"1-5, tab", "page"}, {"j/k, arrows", "move"}, {"g/G", "first, last"}, {"pgup/pgdn", "a screen"},
		{"enter", "details"}, {"esc", "back; clear the filter"}, {"/", "filter"},
		{"r", "refresh now"}, {"p", "pause, continue"}, {"?", "help"}, {"q", "quit"},
	}
	hintsOf = [tabs][]paint.Hint{
		tabLetters:  {{"R", "replay"}},
		tabJobs:     {{"P", "pause"}, {"R", "resume"}, {"X", "cancel"}, {"A", "approve"}},
		tabCircuits: {{"O", "hold open"}, {"C", "hold closed"}, {"R", "reset"}},
	}
)

// key handles a key according to the layer that is shown.
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
		m.layer = m.layerBelowHelp
		return nil
	}
	if cmd, ok := m.keyMove(name); ok {
		return cmd
	}
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.layerBelowHelp, m.layer = m.layer, layerHelp
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
			m.layer, m.inputError = layerFilter, ""
			text := m.filter[m.tab]
			if text != "" {
				text += " " // what the person types starts a new word
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
			return m.startChange(name)
		}
	}
	return nil
}

// back closes the detail page. On any other page it sets the filter back to its default, which is
// "state:dead" for dead letters and no filter for the other lists.
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
	m.notice = notice{}
}

// keyMove handles keys that move between pages and rows. The result ok is false for any other key.
func (m *model) keyMove(name string) (cmd tea.Cmd, ok bool) {
	if i := strings.Index("12345", name); len(name) == 1 && i >= 0 {
		return m.switchTab(tab(i)), true
	}
	page := max(1, m.height-10)
	step := map[string]int{"down": 1, "j": 1, "up": -1, "k": -1, "pgdown": page, "ctrl+d": page, "pgup": -page, "ctrl+u": -page, "home": -1 << 20, "g": -1 << 20, "end": 1 << 20, "G": 1 << 20}
	switch name {
	case "tab", "right", "l":
		return m.switchTab((m.tab + 1) % tabs), true
	case "shift+tab", "left", "h":
		return m.switchTab((m.tab + tabs - 1) % tabs), true
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
		i := max(0, min(m.chosenIndex(keys)+d, len(keys)-1))
		m.chosen[m.tab], m.index[m.tab] = keys[i], i
	}
	return nil, true
}

func (m *model) switchTab(t tab) tea.Cmd {
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
				m.inputError = err.Error()
				return nil
			}
			m.filter[m.tab], m.query = text, q
			m.restartFeed(feedLetters)
			m.data.letters = api.DeadLetterPage{}
		} else {
			m.filter[m.tab] = text
		}
		m.layer = layerNone
		m.input.Blur()
		m.keepChosen()
		return m.poll()
	default:
		return m.forwardInput(k)
	}
	return nil
}

// forwardInput passes a key to the input line that is shown.
func (m *model) forwardInput(msg tea.Msg) tea.Cmd {
	if m.layer == layerFilter || m.layer == layerConfirm && m.confirming.word != "" {
		m.inputError = ""
		// Ignore the command that Update returns. It only blinks the cursor, and draw.go places the
		// cursor.
		m.input, _ = m.input.Update(msg)
	}
	return nil
}
