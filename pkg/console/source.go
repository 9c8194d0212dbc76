package console

import (
	"context"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/notifyd/notifyd/pkg/api"
)

// Server contains the methods of a server that the console uses. *api.Client implements it. Several
// goroutines call its methods. The console repeats requests itself, so a client should not retry.
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

// Options configure the console.
type Options struct {
	Server  Server
	URL     string // URL of the server
	Context string // context of notifyctl; empty: there is none
	// Protected means that the person confirms changes by typing the context's name.
	Protected bool
	// ReadOnly is the reason why nothing can be changed; empty: changes are possible.
	ReadOnly string
	// Command returns the notifyctl command line for the given words, quoted for a shell. nil: it
	// is "notifyctl" followed by the words.
	Command func(words ...string) string
	// ASCII means that only ASCII characters are drawn, except in users' data.
	ASCII bool
	// Timeout is the time limit of one request; default 10 s.
	Timeout time.Duration
	// Now returns the current time; nil: time.Now.
	Now func() time.Time
	// Parse parses a time in a filter, such as -2h.
	Parse func(s string, now time.Time) (time.Time, error)
}

// snapshot contains the latest answers. The field of a feed without an answer has its zero value.
type snapshot struct {
	rates     api.Rates
	lanes     []api.GroupLag
	findings  []api.Finding
	circuits  []api.Circuit
	top       api.LetterTop // groups of the letters whose state is "dead"
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

// fetchFeed requests a feed. It returns a function that stores the answer in the snapshot.
func fetchFeed(ctx context.Context, s Server, f feed, q api.LetterFilter) (func(*snapshot), error) {
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

// Run shows the console on a terminal until the person presses q or Ctrl-C, or until ctx ends. Then
// it restores the terminal. The parameters input and output are the terminal, and env is the
// environment that describes it, in the form of os.Environ. Run returns nil for q, and
// context.Canceled for Ctrl-C or the end of ctx. In all cases requests in flight are cancelled.
func Run(ctx context.Context, input io.Reader, output io.Writer, env []string, o Options) error {
	asking, stop := context.WithCancel(ctx)
	defer stop()
	m := newModel(asking, o)
	p := tea.NewProgram(m, tea.WithInput(input), tea.WithOutput(output), tea.WithEnvironment(env), tea.WithoutSignalHandler())
	// tea.WithContext and tea.Interrupt would kill the program, and the goroutine that reads keys
	// would never end. After Quit that goroutine ends.
	defer context.AfterFunc(ctx, p.Quit)()
	if _, err := p.Run(); err != nil {
		return err
	}
	if m.interrupted || ctx.Err() != nil {
		return context.Canceled
	}
	return nil
}
