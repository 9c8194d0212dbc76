// Package launch connects a load run to its target. The target is a server that already runs, a
// notifyd in this process, or a notifyd in a process that the run starts. The faults of a scenario
// may kill only a notifyd in a process that the run starts.
//
// Start reading at Open. The function checkHosts decides which hosts may get load.
package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/app"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// Options describes how Open finds or starts the target of a run.
type Options struct {
	// Context returns a client of the server that the flags or the current context name. It also
	// returns the control URLs of that server's simulated providers, separated by commas, or "".
	Context func() (cl *api.Client, simulators string, err error)
	Note    func(format string, args ...any) // prints a message

	Version string        // version of notifyctl
	Timeout time.Duration // timeout of one request
	// Notifyd is the program that the server mode "process" starts. Empty: notifyd in the folder of
	// notifyctl, or on the PATH.
	Notifyd       string
	Grant         string   // token of a load grant; empty: load goes only to loopback addresses
	Kafka         []string // brokers for the target "kafka"; empty: the log of the notifyd that Open starts
	NoCheck       bool     // true: do not check delivery with the ledger
	NoCalibration bool     // true: do not measure the speed of this machine before the run
}

// Environment is the target of one run. Only its method Failed is safe for concurrent use.
type Environment struct {
	Config load.Config
	closes []func() error // functions that stop what Open started, in the order of the starts
	ended  chan error     // gets the result of a pipeline's Run when Run returns
	died   func() error   // returns an error if the notifyd process has ended by itself; nil: there is no such process
	// brokers are the brokers of the notifyd that Open started.
	brokers []string
}

// Close stops everything that Open started, in reverse order.
func (e *Environment) Close() {
	for _, f := range slices.Backward(e.closes) {
		_ = f() // after an error only files in a temporary folder remain; the result is complete
	}
	e.closes = nil
}

// Failed returns an error if the notifyd that Open started has ended although the run did not stop
// it. It may be called during the run.
func (e *Environment) Failed() error {
	select {
	case err := <-e.ended:
		e.ended <- err // put the error back, because Close waits for it
		return fmt.Errorf("notifyd ended during the run: %w", cmpErr(err))
	default:
	}
	if e.died != nil {
		if err := e.died(); err != nil {
			return fmt.Errorf("during the run %w", err)
		}
	}
	return nil
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it reported no error")
	}
	return err
}

// calibration is how long a run makes bodies for each name of a step before it starts, to measure
// the speed of this machine.
const calibration = 200 * time.Millisecond

// Open connects to the target of the scenario s, or starts it. The caller closes the
// Environment.
func Open(ctx context.Context, s *load.Scenario, o *Options) (_ *Environment, err error) {
	e := &Environment{ended: make(chan error, 1), Config: load.Config{Version: o.Version, Timeout: o.Timeout, Calibrate: calibration}}
	if o.NoCalibration {
		e.Config.Calibrate = 0
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if s.OnlyNull() {
		return e, nil
	}
	switch s.Server.Mode {
	case "pipeline":
		err = e.startPipeline(ctx, s, o)
	case "process":
		err = e.startProcesses(ctx, s, o)
	default:
		err = e.connect(ctx, s, o)
	}
	if err == nil && s.Uses(load.Kafka) {
		err = e.kafka(ctx, o.Kafka)
	}
	if o.NoCheck {
		e.Config.Ledger = nil
	}
	return e, err
}

// connect connects to a server that already runs. The server must be on this machine, or there must
// be a load grant for it. So a wrong context cannot cause an outage of another server.
func (e *Environment) connect(ctx context.Context, s *load.Scenario, o *Options) error {
	cl, simulators, err := o.Context()
	if err != nil {
		return err
	}
	g, err := o.checkHosts(s, cl.BaseURL, simulators)
	if err != nil {
		return err
	}
	e.client(cl, s)
	if g != nil {
		host, err := api.LoadHost(cl.BaseURL)
		if err != nil {
			return err
		}
		cl.Load = o.Grant
		e.Config.ConsentUntil = g.ExpiresAt
		e.Config.Consent = func(ctx context.Context) error {
			said, err := cl.OwnGrant(ctx)
			if err == nil {
				err = checkConfirmed(&said, g, host)
			}
			return err
		}
		if err := e.Config.Consent(ctx); err != nil {
			return err
		}
		o.Note("load grant %s of cluster %s: %s messages a second until %s", g.ID, g.Cluster, term.Count(int64(g.Rate)), g.ExpiresAt.Local().Format(time.RFC3339))
	}
	e.Config.ServerName = cl.BaseURL
	if err := checkAnswers(ctx, cl); err != nil || simulators == "" {
		return err
	}
	return e.addSimulators(simulators)
}

// checkConfirmed returns nil if a server's answer about a grant says that the grant is active and
// covers the given host. Otherwise it returns an error: a server that answers every request with
// 200 may not be a notifyd, and has not consented to the load.
func checkConfirmed(said, g *api.LoadGrant, host string) error {
	if said.ID != g.ID || said.State != api.GrantActive || !said.Covers(host) {
		return &notify.Error{Kind: notify.KindForbidden, Code: "load_grant_unknown", Msg: fmt.Sprintf("%s answered, but did not confirm load grant %s", host, g.ID)}
	}
	return nil
}

// checkHosts decides whether load may go to the server and its simulators. With a grant it returns
// this grant, if the grant allows the load. Without a grant it returns nil, if every host is a
// loopback address. Otherwise it returns an error. It opens no connection and does not check the
// signature of the grant: only the cluster that signed the grant can do this, and the function
// load.Config.Consent asks that cluster.
func (o *Options) checkHosts(s *load.Scenario, server, simulators string) (*api.LoadGrant, error) {
	urls := []string{server}
	if simulators != "" {
		list, err := load.ParseSimulators(simulators, nil)
		if err != nil {
			return nil, err
		}
		for _, one := range list {
			urls = append(urls, one.URL)
		}
	}
	hosts := []string{}
	for _, raw := range urls {
		host, err := api.LoadHost(raw)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, host)
	}
	if o.Grant == "" {
		for _, host := range hosts {
			if !notify.LoopbackHost(host) {
				return nil, term.Usage("load goes to %s only with a grant of that server: create the grant there with notifyctl load grant, and use it here with --grant", host)
			}
		}
		return nil, nil
	}
	g, err := api.ReadLoadToken(o.Grant, nil)
	if err != nil {
		return nil, err
	}
	for i, host := range hosts {
		if !g.Covers(host) && (i == 0 || !notify.LoopbackHost(host)) {
			return nil, term.Usage("the load grant allows load to %s, but not to %s", strings.Join(g.Hosts, ", "), host)
		}
	}
	if time.Now().After(g.ExpiresAt) {
		return nil, term.Usage("the load grant expired at %s", g.ExpiresAt.Local().Format(time.RFC3339))
	}
	return &g, load.CheckGrant(*s, &g)
}

// checkAnswers asks the server for a notification that does not exist. It returns an error if the
// server does not answer, refuses the token or refuses load. The caller then does not start the
// run.
func checkAnswers(ctx context.Context, cl *api.Client) error {
	_, err := cl.Notification(ctx, notify.ID{Base: notify.NewBase(time.Now())}.String())
	if e, ok := errors.AsType[*notify.Error](err); ok && (e.Code == "no_answer" || e.Kind == notify.KindUnauthorized || strings.HasPrefix(e.Code, "load_")) {
		return err
	}
	return nil
}

func (e *Environment) client(cl *api.Client, s *load.Scenario) {
	cl.Retries = 0 // the client must not retry, because a retry would hide a failure that the run must count
	tr := api.NewTransport(s.Workers() + 8)
	tr.Proxy = nil // the owner of a proxy has not consented to the load
	cl.HTTPClient = &http.Client{Transport: tr}
	// Every request has the header of a load run, even a request to a notifyd that this run
	// started. A setting may have made that notifyd join a cluster; because of the header, it then
	// refuses the load.
	cl.Load = api.LoadLocal
	e.closes = append(e.closes, func() error { tr.CloseIdleConnections(); return nil })
	e.Config.Target = &load.HTTP{Client: cl}
	e.Config.State = stateOf(cl)
	e.Config.Server = serverOf(cl)
	e.Config.Actions = map[string]func(context.Context) error{"replay": replayOf(cl)}
}

// addSimulators makes one ledger for all simulators. The parameter control is the list of their
// control URLs, separated by commas.
func (e *Environment) addSimulators(control string) error {
	tr := api.NewTransport(4)
	tr.Proxy = nil // without a proxy and without redirects, the client calls only hosts that were checked
	client := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	e.closes = append(e.closes, func() error { client.CloseIdleConnections(); return nil })
	list, err := load.ParseSimulators(control, client)
	if err != nil {
		return err
	}
	sims := load.NewShards(list...)
	e.Config.Ledger, e.Config.Faults = sims, sims
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if url, err := sims.Callback(ctx); err == nil { // simulators of older releases have no callback
		e.Config.Callback = url + "/load"
	}
	return nil
}

// stateOf returns a function that asks the server for the state of a notification or trigger.
func stateOf(cl *api.Client) load.StateOf {
	return func(ctx context.Context, id string) (notify.State, error) {
		if strings.HasPrefix(id, "trg_") {
			st, err := cl.TriggerStatus(ctx, id)
			if notify.KindOf(err) == notify.KindNotFound {
				return notify.None, nil
			}
			switch st.Status {
			case "FIRED":
				return notify.Delivered, err
			case "PENDING", "IN_FLIGHT":
				return notify.Scheduled, err
			}
			return notify.Failed, err
		}
		st, err := cl.Notification(ctx, id)
		if notify.KindOf(err) == notify.KindNotFound {
			return notify.None, nil
		}
		state, _ := notify.ParseState(st.Status)
		return state, err
	}
}

// serverOf returns a function that reads figures from the server: lag, circuits, dead letters. That
// function returns an error if the token lacks the scope "observe".
func serverOf(cl *api.Client) func(context.Context, bool) (load.Server, error) {
	var dead int64
	// nextCount is the earliest time at which the dead letters are counted again. Because a count
	// reads all dead letters, there is a pause of a hundred times its duration after each count.
	var nextCount time.Time
	return func(ctx context.Context, last bool) (s load.Server, err error) {
		r, err := cl.Rates(ctx)
		for _, l := range r.Late {
			if l.N > float64(s.TimerLateness.Count) {
				s.TimerLateness = load.Quantiles{Count: int64(l.N), P50: int64(l.P50 * 1e9), P99: int64(l.P99 * 1e9)}
			}
		}
		if err != nil {
			return s, err
		}
		a, err := cl.Accounts(ctx)
		if err != nil {
			return s, err
		}
		s.Circuits = map[string]int64{}
		for _, one := range a.Items {
			n := int64(0)
			if one.State == "open" {
				n = 1
			}
			s.Circuits[one.Provider] = max(s.Circuits[one.Provider], n)
		}
		lanes, err := cl.Lanes(ctx)
		if err != nil {
			return s, err
		}
		s.Lag = map[string]int64{}
		for i := range lanes.Items {
			s.Lag[lanes.Items[i].Name] = lanes.Items[i].Lag
		}
		if began := time.Now(); last || began.After(nextCount) {
			top, err := cl.TopDeadLetters(ctx, api.LetterFilter{State: "dead", All: true}, 1)
			// Set nextCount also after an error, so that a count that timed out is not repeated at
			// once.
			if nextCount = time.Now().Add(100 * time.Since(began)); err == nil {
				dead = int64(top.Total)
			}
		}
		s.DLQ = dead
		return s, nil
	}
}

// replayOf returns the action that replays all dead letters and waits until the replay job ends.
func replayOf(cl *api.Client) func(context.Context) error {
	return func(ctx context.Context) error {
		op := *cl // copy the client only when the action runs: connect sets cl.Load after it has called replayOf
		op.Context, op.Reason = "load", "a scenario replays its dead letters"
		plan, err := op.Plan(ctx, api.JobSpec{Kind: "replay", Filter: api.LetterFilter{State: "dead", All: true}, Canary: -1, Rate: 1000})
		if err != nil || plan.Entries == 0 {
			return err
		}
		job, err := op.StartJob(ctx, api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Entries: plan.Entries, Name: notify.NewBase(time.Now()).String()})
		for err == nil && !slices.Contains([]string{"done", "failed", "stopped", "cancelled"}, job.State) {
			if !notify.Sleep(ctx, 100*time.Millisecond) {
				return nil // the phase is over; the job continues on the server
			}
			job, err = op.Job(ctx, job.ID)
		}
		if err == nil && job.State != "done" {
			err = fmt.Errorf("the replay job %s ended in the state %q: %s", job.ID, job.State, job.Why)
		}
		return err
	}
}

func (e *Environment) kafka(ctx context.Context, brokers []string) error {
	if len(brokers) == 0 {
		brokers = e.brokers
	}
	if len(brokers) == 0 {
		return term.Usage("the target kafka needs a broker: use --kafka HOST:PORT, or --kafka unix:FILE, where FILE is kafka.sock in the data folder of notifyd. Do not use the address in log.listen: it is for reading only")
	}
	for _, b := range brokers {
		host, _, _ := strings.Cut(b, ":")
		if !strings.HasPrefix(b, load.Socket) && !notify.LoopbackHost(host) {
			return term.Usage("the broker %s is not on a loopback address: load goes to brokers on loopback addresses only", b)
		}
	}
	t, err := load.NewKafkaTarget(ctx, brokers)
	if err != nil {
		return err
	}
	e.closes = append(e.closes, func() error { t.Close(); return nil })
	e.Config.Targets = map[string]load.Target{load.Kafka: t}
	return nil
}

// startPipeline starts notifyd in this process.
func (e *Environment) startPipeline(ctx context.Context, s *load.Scenario, o *Options) error {
	dir, err := os.MkdirTemp("", "notifyctl-load-")
	if err != nil {
		return err
	}
	e.closes = append(e.closes, func() error { return os.RemoveAll(dir) })
	cfg := app.PipelineConfig{
		Dir: dir, Stub: s.Server.Providers == "stub", Latency: s.Server.ProviderLatency(), Profiles: int(s.Server.Profiles), Set: s.Server.Set,
	}
	var seen *load.Observer
	if cfg.Stub {
		seen = load.NewObserver()
		cfg.Taken = seen.Observe
	}
	o.Note("starting notifyd in this process")
	app.MakeRoomForFiles()
	pl, err := app.NewPipeline(ctx, cfg)
	if err != nil {
		return err
	}
	// Do not use ctx: the pipeline must still drain after ctx has ended.
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() { e.ended <- pl.Run(run) }()
	e.closes = append(e.closes, func() error { stop(); return <-e.ended })
	ready, done := context.WithTimeout(ctx, 5*time.Minute)
	defer done()
	if err := pl.Ready(ready); err != nil {
		return err
	}
	e.client(&api.Client{BaseURL: pl.URL, Token: func(context.Context) (string, error) { return pl.Token, nil }}, s)
	e.Config.ServerName, e.Config.Embedded = "embedded", true
	e.brokers = []string{load.Socket + pl.Node.KafkaSocket()}
	if cfg.Stub {
		e.Config.Ledger = seen
		return nil
	}
	return e.addSimulators(pl.URLs.Control)
}
