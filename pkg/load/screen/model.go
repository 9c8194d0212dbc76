package screen

import (
	"strings"
	"time"

	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// Options describes which run the screen shows, and how.
type Options struct {
	Source  Source
	Control Control // nil: the user may only watch
	Steer   Steerer // nil: the user cannot pause the sending or change its rate
	// Name is shown in the header until the first snapshot with a name arrives.
	Name string
	// If ASCII is true, only ASCII characters are drawn, except in texts of users.
	ASCII bool
	// If Stay is true, the last frame stays after the end of the run, until the user presses q.
	Stay bool
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// layer is a dialog over the panels. While a layer is open, it gets the keys.
type layer int

const (
	layerNone layer = iota
	layerHelp
	layerFilter
	layerMark
	layerStop  // asks whether the run should stop
	layerSteer // asks for confirmation before the sending is paused or its rate changed for the first time
)

// panel identifies a panel. panelAll shows several panels at once.
type panel int

const (
	panelAll panel = iota
	panelStages
	panelRates
	panelBacklog
	panelLatency
	panelLedger
	panelErrors
	panelHealth
	panels // number of panels, including panelAll
)

// windows lists the lengths of time that the charts can show. 0 means the whole run, or the last
// load.KeepSeconds seconds of a longer run.
var windows = []time.Duration{0, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// model is the state of the screen. A frame depends only on the model; draw.go reads no clock. The
// goroutine of the tea.Program owns the model.
type model struct {
	options Options
	styles  *styles
	width   int
	height  int
	now     time.Time

	snapshot *load.Snapshot // the snapshot that is shown
	frozen   bool           // true: the snapshot is not replaced
	ended    bool           // true: the run has ended

	panel     panel
	layer     layer
	window    int // index in windows
	filter    string
	input     textinput.Model
	scroll    int
	message   string
	messageAt time.Time

	stopping        bool   // true: the run is being stopped
	pendingSteerKey string // key of a change of the sending that the user has confirmed or must confirm; empty: none
	left            Left
	frame           string // the last frame; empty: the frame must be drawn again
}

// Left says how the user left the screen.
type Left int

// The ways to leave.
const (
	LeftAtEnd   Left = iota // the run had ended, or a replay was shown
	LeftRunning             // the user pressed Q, or q without a Control: the run continues without the screen
	LeftAtOnce              // the user pressed Ctrl-C for the second time, or once without a Control
)

type tickMsg struct{}

// drawEvery is how often the screen reads the source and draws. It is not shorter, because ten
// frames a second need 3% of a core, which the load run on the same machine may need.
const drawEvery = 250 * time.Millisecond

const messageTime = 8 * time.Second

func newModel(o Options) *model {
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &model{options: o, styles: newStyles(o.ASCII), now: o.Now(), input: paint.Input(200)}
	m.takeSnapshot()
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tick() }

func tick() tea.Cmd { return tea.Tick(drawEvery, func(time.Time) tea.Msg { return tickMsg{} }) }

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	m.now = m.options.Now()
	switch msg := msg.(type) {
	case tickMsg:
		if m.message != "" && m.now.Sub(m.messageAt) > messageTime {
			m.message, m.frame = "", ""
		}
		m.takeSnapshot()
		if m.ended && !m.options.Stay {
			return m, tea.Quit
		}
		return m, tick()
	case tea.WindowSizeMsg:
		m.width, m.height, m.frame = msg.Width, msg.Height, ""
	case tea.KeyPressMsg:
		m.frame = ""
		cmd := m.handleKey(msg)
		return m, cmd
	case stoppedMsg:
		m.stopping, m.frame = true, ""
		m.showMessage("stopping: waiting for the delivery of accepted messages; Ctrl-C leaves at once")
	case tea.PasteMsg:
		m.frame = ""
		m.passToInput(msg)
	}
	return m, nil
}

// takeSnapshot reads the newest snapshot, unless the screen is frozen. When the run ends, it
// unfreezes the screen, so that the user sees the final figures.
func (m *model) takeSnapshot() {
	select {
	case <-m.options.Source.Done():
		if !m.ended {
			m.ended, m.frozen, m.frame = true, false, ""
		}
	default:
	}
	if m.frozen {
		return
	}
	if s := m.options.Source.Latest(); s != m.snapshot && s != nil {
		m.snapshot, m.frame = s, ""
	}
}

// View implements tea.Model.
func (m *model) View() tea.View {
	if m.frame == "" {
		m.frame = m.draw()
	}
	v := tea.NewView(m.frame)
	v.AltScreen = true
	v.WindowTitle = "load " + m.name()
	v.Cursor = m.cursor()
	return v
}

func (m *model) name() string {
	if m.snapshot != nil && m.snapshot.Scenario != "" {
		return term.Clean(m.snapshot.Scenario)
	}
	return term.Clean(m.options.Name)
}

func (m *model) showMessage(text string) { m.message, m.messageAt = text, m.now }

func (m *model) player() Player {
	p, _ := m.options.Source.(Player)
	return p
}

// matches reports whether the filter selects a step. Each word of the filter must occur in the
// phase, name, target, channel or category of the step. For a word such as channel:push, only the
// named field (channel) is searched, for the text after the colon.
func (m *model) matches(s *load.StepSnapshot) bool {
	for _, w := range strings.Fields(strings.ToLower(m.filter)) {
		field, value, named := strings.Cut(w, ":")
		texts := map[string]string{"step": s.Name, "phase": s.Phase, "target": s.Target, "channel": s.Channel, "category": s.Category}
		if text, ok := texts[field]; named && ok {
			if !strings.Contains(strings.ToLower(text), value) {
				return false
			}
			continue
		}
		all := s.Phase + "/" + s.Name + " " + s.Target + " " + s.Channel + " " + s.Category
		if !strings.Contains(strings.ToLower(all), w) {
			return false
		}
	}
	return true
}

// filteredSteps returns the steps that the filter selects.
func (m *model) filteredSteps() (list []*load.StepSnapshot) {
	for i := range m.snapshot.Steps {
		if s := &m.snapshot.Steps[i]; m.matches(s) {
			list = append(list, s)
		}
	}
	return list
}

// windowRows returns the seconds that the charts show.
func (m *model) windowRows() []load.SecondRow {
	list := m.snapshot.Seconds
	if w := int(windows[m.window] / time.Second); w > 0 && len(list) > w {
		list = list[len(list)-w:]
	}
	return list
}
