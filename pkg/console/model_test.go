package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (p *page) shows(texts ...string) {
	p.t.Helper()
	frame := p.text()
	for _, s := range texts {
		if !strings.Contains(frame, s) {
			p.t.Errorf("%q is not to be seen:\n%s", s, frame)
		}
	}
}

func (p *page) hides(texts ...string) {
	p.t.Helper()
	frame := p.text()
	for _, s := range texts {
		if strings.Contains(frame, s) {
			p.t.Errorf("%q is to be seen:\n%s", s, frame)
		}
	}
}

// TestReplay: a replay sends what was planned, the plan is what the list selects,
// and only a yes does it.
func TestReplay(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 100, 30, nil)
	p.press("2", "/", "ctrl+u", "channel:email attempts:>=3 since:-2h where:.code | startswith(\"5\")", "enter", "R")
	want := api.LetterFilter{Channel: "email", Attempts: ">=3", Since: noon.Add(-2 * time.Hour).UnixMilli(), Where: `.code | startswith("5")`}
	if !equal(f.spec.Filter, want) || f.spec.Kind != "replay" {
		t.Fatalf("planned %+v, want %+v", f.spec, want)
	}
	if f.query.Channel != "email" || f.query.Since != want.Since || f.query.State != "" {
		t.Fatalf("listed %+v", f.query)
	}
	p.shows("replay 9,331 dead letters?", "3,102 expired, 48 exhausted", "3m7s at 50/s", "notifyctl dlq replay --channel email --since 2026-03-01T10:00:00Z", "10 first; stops if over 20% do not arrive")
	p.press("x", "enter", "n")
	if len(f.changes) != 0 {
		t.Fatalf("not confirmed, yet %v", f.changes)
	}
	p.shows("not confirmed; nothing was done")
	p.press("R", "y")
	if !slices.Equal(f.changes, []string{"start replay"}) || f.started.Digest != "8f3c910000000000" || f.started.Entries != 12_481 || !equal(f.started.Spec.Filter, want) {
		t.Fatalf("%v, %+v", f.changes, f.started)
	}
	p.shows("job job_01JD4ZNEW is running")

	// Of one letter: that one, whatever the filter is.
	p.press("j", "enter", "R")
	if want := []string{"ntf_01JD4Z8Q000000000000000001"}; !slices.Equal(f.spec.Filter.IDs, want) || f.spec.Filter.Channel != "" {
		t.Fatalf("planned %+v", f.spec)
	}
	p.shows("notifyctl dlq replay --id ntf_01JD4Z8Q000000000000000001")
	p.press("esc")

	// Without a filter it says that all are meant.
	p.press("2", "esc", "R")
	if !f.spec.Filter.All {
		t.Fatalf("planned %+v", f.spec)
	}
	p.shows("replay all 9,331 dead letters?", "notifyctl dlq replay --all")
	p.press("esc")

	// What is listed as replayed cannot be replayed.
	plans := f.times("plan")
	p.press("/", "ctrl+u", "state:replayed", "enter", "R")
	if f.times("plan") != plans {
		t.Fatal("replayed letters were planned")
	}
	p.shows("only dead letters can be replayed")

	f.planErr = notify.Invalid("bad_where", "where", "is no expression of jq")
	p.press("esc", "R")
	p.shows("! where: is no expression of jq (bad_where)")
}

func equal(a, b api.LetterFilter) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

// TestLatePlan: the plan of a question that was given up asks nothing.
func TestLatePlan(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, nil)
	p.press("2")
	_, cmd := p.Update(tea.KeyPressMsg{Code: 'R', Text: "R"})
	p.shows("the server makes a plan")
	p.press("y", "esc") // y while there is no plan is nothing
	late := cmd()
	p.press("4", "C")
	p.send(late)
	p.shows("close circuit caller:shop?")
	p.press("esc")
	p.send(late)
	p.hides("─ confirm")
	if len(f.changes) != 0 {
		t.Fatal(f.changes)
	}
}

func TestJobsAndCircuits(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, nil)
	p.press("3")
	p.shows("P pause", "X cancel")
	p.hides("R resume")
	p.press("R")
	p.shows("cannot resume a job that is running")
	p.press("P")
	p.shows("pause job job_01JD4ZRUN?", "notifyctl job pause job_01JD4ZRUN")
	p.press("y", "j", "R", "y", "j", "X")
	p.shows("cannot cancel a job that is done")
	p.press("k", "enter", "X", "y") // also from the details
	p.press("4", "R", "y", "O", "y", "C", "y", "j", "C")
	p.shows("held open or reset, but not held closed")
	want := []string{
		"pause job_01JD4ZRUN", "resume job_01JD4ZSTOP", "cancel job_01JD4ZSTOP",
		"caller:shop reset", "caller:shop open", "caller:shop closed",
	}
	if !slices.Equal(f.changes, want) {
		t.Fatalf("%q, want %q", f.changes, want)
	}
}

func TestProtectedAsksForTheName(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, func(o *Options) { o.Protected = true })
	p.press("4", "O", "y", "enter")
	p.shows("this is not the name of the context")
	if len(f.changes) != 0 {
		t.Fatal(f.changes)
	}
	p.press("ctrl+u", "prod-eu", "enter")
	if !slices.Equal(f.changes, []string{"caller:shop open"}) {
		t.Fatal(f.changes)
	}
}

// TestReadOnly: a token that may only look changes nothing, and the page says
// why; also when only the server knew.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, func(o *Options) { o.ReadOnly = "the token lacks the scope operate" })
	p.press("3", "P", "2", "R", "4", "O", "y", "enter", "y")
	if len(f.changes) != 0 || f.times("plan") != 0 {
		t.Fatalf("%v", f.changes)
	}
	p.press("esc", "4", "O")
	p.shows("\"open\" is turned off: the token lacks the scope operate", "read only")
	p.hides("O hold open")

	p = open(t, f, 80, 24, nil)
	p.press("4", "O")
	f.fail(&notify.Error{Kind: notify.KindForbidden, Code: "scope_missing", Msg: "the token lacks the scope operate"})
	p.press("y")
	p.shows("the token lacks the scope operate (scope_missing)", "read only")
	n := len(f.changes)
	p.press("O", "y")
	if len(f.changes) != n {
		t.Fatal(f.changes)
	}
}

// TestChosenRowStays: a list that changes never puts another row under the
// finger.
func TestChosenRowStays(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, nil)
	p.press("2", "j", "j")
	chosen := f.letters[2].NotificationID
	p.shows(">" + chosen)
	fresh := f.letters[0]
	fresh.NotificationID = "ntf_01JD4Z8QNEW"
	f.letters = append([]api.DeadLetter{fresh}, f.letters...)
	p.press("r")
	p.shows(">"+chosen, " ntf_01JD4Z8QNEW")
	f.letters = slices.DeleteFunc(slices.Clone(f.letters), func(l api.DeadLetter) bool { return l.NotificationID == chosen })
	p.press("r")
	p.shows(">" + f.letters[3].NotificationID) // its neighbour
	p.press("end")
	p.shows(">" + f.letters[len(f.letters)-1].NotificationID)
	p.press("down", "pgdown", "home", "up")
	p.shows(">" + f.letters[0].NotificationID)
	f.letters = nil
	p.press("r", "enter", "j", "R", "esc")
	p.shows("no dead letter matches")
}

func TestFilters(t *testing.T) {
	t.Parallel()
	f := newFake()
	p := open(t, f, 80, 24, nil)
	p.press("3", "/", "STOPPED repl", "enter")
	p.shows("job_01JD4ZSTOP", "jobs, newest first: STOPPED repl")
	p.hides("job_01JD4ZRUN")
	p.press("4", "5", "/", "news", "enter")
	p.shows("ntf_01JD4Z8QONE")
	p.hides("ntf_01JD4Z8QSALE")
	p.press("esc")
	p.shows("ntf_01JD4Z8QSALE")
	for in, want := range map[string]string{
		"push":            `"push": write name:value`,
		"colour:red":      `"colour:red": write name:value`,
		"channel:":        "channel: has no value",
		"since:yesterday": "invalid duration",
	} {
		p.press("2", "/", "ctrl+u", in, "enter")
		p.send(tea.WindowSizeMsg{Width: 160, Height: 24})
		p.shows(want)
		p.press("esc")
	}
	// What is typed stands beside what the filter holds already.
	p.press("2", "/", "code:x", "enter")
	if f.query.State != "dead" || f.query.Code != "x" {
		t.Errorf("%+v", f.query)
	}
	// Keys of the page are letters of the filter.
	p.press("/", "ctrl+u", "code:qpR?", "enter")
	if f.query.Code != "qpR?" || len(f.changes) != 0 || f.times("plan") != 0 {
		t.Fatalf("%+v", f.query)
	}
	p.send(tea.PasteMsg{Content: "ignored"})
}

// TestHeldAnswers: keys work while answers are awaited, and nothing is asked
// twice.
func TestHeldAnswers(t *testing.T) {
	t.Parallel()
	m := newModel(t.Context(), Options{Server: newFake(), URL: "http://h", Now: func() time.Time { return noon }})
	p := &page{m, t}
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	if m.poll() == nil {
		t.Fatal("nothing is asked")
	}
	for _, k := range "2/" {
		m.Update(tea.KeyPressMsg{Code: k, Text: string(k)}) // its commands are not run: no answer ever comes
	}
	p.shows("filter: state:dead", "no answer yet", "asking")
	m.Update(tea.KeyPressMsg{Code: tea.KeyEscape})
	if m.poll() != nil {
		t.Fatal("asked again before the answer")
	}
	m.Update(tea.KeyPressMsg{Code: '?', Text: "?"})
	p.shows("pause, continue")
}

func TestQuitKeys(t *testing.T) {
	t.Parallel()
	p := open(t, newFake(), 80, 24, nil)
	is := func(k tea.KeyPressMsg, want tea.Msg) {
		t.Helper()
		_, cmd := p.Update(k)
		if cmd == nil || fmt.Sprintf("%T", cmd()) != fmt.Sprintf("%T", want) {
			t.Errorf("%v does not end the page with %T", k, want)
		}
	}
	is(tea.KeyPressMsg{Code: 'q', Text: "q"}, tea.QuitMsg{})
	p.press("?") // of which any key leads back
	if _, cmd := p.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd != nil {
		t.Error("q ends the help and the page")
	}
	p.press("2", "/")
	is(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}, tea.QuitMsg{}) // also where one types
	if !p.interrupted {
		t.Error("Ctrl-C is taken for q")
	}
	if got := describe(context.DeadlineExceeded); got != "the server did not answer in time" {
		t.Error(got)
	}
}

// TestProcessesInTheUI: with several processes each circuit names its own, one that did not
// answer is told of, and to hold a circuit is asked by the circuit's name.
func TestProcessesInTheUI(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.circuit = []api.Circuit{{Name: "provider:apns", Process: "front", State: "open"}, {Name: "provider:apns", Process: "pushes", State: "open"}}
	f.processes = []api.ProcessRates{{Process: api.Process{Name: "front", State: api.ProcessReady}}, {Process: api.Process{Name: "mails", State: api.ProcessMissing, AgeSeconds: 41}}}
	p := open(t, f, 160, 48, nil)
	p.shows("1 not closed: provider:apns", "processes", "mails did not answer for 41s")
	p.press("4", "j")
	p.shows("process", "front", "pushes")
	p.press("O")
	p.shows("open circuit provider:apns?")
}
