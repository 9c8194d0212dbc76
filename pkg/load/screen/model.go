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

// Options say which run is drawn, and how.
type Options struct {
	Source  Source
	Control Control // nil: the run is watched only
	Steer   Steerer // nil: its arrivals cannot be changed
	// Name stands in the header before the first snapshot, then its scenario does.
	Name string
	// ASCII: only characters of ASCII are drawn, besides what users wrote.
	ASCII bool
	// Stay keeps the last frame when the run has ended, until q.
	Stay bool
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// layer is what lies over the panels and takes the keys.
type layer int

const (
	layerNone layer = iota
	layerHelp
	layerFilter
	layerMark
	layerStop  // asks whether to stop the run
	layerSteer // asks whether to change its arrivals, the first time
)

// panel is one of the panels; panelAll shows several at once.
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
	panels // how many, with panelAll
)

// windows are how much time the charts show; 0: the whole run, as far as it is kept.
var windows = []time.Duration{0, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// model is the state of the screen. A frame is drawn from it and from nothing
// else: draw.go reads no clock.
type model struct {
	opt    Options
	st     *styles
	width  int
	height int
	now    time.Time

	snap   *load.Snapshot // that is shown
	frozen bool
	ended  bool

	panel  panel
	layer  layer
	window int // of windows
	filter string
	input  textinput.Model
	scroll int
	said   string
	saidAt time.Time

	stopping bool   // Control.Stop was called
	steering string // the key that layerSteer asks about
	left     Left
	frame    string // the last one; empty: it must be drawn again
}

// Left is how a person left the screen.
type Left int

// The ways to leave.
const (
	LeftAtEnd   Left = iota // the run was over
	LeftRunning             // Q: the run goes on without the screen
	LeftAtOnce              // Ctrl-C for the second time
)

type tickMsg struct{}

// every is how often the source is asked, and a frame drawn: of a run that is drawn
// ten times a second the screen took 3% of a core.
const every = 250 * time.Millisecond

const saidFor = 8 * time.Second

func newModel(o Options) *model {
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &model{opt: o, st: newStyles(o.ASCII), now: o.Now(), input: paint.Input(200)}
	m.look()
	return m
}

// Init is part of tea.Model.
func (m *model) Init() tea.Cmd { return tick() }

func tick() tea.Cmd { return tea.Tick(every, func(time.Time) tea.Msg { return tickMsg{} }) }

// Update is part of tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	m.now = m.opt.Now()
	switch msg := msg.(type) {
	case tickMsg:
		if m.said != "" && m.now.Sub(m.saidAt) > saidFor {
			m.said, m.frame = "", ""
		}
		m.look()
		if m.ended && !m.opt.Stay {
			return m, tea.Quit
		}
		return m, tick()
	case tea.WindowSizeMsg:
		m.width, m.height, m.frame = msg.Width, msg.Height, ""
	case tea.KeyPressMsg:
		m.frame = ""
		cmd := m.key(msg)
		return m, cmd
	case stoppedMsg:
		m.stopping, m.frame = true, ""
		m.say("stopping: what was accepted is awaited; Ctrl-C leaves at once")
	case tea.PasteMsg:
		m.frame = ""
		m.typed(msg)
	}
	return m, nil
}

// look takes the newest snapshot.
func (m *model) look() {
	select {
	case <-m.opt.Source.Done():
		if !m.ended {
			m.ended, m.frozen, m.frame = true, false, ""
		}
	default:
	}
	if m.frozen {
		return
	}
	if s := m.opt.Source.Latest(); s != m.snap && s != nil {
		m.snap, m.frame = s, ""
	}
}

// View is part of tea.Model.
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
	if m.snap != nil && m.snap.Scenario != "" {
		return term.Clean(m.snap.Scenario)
	}
	return term.Clean(m.opt.Name)
}

func (m *model) say(text string) { m.said, m.saidAt = text, m.now }

func (m *model) player() Player {
	p, _ := m.opt.Source.(Player)
	return p
}

// matches reports whether a step is chosen by the filter: each of its words must
// be a part of the step's phase/name, target, channel or category. A word may say
// which: channel:push.
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

// steps are those that the filter chooses.
func (m *model) steps() (list []*load.StepSnapshot) {
	for i := range m.snap.Steps {
		if s := &m.snap.Steps[i]; m.matches(s) {
			list = append(list, s)
		}
	}
	return list
}

// rows are the seconds that the window shows.
func (m *model) rows() []load.SecondRow {
	list := m.snap.Seconds
	if w := int(windows[m.window] / time.Second); w > 0 && len(list) > w {
		list = list[len(list)-w:]
	}
	return list
}
