package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
)

type loadOptions struct {
	rate     float64
	duration time.Duration
	count    int64
	workers  int
	seed     uint64
	noCheck  bool
}

func newLoad(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "load", Short: "Drive a server with load and measure it",
		Long: `load offers an open-loop load: when a message is due does not depend on the server,
and latency counts from then. It checks every accepted id against the ledger of the
simulated providers, where the context names some.`,
	}
	c.AddCommand(newLoadRun(p))
	return c
}

func newLoadRun(p *program) *cobra.Command {
	var o loadOptions
	c := &cobra.Command{
		Use: "run SCENARIO.yaml", Short: "Run a scenario", Args: cli.Exact("a scenario file"),
		Long: `run sends a scenario's load, waits until it is delivered, and prints a summary: the
rates accepted and delivered, percentiles of lag (the generator's own delay), service
(the server's) and response (from when a message was due), and what the ledger says.
Progress goes to standard error, a line a second. Ctrl-C stops early and prints the
figures so far. It exits 3 when something was lost, came twice or failed,
and 8 when something is still on its way after the scenario's drain: what waits for a
provider is not lost.

Load only ever goes to loopback addresses.`,
		Example: "  notifyctl load run scenarios/smoke.yaml\n  notifyctl load run scenarios/5m-fanout.yaml -o json",
		RunE:    func(c *cobra.Command, args []string) error { return runLoad(c.Context(), p, args[0], &o) },
	}
	f := c.Flags()
	f.Float64Var(&o.rate, "rate", 0, "receivers per second, instead of the scenario's")
	f.DurationVar(&o.duration, "duration", 0, "how long to send, instead of the scenario's")
	f.Int64Var(&o.count, "count", 0, "how many receivers, instead of the scenario's")
	f.IntVar(&o.workers, "workers", 0, "requests at a time, instead of the scenario's")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the data, instead of the scenario's")
	f.BoolVar(&o.noCheck, "no-check", false, "do not wait for delivery and do not ask the ledger")
	return c
}

func runLoad(ctx context.Context, p *program, file string, o *loadOptions) error {
	s, err := load.ReadScenario(file)
	if err != nil {
		return err
	}
	override(&s.Rate, o.rate)
	override(&s.Duration, o.duration)
	override(&s.Count, o.count)
	override(&s.Workers, o.workers)
	override(&s.Seed, o.seed)
	if err := s.Validate(); err != nil {
		return err
	}
	var cfg load.Config
	if s.Target != load.Null {
		t, err := p.target()
		if err != nil {
			return err
		}
		cl := p.clientOf(&t)
		if err := onlyLoopback(cl); err != nil {
			return err
		}
		cl.Retries = 0 // a failure is a figure, not something to hide
		cl.HTTPClient = &http.Client{Transport: api.NewTransport(s.Workers + 8)}
		if cfg.Target, err = load.NewHTTP(s, cl); err != nil {
			return err
		}
		if t.ctx.Simulators != "" && !o.noCheck {
			cfg.Ledger = &load.Ledger{URL: t.ctx.Simulators}
			cfg.State = func(ctx context.Context, id string) (notify.State, error) {
				st, err := cl.Notification(ctx, id)
				if notify.KindOf(err) == notify.KindNotFound {
					return notify.None, nil
				}
				state, _ := notify.ParseState(st.Status)
				return state, err
			}
		}
	}
	cfg.Timeout = p.global.timeout
	if p.global.output == "table" {
		cfg.Progress = func(pr load.Progress) { p.note("%s", pr.Line()) }
	} else {
		cfg.Progress = func(load.Progress) {}
	}
	res, err := load.Run(ctx, s, cfg)
	if err != nil {
		return err
	}
	sum := res.Summary()
	if p.global.output == "table" && p.global.jq == "" {
		sum.WriteText(p.out)
	} else if err := p.printer().Print(sum, nil); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return context.Canceled
	case sum.Check != nil && (sum.Check.Lost > 0 || sum.Check.Duplicates > 0):
		return cli.Exitf(cli.ExitPartial, "lost %d, duplicates %d", sum.Check.Lost, sum.Check.Duplicates)
	case sum.Check != nil && sum.Check.Ended > 0:
		return cli.Exitf(cli.ExitPartial, "%s ended without being delivered", count(sum.Check.Ended))
	case sum.Check != nil && sum.Check.Pending > 0:
		return cli.Exitf(cli.ExitPending, "%s are still on their way after %s; they go on", count(sum.Check.Pending), span(s.Drain))
	case sum.Accepted == 0 && s.Target != load.Null:
		b, _ := json.Marshal(sum.Errors)
		return cli.Exitf(cli.ExitError, "nothing was accepted: %s", b)
	}
	return nil
}

func override[T comparable](to *T, v T) {
	var zero T
	if v != zero {
		*to = v
	}
}

// onlyLoopback refuses to load anything but this machine: a mistyped context
// must not become somebody's outage.
func onlyLoopback(cl *api.Client) error {
	u, err := url.Parse(cl.BaseURL)
	if err != nil || !loopback(u.Hostname()) {
		return cli.Usage("load goes to loopback addresses only, not to %s", cl.BaseURL)
	}
	return nil
}
