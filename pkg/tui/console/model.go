package console

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/notify"
)

// layer is what lies over a page and takes the keys.
type layer int

const (
	layerNone layer = iota
	layerDetail
	layerFilter  // a filter is being typed
	layerConfirm // a change is being asked about
	layerHelp
)

// model is the state of the page. A frame is drawn from it and from nothing
// else: draw.go reads no clock.
type model struct {
	opt    Options
	ctx    context.Context // of the requests
	width  int
	height int
	now    time.Time
	style  styles

	data   snapshot
	states [feeds]feedState
	link   link
	frozen bool // p: nothing is asked

	tab    tab
	layer  layer
	under  layer // below help
	chosen [tabs]string
	index  [tabs]int // where the chosen row was, should it go
	filter [tabs]string
	query  api.DeadLetterQuery // that filter[tabLetters] means
	input  textinput.Model
	wrong  string // what is wrong with what is typed

	detail sheet
	scroll int // first line of the detail
	ask    *question
	asking int // raised with each question: answers to older ones are dropped
	said   notice

	interrupted bool // by Ctrl-C
}

// notice is what became of the last change.
type notice struct {
	text string
	bad  bool
	done bool
	at   time.Time
}

const noticeFor = 15 * time.Second

type (
	tickMsg   time.Time
	answerMsg struct {
		feed  feed
		gen   int
		apply func(*snapshot)
		err   error
		took  time.Duration
	}
)

// newModel is the page before the first answer. The requests end with ctx.
func newModel(ctx context.Context, o Options) *model {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Command == nil {
		o.Command = func(words ...string) string { return strings.Join(append([]string{"notifyctl"}, words...), " ") }
	}
	if o.Parse == nil {
		o.Parse = func(s string, _ time.Time) (time.Time, error) { return time.Parse(time.RFC3339, s) }
	}
	m := &model{opt: o, ctx: ctx, now: o.Now(), style: newStyles(o.ASCII), input: textinput.New()}
	m.input.Prompt = ""
	m.input.CharLimit = 1000
	m.input.SetVirtualCursor(false)
	m.input.KeyMap.Paste.SetEnabled(false) // a terminal's own paste comes as text
	m.setFilter("state:dead")
	return m
}

// Init is part of tea.Model.
func (m *model) Init() tea.Cmd { return tea.Batch(tick(), m.poll()) }

// tick wakes the page: it asks what is due, and its clock goes on.
func tick() tea.Cmd {
	return tea.Tick(250*time.Millisecond, func(t time.Time) tea.Msg { return tickMsg(t) })
}

// Update is part of tea.Model. It never waits: requests are commands, which run
// beside it.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	m.now = m.opt.Now()
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		if m.said.text != "" && m.now.Sub(m.said.at) > noticeFor {
			m.said = notice{}
		}
		return m, tea.Batch(tick(), m.poll())
	case answerMsg:
		m.take(msg)
	case plannedMsg:
		m.planned(msg)
	case doneMsg:
		cmd := m.done(msg)
		return m, cmd
	case tea.KeyPressMsg:
		cmd := m.key(msg)
		return m, cmd
	case tea.PasteMsg:
		cmd := m.typed(msg)
		return m, cmd
	}
	return m, nil
}

// View is part of tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.WindowTitle = "notifyd " + cli.Clean(m.opt.Context)
	v.Cursor = m.cursor()
	return v
}

// poll asks what is due.
func (m *model) poll() tea.Cmd {
	if m.frozen {
		return nil
	}
	var cmds []tea.Cmd
	for _, f := range toAsk(&m.states, &m.link, m.tab, m.now) {
		cmds = append(cmds, m.request(f))
	}
	return tea.Batch(cmds...)
}

func (m *model) request(f feed) tea.Cmd {
	m.states[f].asked = true
	gen, query, opt, ctx := m.states[f].gen, m.query, m.opt, m.ctx
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(ctx, opt.Timeout)
		defer stop()
		from := opt.Now()
		apply, err := ask(ctx, opt.Server, f, query)
		return answerMsg{f, gen, apply, err, opt.Now().Sub(from)}
	}
}

func (m *model) take(a answerMsg) {
	s := &m.states[a.feed]
	if a.gen != s.gen {
		return // to a question nobody asks any more; the next is on its way
	}
	answered(s, &m.link, a.feed, m.tab, a.err, a.took, m.now)
	if a.err == nil {
		a.apply(&m.data)
		m.keepChosen()
	}
}

// renew asks a feed's new question at once, whatever is under way.
func (m *model) renew(f feed) {
	s := &m.states[f]
	*s = feedState{gen: s.gen + 1}
}

// refresh makes everything due.
func (m *model) refresh() tea.Cmd {
	m.link.next = time.Time{}
	for f := range feeds {
		m.states[f].due = time.Time{}
	}
	frozen := m.frozen
	m.frozen = false
	cmd := m.poll()
	m.frozen = frozen
	return cmd
}

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
		if name == "q" {
			return tea.Quit
		}
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
			m.input.SetValue(m.filter[m.tab])
			m.input.CursorEnd()
			m.input.Focus()
		}
	case "enter":
		if key := m.chosen[m.tab]; key != "" && m.layer == layerNone {
			m.detail, m.scroll, m.layer = m.sheetOf(key), 0, layerDetail
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
	keys := m.keys()
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

// at is the place of the chosen row. A row is chosen by its key: a refresh never
// puts another one under the finger.
func (m *model) at(keys []string) int {
	if i := slices.Index(keys, m.chosen[m.tab]); i >= 0 {
		return i
	}
	return max(0, min(m.index[m.tab], len(keys)-1))
}

// keepChosen chooses a row where the chosen one has gone.
func (m *model) keepChosen() {
	keys := m.keys()
	if len(keys) == 0 {
		m.chosen[m.tab] = ""
		return
	}
	i := m.at(keys)
	m.chosen[m.tab], m.index[m.tab] = keys[i], i
	if m.layer == layerDetail && slices.Contains(keys, m.detail.key) {
		m.detail = m.sheetOf(m.detail.key)
	}
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

// setFilter is for texts that are right.
func (m *model) setFilter(text string) {
	q, err := parseFilter(text, m.now, m.opt.Parse)
	if err != nil {
		m.say(err)
		return
	}
	m.filter[tabLetters], m.query = text, q
	m.renew(feedLetters)
}

// say shows what became of a change.
func (m *model) say(err error) {
	m.said = notice{text: describe(err), bad: true, at: m.now}
}

// cause is why a server does not answer.
func cause(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Err != nil {
		return e.Err.Error()
	}
	return describe(err)
}

// describe is an error in one line: what, and its code.
func describe(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "the server did not answer in time"
	}
	e, ok := errors.AsType[*notify.Error](err)
	if !ok {
		return err.Error()
	}
	text := e.Msg
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	return text
}
