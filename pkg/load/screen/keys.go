package screen

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/report"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// handleKey acts on a key. The meaning of a key depends on the layer and on the panel.
func (m *model) handleKey(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if name == "ctrl+c" {
		return m.interrupt()
	}
	switch m.layer {
	case layerHelp:
		m.layer = layerNone
		if name != "q" {
			return nil
		}
	case layerFilter, layerMark:
		return m.handleInputKey(name, k)
	case layerStop:
		m.layer = layerNone
		if name == "y" || name == "enter" {
			m.stopRun()
		}
		return nil
	case layerSteer:
		m.layer = layerNone
		if name == "y" || name == "enter" {
			m.steerRun(m.pendingSteerKey)
		} else {
			m.pendingSteerKey = ""
		}
		return nil
	}
	if p := m.player(); p != nil && movePlayer(p, name) {
		return nil
	}
	switch name {
	case "q":
		if m.ended || m.player() != nil {
			return tea.Quit
		}
		if m.options.Control == nil {
			m.left = LeftRunning
			return tea.Quit
		}
		if !m.stopping {
			m.layer = layerStop
		}
	case "Q":
		if !m.ended && m.player() == nil {
			m.left = LeftRunning
		}
		return tea.Quit
	case "?":
		m.layer = layerHelp
	case "space":
		m.frozen = !m.frozen && !m.ended
		m.takeSnapshot()
	case "[", "]":
		m.changeWindow(name)
	case "0", "esc":
		if name == "esc" && m.panel == panelAll {
			m.filter = ""
		}
		m.panel, m.scroll = panelAll, 0
	case "e":
		m.panel, m.scroll = panelErrors, 0
	case "tab":
		m.panel, m.scroll = (m.panel+1)%panels, 0
	case "shift+tab":
		m.panel, m.scroll = (m.panel+panels-1)%panels, 0
	case "j", "down":
		m.scroll++
	case "k", "up":
		m.scroll = max(0, m.scroll-1)
	case "/":
		m.layer = layerFilter
		m.input.SetValue(m.filter)
		m.input.CursorEnd()
		m.input.Focus()
	case "p", "+", "=", "-":
		m.askSteer(name)
	case "m":
		switch {
		case m.options.Control == nil || m.ended:
			m.showMessage("a marker can be set only during a run that was started here")
		default:
			m.layer = layerMark
			m.input.SetValue("")
			m.input.Focus()
		}
	default:
		if i, err := strconv.Atoi(name); err == nil && len(name) == 1 && i < int(panels) {
			m.panel, m.scroll = panel(i), 0
		}
	}
	return nil
}

// interrupt acts on Ctrl-C. If the user may stop the run, the first Ctrl-C stops it, and the second
// Ctrl-C leaves the screen at once. Otherwise the first Ctrl-C leaves the screen.
func (m *model) interrupt() tea.Cmd {
	switch {
	case m.ended || m.player() != nil:
		return tea.Quit
	case m.stopping || m.options.Control == nil:
		m.left = LeftAtOnce
		return tea.Quit
	}
	m.layer = layerNone
	m.stopRun()
	return nil
}

// steerStep is the factor by which + multiplies the rate and - divides it.
const steerStep = 1.1

// askSteer acts on a key that pauses the sending of a run or changes its rate. Before the first
// change it asks for confirmation, because after a change the run does not measure the planned
// rate.
func (m *model) askSteer(name string) {
	switch {
	case !m.steerable():
		m.showMessage("this run cannot be paused, and its rate cannot be changed, from here")
	case m.snapshot == nil || m.snapshot.State != load.StateRunning:
		m.showMessage("the run does not send now")
	case m.snapshot.Steer != nil && m.snapshot.Steer.Changed || m.pendingSteerKey != "":
		m.steerRun(name)
	default:
		m.layer, m.pendingSteerKey = layerSteer, name
	}
}

func (m *model) steerable() bool { return m.options.Steer != nil && !m.ended && m.player() == nil }

func (m *model) steerRun(name string) {
	m.pendingSteerKey = name
	switch name {
	case "p":
		paused := m.snapshot.Steer != nil && m.snapshot.Steer.Paused
		m.options.Steer.Pause(!paused)
		if paused {
			m.showMessage("messages become due again")
		} else {
			m.showMessage("paused: nothing becomes due until p")
		}
	case "-":
		m.options.Steer.Pace(1 / steerStep)
		m.showMessage("the rate is a tenth lower")
	default:
		m.options.Steer.Pace(steerStep)
		m.showMessage("the rate is a tenth higher")
	}
}

func (m *model) stopRun() {
	m.stopping = true
	m.options.Control.Stop()
	m.showMessage("stopping: waiting for the delivery of accepted messages; Ctrl-C leaves at once")
}

func (m *model) changeWindow(name string) {
	if name == "[" {
		m.window = (m.window + len(windows) - 1) % len(windows)
	} else {
		m.window = (m.window + 1) % len(windows)
	}
	if w := windows[m.window]; w > 0 {
		m.showMessage("the charts show the last " + report.FormatClock(w))
	} else {
		m.showMessage("the charts show the whole run")
	}
}

// movePlayer changes a replay by a key. It returns false if the key has no meaning for a replay.
func movePlayer(p Player, name string) bool {
	switch name {
	case "space":
		p.Pause(!p.Paused())
	case "left", "h":
		p.Seek(-5 * time.Second)
	case "right", "l":
		p.Seek(5 * time.Second)
	case "home", "g":
		p.Seek(-1000 * time.Hour)
	case "end", "G":
		p.Seek(1000 * time.Hour)
	case "+", "=":
		p.Speed(2)
	case "-":
		p.Speed(0.5)
	default:
		return false
	}
	return true
}

func (m *model) handleInputKey(name string, k tea.KeyPressMsg) tea.Cmd {
	switch name {
	case "esc":
		m.layer = layerNone
		m.input.Blur()
	case "enter":
		text := strings.TrimSpace(m.input.Value())
		if m.layer == layerFilter {
			m.filter, m.scroll = text, 0
		} else {
			text = cmp.Or(text, "marker")
			m.options.Control.Mark(text)
			m.showMessage("marked: " + text)
		}
		m.layer = layerNone
		m.input.Blur()
	default:
		m.passToInput(k)
	}
	return nil
}

// passToInput passes a message of the tea.Program to the input line, if an input line is open.
func (m *model) passToInput(msg tea.Msg) {
	if m.layer == layerFilter || m.layer == layerMark {
		m.input, _ = m.input.Update(msg) // the command that Update returns would only blink a cursor
	}
}

// hints returns the keys that have an effect at the moment, the most useful key first.
func (m *model) hints() []paint.Hint {
	switch m.layer {
	case layerHelp:
		return []paint.Hint{{"any key", "back"}}
	case layerFilter:
		return []paint.Hint{{"enter", "filter"}, {"esc", "leave it"}}
	case layerMark:
		return []paint.Hint{{"enter", "mark"}, {"esc", "leave it"}}
	case layerStop:
		return []paint.Hint{{"y", "stop the run"}, {"n", "go on"}}
	case layerSteer:
		return []paint.Hint{{"y", "change it"}, {"n", "leave it"}}
	}
	list := []paint.Hint{{"q", "stop"}, {"?", "help"}, {"1-7", "panel"}, {"space", "freeze"}, {"[ ]", "window"}, {"/", "filter"}, {"m", "mark"}, {"Q", "leave it running"}}
	if m.frozen {
		list[3][1] = "go on"
	}
	if m.panel != panelAll {
		list[2] = paint.Hint{"0", "all panels"}
	}
	drop := func(keys string) { list = slices.DeleteFunc(list, func(h paint.Hint) bool { return h[0] == keys }) }
	if m.steerable() {
		list = append(list, paint.Hint{"p", "pause the load"}, paint.Hint{"- +", "rate"})
		if m.snapshot != nil && m.snapshot.Steer != nil && m.snapshot.Steer.Paused {
			list[len(list)-2][1] = "let it go on"
		}
	}
	switch {
	case m.player() != nil:
		list[0][1], list[3][1] = "quit", "pause"
		drop("m")
		drop("Q")
		list = append(list, paint.Hint{"h l", "5s"}, paint.Hint{"- +", "speed"})
	case m.ended:
		list[0][1] = "quit"
		drop("m")
		drop("Q")
		drop("space")
	case m.options.Control == nil:
		list[0][1] = "quit"
		drop("m")
		drop("Q")
	}
	return list
}

var helpKeys = []paint.Hint{
	{"1 ... 7", "one panel alone; 0 or esc: all of them; tab: the next"},
	{"space", "freeze the screen; the run goes on. In a replay: pause"},
	{"[ and ]", "how much time the charts show"},
	{"/", "filter the steps by words, or channel: phase: step: target: category:"},
	{"m", "draw a line across the charts, now, with a text"},
	{"p", "pause the load, and let it go on; the run is then no measurement"},
	{"- and +", "a tenth less or more load; likewise"},
	{"j, k", "scroll"},
	{"q", "stop the run; its summary stays on the screen. At the end: quit"},
	{"Q", "leave this screen; the run goes on, with a line per second"},
	{"Ctrl-C", "stop the run; twice: leave, without waiting for deliveries"},
	{"h l g G - +", "of a replay: 5 s back or on, its ends, its speed"},
}
