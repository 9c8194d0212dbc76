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
	rate          string
	duration      time.Duration
	count         string
	workers       int
	seed          uint64
	noCheck       bool
	short         bool
	scale         float64
	segment       string
	startAt       string
	watch         watchOptions
	control       controllerOptions
	mode          string
	notifyd       string
	kafka         []string
	noCalibration bool
	profile       string // --cpu-profile: a file
	labels        map[string]string
	flagGiven     func(flag string) bool // reports whether the flag is on the command line
	grant         string                 // --grant: a file with the token
	requireValid  bool                   // --require-valid
	repeatedTrial bool                   // true for the trials of a capacity search: the notes about starting the servers are not printed
}

func newLoad(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "load", Short: "Drive a server with load and measure it",
		Long: `load sends an open-loop load: the times at which messages are due do not depend on the
server, and latency counts from those times. With simulated providers, it checks every
accepted id against their ledger. It says whether the figures show the limits of the
server or of the load generator.`,
	}
	c.AddCommand(newLoadRun(p), newLoadValidate(p), newLoadSchema(p), newLoadCapacity(p), newLoadAgent(p), newLoadRecord(p))
	c.AddCommand(loadRuns(p)...)
	c.AddCommand(loadGrants(p)...)
	return c
}

func (o *loadOptions) add(c *cobra.Command) {
	f := c.Flags()
	o.flagGiven = f.Changed
	f.StringVar(&o.rate, "rate", "", "messages per second of every step, instead of the scenario's, e.g. 50k")
	f.DurationVar(&o.duration, "duration", 0, "length of every phase except warm-ups, instead of the scenario's")
	f.StringVar(&o.count, "count", "", "number of messages of every step, instead of the scenario's")
	f.IntVar(&o.workers, "workers", 0, "concurrent requests of every step, instead of the scenario's")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the data, instead of the scenario's")
	f.BoolVar(&o.noCheck, "no-check", false, "do not wait for delivery and do not check the ledger")
	f.BoolVar(&o.short, "short", false, "run the scenario's short form, which shows that it works but measures nothing")
	f.Float64Var(&o.scale, "scale", 1, "multiply all rates and counts by this factor")
	f.StringVar(&o.mode, "mode", "", "context, pipeline or process, instead of the scenario's server.mode")
	f.StringVar(&o.notifyd, "notifyd", "", "program to start in mode process (default: notifyd beside notifyctl, or on the PATH)")
	f.StringSliceVar(&o.kafka, "kafka", nil, "brokers of target kafka: HOST:PORT on loopback, or unix:FILE (kafka.sock in the data folder of notifyd)")
	f.StringVar(&o.grant, "grant", "", "file with the token of a load grant (env NOTIFYCTL_LOAD_GRANT has the token itself)")
	f.BoolVar(&o.noCalibration, "no-calibration", false, "do not measure the load generator first")
	completeFlag(c, "mode", []string{"context", "pipeline", "process"})
}

func newLoadRun(p *program) *cobra.Command {
	var o loadOptions
	c := &cobra.Command{
		Use: "run SCENARIO.yaml", Short: "Run a scenario", Args: term.Exact("a scenario file"),
		Long: `run sends a scenario's load, waits until it is delivered, and prints a summary: the
accepted and delivered rates, percentiles of lag (the generator's own delay), service
(the server's time) and response (from the time a message was due), and the result of
the ledger check.

In a terminal, run shows a live screen; ? lists its keys. Otherwise, and with --no-ui,
it writes a line per second to standard error, or with -o jsonl as JSON to standard
output. Ctrl-C stops early and prints the figures so far; a second Ctrl-C ends at once.
The run is kept for load ls, show, compare, merge and view.

It exits 99 if a threshold of the scenario was missed or has no figure, 3 if messages
were lost, duplicated, early or unexpected, and 8 if messages still have no outcome
after the scenario's drain: a message that waits for a provider is not lost.

With server.mode pipeline, notifyd runs inside this process; with mode process, in a
process of its own, which faults can kill. Neither mode needs a running server.

With --agents, other processes (notifyctl load agent, on other machines) send one
segment of the load each. This process starts them together and judges the results of
all of them.

Load is only sent to loopback addresses, and to a server that consented: see load grant.`,
		Example: "  notifyctl load run scenarios/smoke.yaml\n  notifyctl load run scenarios/5m-fanout.yaml -o json\n  notifyctl load run scenarios/steady.yaml --segment 1/4 --start-at 2030-01-01T00:00:00Z --out part1.json",
		RunE:    func(c *cobra.Command, args []string) error { return runLoad(c.Context(), p, args[0], &o) },
	}
	o.add(c)
	o.control.add(c)
	f := c.Flags()
	f.StringVar(&o.segment, "segment", "", "i/n: send only segment i of n; notifyctl load merge adds the results")
	f.StringVar(&o.startAt, "start-at", "", "start at this time (RFC 3339), so that all segments start together")
	f.StringVar(&o.watch.out, "out", "", "also write the result, with its histograms, to this file as JSON")
	f.BoolVar(&o.requireValid, "require-valid", false, "exit 9 if the figures do not show the server: verdict GENERATOR_BOUND or INCONCLUSIVE (SINK_BOUND and CONCURRENCY_BOUND do)")
	f.BoolVar(&o.watch.noUI, "no-ui", false, "write a line per second instead of the live screen")
	f.BoolVar(&o.watch.noKeep, "no-keep", false, "do not keep the run for load ls")
	f.StringVar(&o.watch.metrics, "metrics", "", "serve the figures to Prometheus at this loopback address during the run")
	f.StringVar(&o.profile, "cpu-profile", "", "write a CPU profile of this process to this file, for go tool pprof")
	f.StringToStringVar(&o.labels, "label", nil, "key=value, stored in the result")
	return c
}

func newLoadValidate(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "validate SCENARIO.yaml...", Short: "Check scenario files and print what they do",
		Args:    term.AtLeast(1, "scenario files"),
		Example: "  notifyctl load validate scenarios/*.yaml",
		RunE: func(_ *cobra.Command, args []string) error {
			for _, file := range args {
				s, err := readScenario(file)
				if err != nil {
					return err
				}
				if _, err := load.New(s, load.CompileOnlyConfig()); err != nil {
					return err
				}
				length := "until its counts are sent"
				if d := s.Length(); d > 0 {
					length = term.FormatDuration(d)
				}
				fmt.Fprintf(p.out, "%s  %s, %s, %s\n", term.Clean(s.Name), length, plural(len(s.Phases), "phase"), plural(len(s.Thresholds), "threshold"))
			}
			return nil
		},
	}
}

// plural returns "1 phase" or "2 phases".
func plural(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return count(n) + " " + of + "s"
}

func newLoadSchema(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of scenario files", Args: cobra.NoArgs,
		Long: `schema prints the JSON Schema of scenario files, with which editors complete and check
scenarios. Save it, and begin a scenario with
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

// readScenario reads a scenario file. A file that cannot be read is a usage error.
func readScenario(file string) (load.Scenario, error) {
	s, err := load.ReadScenario(file)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return s, term.Usage("%s", err)
	}
	return s, err
}

// scenario reads a scenario file and applies the flags.
func (o *loadOptions) scenario(file string) (s load.Scenario, scale string, err error) {
	if s, err = readScenario(file); err != nil {
		return s, "", err
	}
	if o.short {
		s, scale = s.Shortened(), "short"
	}
	if o.scale != 1 {
		if !(o.scale > 0 && o.scale <= 1000) {
			return s, "", term.Usage("--scale %g must be above 0 and at most 1000", o.scale)
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
	// load.Overrides treats 0 as "not set". So a flag with the value 0 must be an error.
	for _, f := range []struct {
		name, text string
		ok         bool
	}{
		{"rate", o.rate, change.Rate > 0}, {"count", o.count, change.Count > 0},
		{"duration", o.duration.String(), o.duration > 0}, {"workers", strconv.Itoa(o.workers), o.workers > 0},
	} {
		if !f.ok && o.flagGiven(f.name) {
			return s, "", term.Usage("--%s %s must be above 0", f.name, f.text)
		}
	}
	change.Duration, change.Workers = o.duration, o.workers
	s = s.With(change)
	if o.flagGiven("seed") {
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
	seg, at, err := o.parseSegment()
	if err != nil {
		return err
	}
	if o.watch.out != "" { // check the folder now, because after the run it would be too late
		dir := filepath.Dir(o.watch.out)
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return term.Usage("--out %s: the folder %s does not exist", o.watch.out, dir)
		}
	}
	if len(o.control.agents) > 0 {
		if o.segment != "" {
			return term.Usage("--agents and --segment cannot be used together, because each agent sends a segment")
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
	if showsPanels(p, &o.watch) {
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
	return loadExitError(ctx, res, o.requireValid)
}

// profileTo writes a CPU profile to a file until the returned function is called. If no file is
// given, it writes no profile.
func profileTo(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, term.Usage("--cpu-profile: %s", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// parseSegment parses --segment and --start-at.
func (o *loadOptions) parseSegment() (seg load.Segment, at time.Time, err error) {
	seg = load.Segment{I: 1, N: 1}
	if o.segment != "" {
		if n, err := fmt.Sscanf(o.segment, "%d/%d", &seg.I, &seg.N); err != nil || n != 2 || seg.I < 1 || seg.I > seg.N {
			return seg, at, term.Usage("--segment %q must be i/n, such as 1/4", o.segment)
		}
	}
	if o.startAt != "" {
		if at, err = time.Parse(time.RFC3339, o.startAt); err != nil {
			return seg, at, term.Usage("--start-at %q must be a time such as 2030-01-01T00:00:00Z", o.startAt)
		}
		if time.Until(at) < -time.Second || time.Until(at) > 24*time.Hour {
			return seg, at, term.Usage("--start-at %s must be within the next 24 hours", o.startAt)
		}
	}
	return seg, at, nil
}

// loadExitError returns an error with the exit code of the result. Some verdicts, such as
// GENERATOR_BOUND, mean that the figures of the run do not measure the server. If requireValid is
// true, such a verdict is an error too.
func loadExitError(ctx context.Context, res *load.Result, requireValid bool) error {
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
		return term.Exitf(term.ExitInterrupt, "the run was stopped before its end")
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
		return term.Exitf(term.ExitSLO, "%sthresholds missed: %s", why, strings.Join(missed, "; "))
	case term.ExitPartial:
		see := ""
		if len(l.Examples) > 0 && l.Lost+l.Ended > 0 {
			see = "; see notifyctl why " + term.Clean(l.Examples[0])
		}
		return term.Exitf(term.ExitPartial, "the ledger check failed: %d messages lost, %d duplicates, %d early, %d unexpected%s", l.Lost, l.Duplicates, l.Early, l.Unexpected, see)
	case term.ExitPending:
		return term.Exitf(term.ExitPending, "%s messages had no outcome when the drain ended; they are still being delivered", term.Count(l.Pending+l.Unverified))
	}
	if res.Stopped != "" {
		return term.Exitf(term.ExitError, "%s", term.Clean(res.Stopped))
	}
	return term.Exitf(term.ExitError, "nothing was accepted%s", firstError(res))
}

// firstError returns the most frequent error as text.
func firstError(res *load.Result) string {
	if len(res.Errors) == 0 {
		return ""
	}
	e := res.Errors[0]
	return fmt.Sprintf(": %s times %s", term.Count(e.Count), strings.TrimSpace(e.Class+" "+e.Code))
}

// launchServer starts or opens the servers that the scenario needs.
func launchServer(ctx context.Context, p *program, s *load.Scenario, o *loadOptions) (*launch.Environment, error) {
	note := p.note
	if o.repeatedTrial {
		note = func(string, ...any) {}
	}
	grant, err := o.grantToken(p)
	if err != nil {
		return nil, err
	}
	return launch.Open(ctx, s, &launch.Options{
		Note: note, Grant: grant, Version: version, Timeout: p.global.timeout, Notifyd: o.notifyd, Kafka: o.kafka, NoCheck: o.noCheck, NoCalibration: o.noCalibration,
		Context: func() (*api.Client, string, error) {
			t, cl, err := p.operatorClient("")
			if err != nil {
				return nil, "", err
			}
			return cl, t.ctx.Simulators, nil
		},
	})
}
