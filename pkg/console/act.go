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

// confirmation is a change of the server that the person must confirm.
type confirmation struct {
	title   string
	facts   [][2]string // name and value, to help the person decide
	command string      // the notifyctl command that makes the same change
	word    string      // the word to type; empty: the key y
	busy    string      // what the server is doing; empty: the console waits for the person
	do      func(context.Context) (string, error)
}

type (
	planMsg struct {
		confirmationNumber int
		plan               api.Plan
		err                error
	}
	changeMsg struct {
		text string
		err  error
	}
)

// verbs contains, for each page, the change that each capital letter makes.
var verbs = [tabs]map[string]string{
	tabLetters:  {"R": "replay"},
	tabJobs:     {"P": "pause", "R": "resume", "X": "cancel", "A": "approve"},
	tabCircuits: {"O": "open", "C": "close", "R": "reset"},
}

// startChange starts the change that a key makes on this page. It first asks for confirmation.
func (m *model) startChange(name string) tea.Cmd {
	verb := verbs[m.tab][name]
	if verb == "" {
		return nil
	}
	if why := m.opt.ReadOnly; why != "" {
		m.showError(fmt.Errorf("%q is turned off: %s", verb, why))
		return nil
	}
	key := m.targetKey()
	if key == "" {
		return nil
	}
	if why := m.whyNotOffered(paint.Hint{name}); why != "" {
		m.showError(errors.New(why))
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

// targetKey returns the key of the row to change.
func (m *model) targetKey() string {
	if m.layer == layerDetail {
		return m.detail.key
	}
	return m.chosen[m.tab]
}

// whyNotOffered returns why a change is not possible now, or "" if it is possible. A change is not
// possible if the server would refuse it, or if it would act on letters that the list does not show.
func (m *model) whyNotOffered(h paint.Hint) string {
	key := m.targetKey()
	switch m.tab {
	case tabLetters:
		if s := m.query.State; s != "" && s != "dead" {
			return "the list shows letters that are " + s + ", but only dead letters can be replayed"
		}
	case tabJobs:
		verb := verbs[m.tab][h[0]]
		if j := m.job(key); j != nil && !slices.Contains(api.JobChanges[j.State], verb) {
			return "cannot " + verb + " a job that is " + j.State
		}
	case tabCircuits:
		if !strings.HasPrefix(key, "caller:") && verbs[m.tab][h[0]] == "close" {
			return "a provider's circuit can be held open or reset, but not held closed"
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

// askConfirmation shows q. From then on, answers that belong to earlier confirmations are dropped.
func (m *model) askConfirmation(q *confirmation) {
	if m.opt.Protected {
		q.word = m.opt.Context
	}
	m.confirmationNumber++
	m.confirming, m.layer, m.inputError, m.notice = q, layerConfirm, "", notice{}
	m.input.SetValue("")
	m.input.Focus()
}

// planReplay requests a plan for all dead letters that the list selects, or for the one dead
// letter of a detail page. The person confirms this plan, and the job does exactly what the plan
// says.
func (m *model) planReplay(key string) tea.Cmd {
	f := replayFilter(m.query)
	if m.layer == layerDetail {
		id, _, _ := strings.Cut(key, " ")
		f = api.LetterFilter{IDs: []string{id}}
	}
	spec := api.JobSpec{Kind: "replay", Filter: f}
	m.askConfirmation(&confirmation{
		title: "replay", busy: "the server makes a plan",
		command: m.opt.Command(append([]string{"dlq", "replay"}, filterFlags(&f)...)...),
	})
	asking, opt, ctx := m.confirmationNumber, m.opt, m.ctx
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(ctx, 6*opt.Timeout) // the server may have to read millions of letters
		defer stop()
		p, err := opt.Server.Plan(ctx, spec)
		return planMsg{asking, p, err}
	}
}

// showPlan shows a plan for confirmation.
func (m *model) showPlan(p planMsg) {
	if p.confirmationNumber != m.confirmationNumber || m.layer != layerConfirm {
		return // the person has left the confirmation
	}
	if p.err != nil {
		m.layer = layerNone
		m.showRefusal(p.err)
		return
	}
	plan := &p.plan
	if plan.Send == 0 {
		m.layer = layerNone
		m.notice = notice{text: fmt.Sprintf("nothing to replay: %s selected; %s", term.Count(plan.Entries), cmp.Or(countsText(plan.Skip), "none skipped")), at: m.now}
		return
	}
	all := ""
	if plan.Spec.Filter.All {
		all = "all "
	}
	q := m.confirming
	q.busy = ""
	q.title = fmt.Sprintf("replay %s%s dead letters?", all, term.Count(plan.Send))
	q.facts = [][2]string{
		{"selected", term.Count(plan.Entries)}, {"skipped", countsText(plan.Skip)},
		{"by code", countsText(plan.Counts["code"])}, {"by provider", countsText(plan.Counts["provider"])},
		{"by channel", countsText(plan.Counts["channel"])}, {"by caller", countsText(plan.Counts["caller"])},
		{"unreachable", countsText(plan.Unreachable)},
		{"takes", fmt.Sprintf("%s at %g/s", term.FormatDuration(time.Duration(plan.EtaMs)*time.Millisecond), plan.Spec.Rate)},
		{"guard", guardOf(&plan.Spec)},
		{"plan", plan.Digest},
	}
	if plan.Approval {
		q.facts = append(q.facts, [2]string{"approval", "another operator must approve the job"})
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
	return fmt.Sprintf("%s; stops if over %.0f%% do not arrive", canary, 100*s.AbortIf)
}

func (m *model) changeJob(id, change string) {
	j := m.job(id)
	if j == nil {
		return
	}
	m.askConfirmation(&confirmation{
		title: change + " job " + id + "?", command: m.opt.Command("job", change, id),
		facts: [][2]string{{"kind", j.Kind}, {"state", j.State}, {"position", term.Count(j.Position) + " of " + term.Count(j.Planned)}, {"created by", j.By}},
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
		"open":  "no calls until it is reset; waiting work uses no attempts",
		"close": "every call until it is reset, even if calls fail",
		"reset": "the results of its calls decide again",
	}[verb]
	m.askConfirmation(&confirmation{
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

// keyConfirm handles a key while the person is asked for confirmation. Normally the key y
// confirms. If q.word is set, the person must type this word and press enter instead.
func (m *model) keyConfirm(name string, k tea.KeyPressMsg) tea.Cmd {
	q := m.confirming
	if name == "esc" || q.word == "" && (name == "n" || name == "q") {
		m.layer = layerNone
		m.input.Blur()
		m.confirmationNumber++
		if q.do == nil || q.busy == "" {
			m.notice = notice{text: "not confirmed; nothing was done", at: m.now}
		}
		return nil
	}
	switch {
	case q.busy != "":
		return nil
	case q.word == "" && name != "y":
		return nil
	case q.word != "" && name != "enter":
		return m.forwardInput(k)
	case q.word != "" && m.input.Value() != q.word:
		m.inputError = "this is not the name of the context; esc cancels"
		return nil
	}
	m.layer = layerNone
	m.input.Blur()
	m.notice = notice{text: strings.TrimSuffix(q.title, "?") + ": running", at: m.now}
	do, ctx, timeout := q.do, m.ctx, m.opt.Timeout
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(ctx, 3*timeout)
		defer stop()
		text, err := do(ctx)
		return changeMsg{text, err}
	}
}

// finishChange shows the result of a change. Then it makes the feeds due that the change may have
// affected, and polls.
func (m *model) finishChange(d changeMsg) tea.Cmd {
	if d.err != nil {
		m.showRefusal(d.err)
	} else {
		m.notice = notice{text: d.text, done: true, at: m.now}
	}
	for _, f := range []feed{feedLetters, feedTop, feedJobs, feedCircuits} {
		m.states[f].due = time.Time{}
	}
	return m.poll()
}

// showRefusal shows why a change was not made. If the token does not have the scope that a change
// needs, showRefusal also turns off all changes.
func (m *model) showRefusal(err error) {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code == "scope_missing" {
		m.opt.ReadOnly = e.Msg
	}
	m.showError(err)
}
