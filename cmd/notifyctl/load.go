package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/load/agent"
	"github.com/notifyd/notifyd/pkg/load/launch"
	"github.com/notifyd/notifyd/pkg/term"
)

type loadOptions struct {
	rate     string
	duration time.Duration
	count    string
	workers  int
	seed     uint64
	noCheck  bool
	short    bool
	scale    float64
	segment  string
	startAt  string
	watch    watchOptions
	control  controllerOptions
	mode     string
	notifyd  string
	kafka    []string
	noCal    bool
	profile  string // file of the CPU profile
	labels   map[string]string
	given    func(flag string) bool // on the command line
	grant    string                 // file of the token
	valid    bool                   // --require-valid
	again    bool                   // one of many runs: what each starts is not said
}

func newLoad(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "load", Short: "Drive a server with load and measure it",
		Long: `load offers an open-loop load: when a message is due does not depend on the server,
and latency counts from then. It checks every accepted id against the ledger of the
simulated providers, where there are some, and says whether the figures are the
server's or the generator's.`,
	}
	c.AddCommand(newLoadRun(p), newLoadValidate(p), newLoadSchema(p), newLoadCapacity(p), newLoadAgent(p))
	c.AddCommand(loadRuns(p)...)
	c.AddCommand(loadGrants(p)...)
	return c
}

func (o *loadOptions) add(c *cobra.Command) {
	f := c.Flags()
	o.given = f.Changed
	f.StringVar(&o.rate, "rate", "", "messages per second of every step, instead of the scenario's, e.g. 50k")
	f.DurationVar(&o.duration, "duration", 0, "length of every phase but warm-ups, instead of the scenario's")
	f.StringVar(&o.count, "count", "", "how many messages of every step, instead of the scenario's")
	f.IntVar(&o.workers, "workers", 0, "requests at a time of every step, instead of the scenario's")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the data, instead of the scenario's")
	f.BoolVar(&o.noCheck, "no-check", false, "do not wait for delivery and do not ask the ledger")
	f.BoolVar(&o.short, "short", false, "the scenario's short form: to see that it works, not to measure")
	f.Float64Var(&o.scale, "scale", 1, "factor of all rates and counts")
	f.StringVar(&o.mode, "mode", "", "context, pipeline or process, instead of the scenario's server.mode")
	f.StringVar(&o.notifyd, "notifyd", "", "program of mode process (default: notifyd beside notifyctl, or on the PATH)")
	f.StringSliceVar(&o.kafka, "kafka", nil, "brokers of target kafka: HOST:PORT, loopback only, or unix:FILE, kafka.sock in the data folder of notifyd")
	f.StringVar(&o.grant, "grant", "", "file with the token of a load grant (env NOTIFYCTL_LOAD_GRANT has the token itself)")
	f.BoolVar(&o.noCal, "no-calibration", false, "do not measure the generator first")
	complete(c, "mode", []string{"context", "pipeline", "process"})
}

func newLoadRun(p *program) *cobra.Command {
	var o loadOptions
	c := &cobra.Command{
		Use: "run SCENARIO.yaml", Short: "Run a scenario", Args: term.Exact("a scenario file"),
		Long: `run sends a scenario's load, waits until it is delivered, and prints a summary: the
rates accepted and delivered, percentiles of lag (the generator's own delay), service
(the server's) and response (from when a message was due), and what the ledger says.
In a terminal it shows the run on a live screen, of which ? lists the keys; elsewhere,
and with --no-ui, it writes a line a second to standard error, with -o jsonl as JSON
to standard output. Ctrl-C stops early and prints the figures so far; a second one
ends at once. The run is kept: load ls, show, compare, merge and view find it.

It exits 99 when a threshold of the scenario was missed or has no figure, 3 when something was lost,
came twice, too early or unexpected, and 8 when something is still on its way after
the scenario's drain: what waits for a provider is not lost.

With server.mode pipeline notifyd runs inside this process, with mode process in one
of its own, which faults may kill; neither needs a server that runs.

With --agents other processes, notifyctl load agent on other machines, send a segment
of the load each. This one starts them together and judges what all of them measured.

Load goes to loopback addresses, and to a server that consented: see load grant.`,
		Example: "  notifyctl load run scenarios/smoke.yaml\n  notifyctl load run scenarios/5m-fanout.yaml -o json\n  notifyctl load run scenarios/steady.yaml --segment 1/4 --start-at 2030-01-01T00:00:00Z --out part1.json",
		RunE:    func(c *cobra.Command, args []string) error { return runLoad(c.Context(), p, args[0], &o) },
	}
	o.add(c)
	o.control.add(c)
	f := c.Flags()
	f.StringVar(&o.segment, "segment", "", "i/n: send only part i of n; notifyctl load merge puts the results together")
	f.StringVar(&o.startAt, "start-at", "", "begin at this time (RFC 3339), so that all segments begin together")
	f.StringVar(&o.watch.out, "out", "", "write the result, with its histograms, to this file as JSON, too")
	f.BoolVar(&o.valid, "require-valid", false, "exit 9 when the figures are not the server's: GENERATOR_BOUND, INCONCLUSIVE; those of SINK_BOUND and CONCURRENCY_BOUND are")
	f.BoolVar(&o.watch.noUI, "no-ui", false, "a line a second instead of panels, also in a terminal")
	f.BoolVar(&o.watch.noKeep, "no-keep", false, "do not keep the run for load ls")
	f.StringVar(&o.watch.metrics, "metrics", "", "serve the figures to Prometheus at this loopback address during the run")
	f.StringVar(&o.profile, "cpu-profile", "", "write what this process spent its processors on to this file, for go tool pprof")
	f.StringToStringVar(&o.labels, "label", nil, "key=value that the result carries")
	return c
}

func newLoadValidate(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "validate SCENARIO.yaml...", Short: "Check scenario files and say what they do",
		Args:    term.AtLeast(1, "scenario files"),
		Example: "  notifyctl load validate scenarios/*.yaml",
		RunE: func(_ *cobra.Command, args []string) error {
			for _, file := range args {
				s, err := readScenario(file)
				if err != nil {
					return err
				}
				if _, err := load.New(s, load.DryConfig()); err != nil {
					return err
				}
				length := "until its counts are sent"
				if d := s.Length(); d > 0 {
					length = term.Span(d)
				}
				fmt.Fprintf(p.out, "%s  %s, %s, %s\n", term.Clean(s.Name), length, number(len(s.Phases), "phase"), number(len(s.Thresholds), "threshold"))
			}
			return nil
		},
	}
}

// number writes 1 phase, 2 phases.
func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return count(n) + " " + of + "s"
}

func newLoadSchema(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of scenario files", Args: cobra.NoArgs,
		Long: `schema prints the JSON Schema of scenario files. Editors that know it complete and
check them: save it, and begin a scenario with
  # yaml-language-server: $schema=scenario.schema.json`,
		Example: "  notifyctl load schema > scenario.schema.json",
		RunE: func(*cobra.Command, []string) error {
			b, err := load.Schema()
			if err != nil {
				return err
			}
			_, err = p.out.Write(append(b, '\n'))
			return err
		},
	}
}

// readScenario reads a file; one that cannot be read is a wrong argument.
func readScenario(file string) (load.Scenario, error) {
	s, err := load.ReadScenario(file)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return s, term.Usage("%s", err)
	}
	return s, err
}

// scenario reads a file and applies the flags.
func (o *loadOptions) scenario(file string) (s load.Scenario, scale string, err error) {
	if s, err = readScenario(file); err != nil {
		return s, "", err
	}
	if o.short {
		s, scale = s.Shortened(), "short"
	}
	if o.scale != 1 {
		if !(o.scale > 0 && o.scale <= 1000) {
			return s, "", term.Usage("--scale %g: it is above 0, up to 1000", o.scale)
		}
		s, scale = s.Scaled(o.scale), strings.TrimSpace(scale+" x"+strconv.FormatFloat(o.scale, 'g', -1, 64))
	}
	var change load.Overrides
	if o.rate != "" {
		if change.Rate, err = load.ParseNumber(o.rate); err != nil {
			return s, "", term.Usage("--rate %s", err)
		}
	}
	if o.count != "" {
		if change.Count, err = load.ParseNumber(o.count); err != nil {
			return s, "", term.Usage("--count %s", err)
		}
	}
	// To load.Overrides 0 is none: what was given must not count for nothing.
	for _, f := range []struct {
		name, text string
		ok         bool
	}{
		{"rate", o.rate, change.Rate > 0}, {"count", o.count, change.Count > 0},
		{"duration", o.duration.String(), o.duration > 0}, {"workers", strconv.Itoa(o.workers), o.workers > 0},
	} {
		if !f.ok && o.given(f.name) {
			return s, "", term.Usage("--%s %s: it is above 0", f.name, f.text)
		}
	}
	change.Duration, change.Workers = o.duration, o.workers
	s = s.With(change)
	if o.given("seed") {
		s.Seed = o.seed
	}
	if o.mode != "" {
		s.Server.Mode = o.mode
	}
	err = s.Validate()
	return s, scale, err
}

func runLoad(ctx context.Context, p *program, file string, o *loadOptions) error {
	s, scale, err := o.scenario(file)
	if err != nil {
		return err
	}
	seg, at, err := o.part()
	if err != nil {
		return err
	}
	if o.watch.out != "" { // known now, and not after the run
		dir := filepath.Dir(o.watch.out)
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return term.Usage("--out %s: there is no folder %s", o.watch.out, dir)
		}
	}
	if len(o.control.agents) > 0 {
		if o.segment != "" {
			return term.Usage("--agents and --segment: agents have the segments")
		}
		if err := agent.Suits(&s); err != nil {
			return err
		}
	}
	env, err := launchServer(ctx, p, &s, o)
	if err != nil {
		return err
	}
	defer env.Close()
	cfg := env.Config
	cfg.Segment, cfg.StartAt, cfg.Scale, cfg.Labels = seg, at, scale, o.labels
	if panels(p, &o.watch) {
		cfg.Every, cfg.Steerable = screenEvery, true
	}
	fleet, err := dialAgents(ctx, p, &s, o, &cfg)
	if err != nil {
		return err
	}
	if fleet != nil {
		defer fleet.Close()
		cfg.Remote = fleet
	}
	r, err := load.New(s, cfg)
	if err != nil {
		return err
	}
	stop, err := profileTo(o.profile)
	if err != nil {
		return err
	}
	res, err := watchLoad(ctx, p, r, &o.watch)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if err := env.Failed(); err != nil {
		return err
	}
	if err := finishLoad(p, res, &o.watch); err != nil {
		return err
	}
	return loadExit(ctx, res, o.valid)
}

// profileTo writes a CPU profile to a file until stop; to none where the name is empty.
func profileTo(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, term.Usage("--cpu-profile %s", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// part reads --segment and --start-at.
func (o *loadOptions) part() (seg load.Segment, at time.Time, err error) {
	seg = load.Segment{I: 1, N: 1}
	if o.segment != "" {
		if n, err := fmt.Sscanf(o.segment, "%d/%d", &seg.I, &seg.N); err != nil || n != 2 || seg.I < 1 || seg.I > seg.N {
			return seg, at, term.Usage("--segment %q: it is i/n, such as 1/4", o.segment)
		}
	}
	if o.startAt != "" {
		if at, err = time.Parse(time.RFC3339, o.startAt); err != nil {
			return seg, at, term.Usage("--start-at %q: it is a time such as 2030-01-01T00:00:00Z", o.startAt)
		}
		if time.Until(at) < -time.Second || time.Until(at) > 24*time.Hour {
			return seg, at, term.Usage("--start-at %s: it is within the next 24 hours", o.startAt)
		}
	}
	return seg, at, nil
}

// loadExit turns the result's exit code into the error that carries it. With requireValid,
// a run that says nothing about the server, such as GENERATOR_BOUND, is an error as well.
func loadExit(ctx context.Context, res *load.Result, requireValid bool) error {
	l := &res.Ledger
	switch res.Exit {
	case term.ExitOK:
		if v := &res.Verdict; requireValid && !v.OfServer() {
			return term.Exitf(term.ExitFindings, "%s: %s", v.Code, strings.Join(v.Reasons, "; "))
		}
		return nil
	case term.ExitInterrupt:
		if ctx.Err() != nil {
			return context.Canceled
		}
		return term.Exitf(term.ExitInterrupt, "stopped before its end")
	case term.ExitSLO:
		var missed []string
		for _, t := range res.Thresholds {
			switch {
			case t.OK:
			case t.Known:
				missed = append(missed, t.Expr)
			case len(res.Steered) > 0:
				missed = append(missed, t.Expr+" (no figure: the load was changed by hand)")
			default:
				missed = append(missed, t.Expr+" (no figure)")
			}
		}
		why := ""
		if res.Totals.Acked == 0 && res.Totals.Sent > 0 {
			why = "nothing was accepted" + firstError(res) + "; "
		}
		return term.Exitf(term.ExitSLO, "%smissed: %s", why, strings.Join(missed, "; "))
	case term.ExitPartial:
		see := ""
		if len(l.Examples) > 0 && l.Lost+l.Ended > 0 {
			see = "; see notifyctl why " + term.Clean(l.Examples[0])
		}
		return term.Exitf(term.ExitPartial, "lost %d, duplicates %d, early %d, unexpected %d%s", l.Lost, l.Duplicates, l.Early, l.Unexpected, see)
	case term.ExitPending:
		return term.Exitf(term.ExitPending, "%s are still on their way when the drain's time was over; they go on", term.Count(l.Pending+l.Unverified))
	}
	if res.Stopped != "" {
		return term.Exitf(term.ExitError, "%s", term.Clean(res.Stopped))
	}
	return term.Exitf(term.ExitError, "nothing was accepted%s", firstError(res))
}

// firstError says which error came most.
func firstError(res *load.Result) string {
	if len(res.Errors) == 0 {
		return ""
	}
	e := res.Errors[0]
	return fmt.Sprintf(": %s times %s", term.Count(e.Count), strings.TrimSpace(e.Class+" "+e.Code))
}

// launchServer opens what the scenario runs against.
func launchServer(ctx context.Context, p *program, s *load.Scenario, o *loadOptions) (*launch.Environment, error) {
	note := p.note
	if o.again {
		note = func(string, ...any) {}
	}
	grant, err := o.grantToken(p)
	if err != nil {
		return nil, err
	}
	return launch.Open(ctx, s, &launch.Options{
		Note: note, Grant: grant, Version: version, Timeout: p.global.timeout, Notifyd: o.notifyd, Kafka: o.kafka, NoCheck: o.noCheck, NoCalibration: o.noCal,
		Context: func() (*api.Client, string, error) {
			t, cl, err := p.operator("")
			if err != nil {
				return nil, "", err
			}
			return cl, t.ctx.Simulators, nil
		},
	})
}
