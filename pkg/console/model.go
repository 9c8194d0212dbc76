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

// layer is what is shown over a page. The top layer handles the keys.
type layer int

const (
	layerNone layer = iota
	layerDetail
	layerFilter  // input of a filter
	layerConfirm // confirmation of a change
	layerHelp
)

// model is the state of the console. A frame depends only on the model: draw.go reads no clock.
// Only the goroutine of bubbletea's Update uses the model.
type model struct {
	opt    Options
	ctx    context.Context // context of the requests
	width  int
	height int
	now    time.Time
	style  paint.Styles

	data   snapshot
	states [feeds]feedState
	link   serverLink
	frozen bool // the person pressed p: no requests are sent

	tab            tab
	layer          layer
	layerBelowHelp layer // the layer to show after help
	chosen         [tabs]string
	index          [tabs]int // index of the chosen row, for the case that the row disappears
	filter         [tabs]string
	query          api.LetterFilter // parsed from filter[tabLetters]
	input          textinput.Model
	inputError     string // error of the input

	detail             detailSheet
	scroll             int // first visible line of the detail page
	confirming         *confirmation
	confirmationNumber int // raised for each confirmation: answers to older confirmations are dropped
	notice             notice

	interrupted bool // the person pressed Ctrl-C
}

// notice is a message for the status line, such as the result of the last change or an error.
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
		feed       feed
		generation int
		apply      func(*snapshot)
		err        error
		took       time.Duration
	}
)

// newModel returns a model without any data of the server. Its requests end when ctx ends.
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

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tea.Batch(tick(), m.poll()) }

// tick makes Update run every 250 ms, to send due requests and to show the new time.
func tick() tea.Cmd {
	return tea.Tick(250*time.Millisecond, func(t time.Time) tea.Msg { return tickMsg(t) })
}

// Update implements tea.Model. It never waits: requests are commands, and bubbletea runs commands
// in other goroutines.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	m.now = m.opt.Now()
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		if m.notice.text != "" && m.now.Sub(m.notice.at) > noticeFor {
			m.notice = notice{}
		}
		return m, tea.Batch(tick(), m.poll())
	case answerMsg:
		m.applyAnswer(msg)
	case planMsg:
		m.showPlan(msg)
	case changeMsg:
		cmd := m.finishChange(msg)
		return m, cmd
	case tea.KeyPressMsg:
		cmd := m.key(msg)
		return m, cmd
	case tea.PasteMsg:
		cmd := m.forwardInput(msg)
		return m, cmd
	}
	return m, nil
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.WindowTitle = "notifyd " + term.Clean(m.opt.Context)
	v.Cursor = m.cursor()
	return v
}

// poll sends the due requests.
func (m *model) poll() tea.Cmd {
	if m.frozen {
		return nil
	}
	var cmds []tea.Cmd
	for _, f := range feedsToPoll(&m.states, &m.link, m.tab, m.now) {
		cmds = append(cmds, m.request(f))
	}
	return tea.Batch(cmds...)
}

func (m *model) request(f feed) tea.Cmd {
	m.states[f].underWay = true
	gen, query, opt, ctx := m.states[f].generation, m.query, m.opt, m.ctx
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(ctx, opt.Timeout)
		defer stop()
		from := opt.Now()
		apply, err := fetchFeed(ctx, opt.Server, f, query)
		return answerMsg{f, gen, apply, err, opt.Now().Sub(from)}
	}
}

func (m *model) applyAnswer(a answerMsg) {
	s := &m.states[a.feed]
	if a.generation != s.generation {
		return // an answer to an older request; the answer to the new request will come
	}
	recordAnswer(s, &m.link, a.feed, m.tab, a.err, a.took, m.now)
	if a.err == nil {
		a.apply(&m.data)
		m.keepChosen()
	}
}

// restartFeed makes a feed due at once and drops the answer of a request in flight.
func (m *model) restartFeed(f feed) {
	s := &m.states[f]
	*s = feedState{generation: s.generation + 1}
}

// refresh makes all feeds due and polls, even while the console is paused.
func (m *model) refresh() tea.Cmd {
	m.link.nextTry = time.Time{}
	for f := range feeds {
		m.states[f].due = time.Time{}
	}
	frozen := m.frozen
	m.frozen = false
	cmd := m.poll()
	m.frozen = frozen
	return cmd
}

// chosenIndex returns the index of the chosen row. The model stores the key of this row (row.key), so
// that a refresh never chooses another row.
func (m *model) chosenIndex(keys []string) int {
	if i := slices.Index(keys, m.chosen[m.tab]); i >= 0 {
		return i
	}
	return max(0, min(m.index[m.tab], len(keys)-1))
}

// keepChosen chooses a neighbouring row if the chosen row has disappeared.
func (m *model) keepChosen() {
	keys := keysOf(m)
	if len(keys) == 0 {
		m.chosen[m.tab] = ""
		return
	}
	i := m.chosenIndex(keys)
	m.chosen[m.tab], m.index[m.tab] = keys[i], i
	if m.layer == layerDetail && slices.Contains(keys, m.detail.key) {
		m.detail = sheetOf(m, m.detail.key)
	}
}

// setFilter sets the filter of dead letters. If the text is not a valid filter, it shows the error
// and keeps the old filter.
func (m *model) setFilter(text string) {
	q, err := parseFilter(text, m.now, m.opt.Parse)
	if err != nil {
		m.showError(err)
		return
	}
	m.filter[tabLetters], m.query = text, q
	m.restartFeed(feedLetters)
}

// showError shows an error in the status line.
func (m *model) showError(err error) {
	m.notice = notice{text: describe(err), bad: true, at: m.now}
}

// cause returns why a server does not answer.
func cause(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Err != nil {
		return e.Err.Error()
	}
	return describe(err)
}

// describe returns the text of an error in one line, with its code.
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
