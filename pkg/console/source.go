package console

import (
	"context"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
)

// Server is what the page asks of a server; an *api.Client is one. Its methods
// are called from several goroutines. Repeating is the page's own affair: a
// client should not retry.
type Server interface {
	Rates(ctx context.Context) (api.Rates, error)
	Lag(ctx context.Context) ([]api.GroupLag, error)
	Doctor(ctx context.Context) ([]api.Finding, error)
	Circuits(ctx context.Context) (api.Circuits, error)
	TopDeadLetters(ctx context.Context, f api.LetterFilter, limit int) (api.LetterTop, error)
	DeadLetters(ctx context.Context, f api.LetterFilter, cursor string, limit int) (api.DeadLetterPage, error)
	Jobs(ctx context.Context, limit int) ([]api.Job, error)
	Forecast(ctx context.Context, from, to time.Time) (api.Forecast, error)
	Schedules(ctx context.Context, f api.ScheduleQuery) (api.ScheduledPage, error)

	Plan(ctx context.Context, spec api.JobSpec) (api.Plan, error)
	StartJob(ctx context.Context, r api.JobRequest) (api.Job, error)
	ChangeJob(ctx context.Context, id, change string) (api.Job, error)
	SetCircuit(ctx context.Context, name, to string) (api.Circuit, error)
}

// Options say which server the page shows, and how.
type Options struct {
	Server  Server
	URL     string // of the server
	Context string // of notifyctl; empty: none
	// Protected: changes are confirmed by typing the context's name.
	Protected bool
	// ReadOnly says why nothing can be changed, for people; empty: it can.
	ReadOnly string
	// Command writes the command line of notifyctl that these words mean, quoted
	// for a shell. nil: "notifyctl" and the words.
	Command func(words ...string) string
	// ASCII: only characters of ASCII are drawn, besides what users wrote.
	ASCII bool
	// Timeout of one request; default 10 s.
	Timeout time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Parse reads a moment a person wrote, such as -2h, for filters.
	Parse func(s string, now time.Time) (time.Time, error)
}

// snapshot is the latest answers. What was never answered is its zero value.
type snapshot struct {
	rates     api.Rates
	lanes     []api.GroupLag
	findings  []api.Finding
	circuits  []api.Circuit
	top       api.LetterTop // of those that are dead
	letters   api.DeadLetterPage
	jobs      []api.Job
	forecast  api.Forecast
	schedules api.ScheduledPage
}

const (
	lettersShown   = 200
	jobsShown      = 100
	schedulesShown = 200
	groupsShown    = 10
)

// ask fetches what a feed shows, as a change of the snapshot.
func ask(ctx context.Context, s Server, f feed, q api.LetterFilter) (func(*snapshot), error) {
	switch f {
	case feedRates:
		v, err := s.Rates(ctx)
		return func(t *snapshot) { t.rates = v }, err
	case feedLag:
		v, err := s.Lag(ctx)
		return func(t *snapshot) { t.lanes = v }, err
	case feedDoctor:
		v, err := s.Doctor(ctx)
		return func(t *snapshot) { t.findings = v }, err
	case feedCircuits:
		v, err := s.Circuits(ctx)
		return func(t *snapshot) { t.circuits = v.Items }, err
	case feedTop:
		v, err := s.TopDeadLetters(ctx, api.LetterFilter{State: "dead"}, groupsShown)
		return func(t *snapshot) { t.top = v }, err
	case feedLetters:
		v, err := s.DeadLetters(ctx, q, "", lettersShown)
		return func(t *snapshot) { t.letters = v }, err
	case feedJobs:
		v, err := s.Jobs(ctx, jobsShown)
		return func(t *snapshot) { t.jobs = v }, err
	case feedForecast:
		v, err := s.Forecast(ctx, time.Time{}, time.Time{})
		return func(t *snapshot) { t.forecast = v }, err
	default:
		v, err := s.Schedules(ctx, api.ScheduleQuery{Status: "SCHEDULED", Limit: schedulesShown})
		return func(t *snapshot) { t.schedules = v }, err
	}
}

// Run shows the page on a terminal until q, Ctrl-C or the end of ctx, and leaves
// the terminal as it was. in and out are the terminal's; env is the environment,
// as of os.Environ, which says what the terminal can. The result is nil for q,
// and context.Canceled for Ctrl-C and the end of ctx. What is under way then is
// cut off.
func Run(ctx context.Context, in io.Reader, out io.Writer, env []string, o Options) error {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	m := newModel(asking, o)
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env), tea.WithoutSignalHandler())
	// Not tea.WithContext, nor tea.Interrupt: a program that is killed so leaves
	// its reader of keys behind.
	defer context.AfterFunc(ctx, p.Quit)()
	if _, err := p.Run(); err != nil {
		return err
	}
	if m.interrupted || ctx.Err() != nil {
		return context.Canceled
	}
	return nil
}
