package console

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a server in memory. Its fields are set before it is asked, or under mu.
type fake struct {
	processes []api.ProcessRates
	mu        sync.Mutex
	err       error          // of every answer
	asked     map[string]int // by method
	at        []time.Time    // of each question
	changes   []string       // what was changed
	query     api.LetterFilter
	spec      api.JobSpec
	started   api.JobRequest
	letters   []api.DeadLetter
	circuit   []api.Circuit
	jobs      []api.Job
	planErr   error
	hang      chan struct{} // not nil: answers wait for it, or for their context
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) *time.Time { t := noon.Add(d); return &t }

func newFake() *fake {
	f := &fake{asked: map[string]int{}}
	for i := range 45 {
		f.letters = append(f.letters, api.DeadLetter{
			NotificationID: fmt.Sprintf("ntf_01JD4Z8Q%018d", i), Caller: "shop", Channel: "email", Category: "marketing", UserID: fmt.Sprintf("user-%d", i),
			Template: "spring", Class: "permanent", Code: "sendgrid_bad_request", Provider: "sendgrid:pool-1", Attempts: 1, State: "dead",
			FirstFailedAt: noon.Add(-time.Duration(i+1) * time.Minute), LastFailedAt: noon.Add(-time.Duration(i+1) * time.Minute), KeptUntil: at(240 * time.Hour),
			Origin: "notifications-email-bulk/3/6", Extra: map[string]any{"http_status": 400},
		})
	}
	f.circuit = []api.Circuit{
		{Name: "caller:shop", State: "open", Pinned: true, Since: at(-time.Hour), InFlight: 0, Limit: 32, Queued: 12},
		{Name: "provider:apns", State: "open", Since: at(-90 * time.Second), Until: at(7 * time.Second), Queued: 3},
		{Name: "provider:sendgrid", State: "closed", InFlight: 4},
		{Name: "provider:twilio", State: "half-open", Since: at(-3 * time.Minute), InFlight: 1},
	}
	f.jobs = []api.Job{
		{ID: "job_01JD4ZRUN", Kind: "replay", State: "running", By: "ann", Planned: 12_481, Position: 5616, Done: 5600, Skipped: map[string]int{"expired": 16}, Created: noon.Add(-3 * time.Minute).UnixMilli(), Spec: api.JobSpec{Kind: "replay", Rate: 50, Canary: 10, AbortIf: 0.2, Filter: api.LetterFilter{Channel: "email", Code: "sendgrid_bad_request"}}},
		{ID: "job_01JD4ZSTOP", Kind: "replay", State: "stopped", Why: "canary: 3 of 10 failed again (limit 20%)", By: "bob", Planned: 40, Position: 10, Done: 10, Created: noon.Add(-time.Hour).UnixMilli()},
		{ID: "job_01JD4ZDONE", Kind: "discard", State: "done", By: "ann", Planned: 7, Position: 7, Done: 7, Created: noon.Add(-26 * time.Hour).UnixMilli()},
	}
	return f
}

func (f *fake) on(ctx context.Context, method string) error {
	f.mu.Lock()
	f.asked[method]++
	f.at = append(f.at, time.Now())
	err, hang := f.err, f.hang
	f.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (f *fake) times(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[method]
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
}

func (f *fake) changed(s string) {
	f.mu.Lock()
	f.changes = append(f.changes, s)
	f.mu.Unlock()
}

func (f *fake) Rates(ctx context.Context) (api.Rates, error) {
	r := api.Rates{OverSeconds: 60, Rates: []api.Rate{
		{What: "email", Accepted: 812.4, Reached: 790, Failed: 1.5, Other: 3}, {What: "push", Accepted: 12_004, Reached: 11_950}, {What: "sms", Accepted: 3.2, Reached: 3.1, Other: 0.02}, {What: "trigger"},
	}, Late: []api.Lateness{{What: "timer", N: 420, P50: .005, P99: .05}, {What: "trigger"}}}
	for i := range 60 {
		r.Series = append(r.Series, api.RatePoint{At: noon.Add(time.Duration(i-60) * 5 * time.Second), Accepted: float64(i * i), Ended: float64(i*i) * .9})
	}
	r.Processes = f.processes
	return r, f.on(ctx, "rates")
}

func decoded[T any](list string) (out []T) {
	if err := json.Unmarshal([]byte(list), &out); err != nil {
		panic(err)
	}
	return out
}

func (f *fake) Lag(ctx context.Context) ([]api.GroupLag, error) {
	return decoded[api.GroupLag](`[{"group":"push-workers","topic":"notifications-push","lag":0,"in_flight":3,"paused":0},
		{"group":"email-bulk-workers","topic":"notifications-email-bulk","lag":1203,"in_flight":64,"paused":2},
		{"group":"sms-workers","topic":"notifications-sms","lag":0,"in_flight":0,"paused":0}]`), f.on(ctx, "lag")
}

func (f *fake) Doctor(ctx context.Context) ([]api.Finding, error) {
	return decoded[api.Finding](`[{"check":"log","level":"ok","detail":"31 of 512 MiB","used":0.06},
		{"check":"disk","level":"warn","detail":"900 MiB free of 10240; intake stops at 512","repair":"make room on the volume of data_dir","used":0.91},
		{"check":"circuit apns","level":"warn","detail":"open config","repair":"correct the provider's credentials"},
		{"check":"log damage","level":"fail","detail":"notifications-push/3: acknowledged records 1 to 4 (4) are damaged and gone","repair":"look for faults of the disk"}]`), f.on(ctx, "doctor")
}

func (f *fake) Circuits(ctx context.Context) (api.Circuits, error) {
	return api.Circuits{Items: f.circuit}, f.on(ctx, "circuits")
}

func (f *fake) TopDeadLetters(ctx context.Context, filter api.LetterFilter, _ int) (api.LetterTop, error) {
	if filter.State != "dead" {
		return api.LetterTop{}, fmt.Errorf("state %q", filter.State)
	}
	return api.LetterTop{Total: 12_522, EndsSoon: 41, Groups: []api.LetterGroup{
		{Channel: "email", Provider: "sendgrid", Class: "permanent", Code: "sendgrid_bad_request", Template: "spring", Count: 12_481, LastHour: 9000, HourAgo: 3481, Last: noon.Add(-time.Minute).UnixMilli(), Callers: map[string]int{"shop": 12_000, "otp": 481}},
		{Channel: "push", Class: "undeliverable", Code: "no_address", Count: 41, HourAgo: 41, Last: noon.Add(-time.Hour).UnixMilli(), Callers: map[string]int{"shop": 41}},
	}}, f.on(ctx, "top")
}

func (f *fake) DeadLetters(ctx context.Context, q api.LetterFilter, _ string, _ int) (api.DeadLetterPage, error) {
	f.mu.Lock()
	f.query = q
	page := api.DeadLetterPage{Items: f.letters, Cursor: "more"}
	f.mu.Unlock()
	return page, f.on(ctx, "letters")
}

func (f *fake) Jobs(ctx context.Context, _ int) ([]api.Job, error) {
	return f.jobs, f.on(ctx, "jobs")
}

func (f *fake) Forecast(ctx context.Context, _, _ time.Time) (api.Forecast, error) {
	c := api.Forecast{From: noon, To: noon.Add(time.Hour), Total: 5460, Complete: true}
	for i := range 60 {
		c.Minutes = append(c.Minutes, api.ForecastMinute{Minute: noon.Add(time.Duration(i) * time.Minute), What: []string{"push", "email", "trigger"}[i%3], Count: int64(i*3 + 1)})
	}
	return c, f.on(ctx, "forecast")
}

func (f *fake) Schedules(ctx context.Context, _ api.ScheduleQuery) (api.ScheduledPage, error) {
	return api.ScheduledPage{Items: []api.Scheduled{
		{NotificationID: "ntf_01JD4Z8QSALE", Status: "SCHEDULED", Channel: "push", Category: "marketing", Caller: "shop", Campaign: "cmp_01JD4Z8Q", Receivers: 1_204_000, AcceptedAt: noon.Add(-time.Hour), ScheduledAt: noon.Add(17 * time.Minute)},
		{NotificationID: "ntf_01JD4Z8QONE", Status: "SCHEDULED", Channel: "email", Category: "digest", Caller: "news", Receivers: 1, AcceptedAt: noon.Add(-time.Hour), ScheduledAt: noon.Add(26 * time.Hour)},
	}}, f.on(ctx, "schedules")
}

func (f *fake) Plan(ctx context.Context, spec api.JobSpec) (api.Plan, error) {
	f.mu.Lock()
	f.spec = spec
	f.mu.Unlock()
	if f.planErr != nil {
		return api.Plan{}, f.planErr
	}
	spec.Rate, spec.Canary, spec.AbortIf = 50, 10, 0.2
	return api.Plan{
		Spec: spec, Digest: "8f3c910000000000", Entries: 12_481, Send: 9331, Skip: map[string]int{"expired": 3102, "exhausted": 48}, EtaMs: 187_000,
		Counts: map[string]map[string]int{"code": {"sendgrid_bad_request": 12_481}, "caller": {"shop": 12_000, "otp": 481}, "channel": {"email": 12_481}},
	}, f.on(ctx, "plan")
}

func (f *fake) StartJob(ctx context.Context, r api.JobRequest) (api.Job, error) {
	f.mu.Lock()
	f.started = r
	f.mu.Unlock()
	f.changed("start " + r.Spec.Kind)
	return api.Job{ID: "job_01JD4ZNEW", State: "running"}, f.on(ctx, "start")
}

func (f *fake) ChangeJob(ctx context.Context, id, change string) (api.Job, error) {
	f.changed(change + " " + id)
	return api.Job{ID: id, State: change + "d"}, f.on(ctx, "change")
}

func (f *fake) SetCircuit(ctx context.Context, name, to string) (api.Circuit, error) {
	f.changed(name + " " + to)
	return api.Circuit{Name: name, State: to}, f.on(ctx, "set")
}

var _ Server = (*fake)(nil)

// page is a model whose requests are answered at once, without a program.
type page struct {
	*model
	t *testing.T
}

// open is a page of a size, with every feed of its tab answered.
func open(t *testing.T, s Server, w, h int, change func(*Options)) *page {
	t.Helper()
	o := Options{Server: s, URL: "http://127.0.0.1:7420", Context: "prod-eu", Now: func() time.Time { return noon }, Parse: func(s string, now time.Time) (time.Time, error) {
		d, err := time.ParseDuration(s)
		return now.Add(d), err
	}}
	if change != nil {
		change(&o)
	}
	p := &page{newModel(t.Context(), o), t}
	p.send(tea.WindowSizeMsg{Width: w, Height: h})
	p.run(p.poll())
	return p
}

func (p *page) send(msg tea.Msg) {
	p.t.Helper()
	_, cmd := p.Update(msg)
	p.run(cmd)
}

// run does what a program does with a command, but for ticks and the blinking of
// a cursor.
func (p *page) run(cmd tea.Cmd) {
	p.t.Helper()
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case nil:
	case tea.BatchMsg:
		for _, c := range msg {
			p.run(c)
		}
	case answerMsg, planMsg, changeMsg:
		p.send(msg)
	}
}

// press presses keys, written as bubbletea names them; text of more letters that
// is no name of a key is typed.
func (p *page) press(keys ...string) {
	p.t.Helper()
	named := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "down": tea.KeyDown, "up": tea.KeyUp, "end": tea.KeyEnd, "home": tea.KeyHome, "pgdown": tea.KeyPgDown}
	for _, k := range keys {
		if code, ok := named[k]; ok {
			p.send(tea.KeyPressMsg{Code: code})
			continue
		}
		if k == "ctrl+u" {
			p.send(tea.KeyPressMsg{Code: 'u', Mod: tea.ModCtrl})
			continue
		}
		for _, r := range k {
			p.send(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
}

var away = &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Msg: "the server did not answer", Err: fmt.Errorf("connection refused")}
