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
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
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
	style  paint.Styles

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
	query  api.LetterFilter // that filter[tabLetters] means
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
	m := &model{opt: o, ctx: ctx, now: o.Now(), style: paint.New(o.ASCII), input: paint.Input(1000)}
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
	v.WindowTitle = "notifyd " + term.Clean(m.opt.Context)
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
	keys := keysOf(m)
	if len(keys) == 0 {
		m.chosen[m.tab] = ""
		return
	}
	i := m.at(keys)
	m.chosen[m.tab], m.index[m.tab] = keys[i], i
	if m.layer == layerDetail && slices.Contains(keys, m.detail.key) {
		m.detail = sheetOf(m, m.detail.key)
	}
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
