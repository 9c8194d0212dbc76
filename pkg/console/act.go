package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/term/paint"
)

// question is a change of the server that is asked about before it is made.
type question struct {
	title   string
	facts   [][2]string // what is known of it
	command string      // that does the same
	word    string      // to type; empty: y
	busy    string      // what is waited for; empty: the answer of who looks
	do      func(context.Context) (string, error)
}

type (
	plannedMsg struct {
		asking int
		plan   api.Plan
		err    error
	}
	doneMsg struct {
		text string
		err  error
	}
)

// verbs of the capital letters, by page.
var verbs = [tabs]map[string]string{
	tabLetters:  {"R": "replay"},
	tabJobs:     {"P": "pause", "R": "resume", "X": "cancel", "A": "approve"},
	tabCircuits: {"O": "open", "C": "close", "R": "reset"},
}

// change begins what a key changes on this page. It is asked about first.
func (m *model) change(name string) tea.Cmd {
	verb := verbs[m.tab][name]
	if verb == "" {
		return nil
	}
	if why := m.opt.ReadOnly; why != "" {
		m.say(fmt.Errorf("%s is off: %s", verb, why))
		return nil
	}
	key := m.target()
	if key == "" {
		return nil
	}
	if why := m.refusal(paint.Hint{name}); why != "" {
		m.say(errors.New(why))
		return nil
	}
	switch m.tab {
	case tabLetters:
		return m.planReplay(key)
	case tabJobs:
		m.changeJob(key, verb)
	case tabCircuits:
		m.changeCircuit(key, verb)
	}
	return nil
}

// target is the row that a change is about.
func (m *model) target() string {
	if m.layer == layerDetail {
		return m.detail.key
	}
	return m.chosen[m.tab]
}

// refusal says why a change is not offered: the server would refuse it, or do
// something else than what the list shows.
func (m *model) refusal(h paint.Hint) string {
	key := m.target()
	switch m.tab {
	case tabLetters:
		if s := m.query.State; s != "" && s != "dead" {
			return "the list is of those that are " + s + ": only dead ones are replayed"
		}
	case tabJobs:
		verb := verbs[m.tab][h[0]]
		if j := m.job(key); j != nil && !slices.Contains(api.JobChanges[j.State], verb) {
			return "a job that is " + j.State + " cannot be told to " + verb
		}
	case tabCircuits:
		if !strings.HasPrefix(key, "caller:") && verbs[m.tab][h[0]] == "close" {
			return "a provider's circuit is held open or reset, not closed"
		}
	}
	return ""
}

func (m *model) job(id string) *api.Job {
	i := slices.IndexFunc(m.data.jobs, func(j api.Job) bool { return j.ID == id })
	if i < 0 {
		return nil
	}
	return &m.data.jobs[i]
}

// put asks.
func (m *model) put(q *question) {
	if m.opt.Protected {
		q.word = m.opt.Context
	}
	m.asking++
	m.ask, m.layer, m.wrong, m.said = q, layerConfirm, "", notice{}
	m.input.SetValue("")
	m.input.Focus()
}

// planReplay asks for the plan of what the list selects or, on a detail, of that
// one letter. The plan is asked about, and nothing but the plan is carried out.
func (m *model) planReplay(key string) tea.Cmd {
	f := selection(m.query)
	if m.layer == layerDetail {
		id, _, _ := strings.Cut(key, " ")
		f = api.LetterFilter{IDs: []string{id}}
	}
	spec := api.JobSpec{Kind: "replay", Filter: f}
	m.put(&question{
		title: "replay", busy: "the server plans it",
		command: m.opt.Command(append([]string{"dlq", "replay"}, filterFlags(&f)...)...),
	})
	asking, opt, ctx := m.asking, m.opt, m.ctx
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(ctx, 6*opt.Timeout) // it may read millions
		defer stop()
		p, err := opt.Server.Plan(ctx, spec)
		return plannedMsg{asking, p, err}
	}
}

// planned asks about a plan.
func (m *model) planned(p plannedMsg) {
	if p.asking != m.asking || m.layer != layerConfirm {
		return // given up
	}
	if p.err != nil {
		m.layer = layerNone
		m.refused(p.err)
		return
	}
	plan := &p.plan
	if plan.Send == 0 {
		m.layer = layerNone
		m.said = notice{text: fmt.Sprintf("there is nothing to replay: %s selected; %s", term.Count(plan.Entries), cmp.Or(sums(plan.Skip), "none skipped")), at: m.now}
		return
	}
	all := ""
	if plan.Spec.Filter.All {
		all = "all "
	}
	q := m.ask
	q.busy = ""
	q.title = fmt.Sprintf("replay %s%s dead letters?", all, term.Count(plan.Send))
	q.facts = [][2]string{
		{"selected", term.Count(plan.Entries)}, {"skipped", sums(plan.Skip)},
		{"by code", sums(plan.Counts["code"])}, {"by provider", sums(plan.Counts["provider"])},
		{"by channel", sums(plan.Counts["channel"])}, {"by caller", sums(plan.Counts["caller"])},
		{"unreachable", sums(plan.Unreach)},
		{"takes", fmt.Sprintf("%s at %g/s", term.Span(time.Duration(plan.EtaMs)*time.Millisecond), plan.Spec.Rate)},
		{"guard", guardOf(&plan.Spec)},
		{"plan", plan.Digest},
	}
	if plan.Approval {
		q.facts = append(q.facts, [2]string{"approval", "another operator must approve it"})
	}
	q.do = func(ctx context.Context) (string, error) {
		j, err := m.opt.Server.StartJob(ctx, api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Entries: plan.Entries})
		return fmt.Sprintf("job %s is %s; 3 shows it", j.ID, j.State), err
	}
}

func guardOf(s *api.JobSpec) string {
	canary := "no canary"
	if s.Canary > 0 {
		canary = fmt.Sprintf("%d first", s.Canary)
	}
	if s.AbortIf <= 0 {
		return canary
	}
	return fmt.Sprintf("%s; stops when over %.0f%% reach nobody", canary, 100*s.AbortIf)
}

func (m *model) changeJob(id, change string) {
	j := m.job(id)
	if j == nil {
		return
	}
	m.put(&question{
		title: change + " job " + id + "?", command: m.opt.Command("job", change, id),
		facts: [][2]string{{"kind", j.Kind}, {"state", j.State}, {"position", term.Count(j.Position) + " of " + term.Count(j.Planned)}, {"made by", j.By}},
		do: func(ctx context.Context) (string, error) {
			j, err := m.opt.Server.ChangeJob(ctx, id, change)
			return "job " + id + " is " + j.State, err
		},
	})
}

func (m *model) changeCircuit(key, verb string) {
	i := slices.IndexFunc(m.data.circuits, func(c api.Circuit) bool { return circuitKey(&c) == key })
	if i < 0 {
		return
	}
	c := &m.data.circuits[i]
	name := c.Name
	to := map[string]string{"open": "open", "close": "closed", "reset": "reset"}[verb]
	means := map[string]string{
		"open":  "nothing passes until it is reset; what waits keeps its attempts",
		"close": "everything passes until it is reset, whatever fails",
		"reset": "its calls decide again",
	}[verb]
	m.put(&question{
		title: verb + " circuit " + name + "?", command: m.opt.Command("circuit", verb, name),
		facts: [][2]string{{"state", circuitState(c)}, {"queued", term.Count(c.Queued)}, {"then", means}},
		do: func(ctx context.Context) (string, error) {
			c, err := m.opt.Server.SetCircuit(ctx, name, to)
			return "circuit " + name + " is " + circuitState(&c), err
		},
	})
}

func circuitState(c *api.Circuit) string {
	if c.Pinned {
		return c.State + ", held"
	}
	return c.State
}

// keyConfirm answers a question. Whatever is not a yes is no.
func (m *model) keyConfirm(name string, k tea.KeyPressMsg) tea.Cmd {
	q := m.ask
	if name == "esc" || q.word == "" && (name == "n" || name == "q") {
		m.layer = layerNone
		m.input.Blur()
		m.asking++
		if q.do == nil || q.busy == "" {
			m.said = notice{text: "not confirmed; nothing was done", at: m.now}
		}
		return nil
	}
	switch {
	case q.busy != "":
		return nil
	case q.word == "" && name != "y":
		return nil
	case q.word != "" && name != "enter":
		return m.typed(k)
	case q.word != "" && m.input.Value() != q.word:
		m.wrong = "that is not it; esc gives up"
		return nil
	}
	m.layer = layerNone
	m.input.Blur()
	m.said = notice{text: strings.TrimSuffix(q.title, "?") + ": under way", at: m.now}
	do, ctx, timeout := q.do, m.ctx, m.opt.Timeout
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(ctx, 3*timeout)
		defer stop()
		text, err := do(ctx)
		return doneMsg{text, err}
	}
}

// done says what became of a change, and looks at it.
func (m *model) done(d doneMsg) tea.Cmd {
	if d.err != nil {
		m.refused(d.err)
	} else {
		m.said = notice{text: d.text, done: true, at: m.now}
	}
	for _, f := range []feed{feedLetters, feedTop, feedJobs, feedCircuits} {
		m.states[f].due = time.Time{}
	}
	return m.poll()
}

// refused shows why a change was not made. A token that may not is not asked
// about again.
func (m *model) refused(err error) {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code == "scope_missing" {
		m.opt.ReadOnly = e.Msg
	}
	m.say(err)
}
