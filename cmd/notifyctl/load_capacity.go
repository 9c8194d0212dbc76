package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/term"
)

func newLoadCapacity(p *program) *cobra.Command {
	var o loadOptions
	c := &cobra.Command{
		Use: "capacity SCENARIO.yaml", Short: "Search the highest rate that holds a scenario's objective", Args: term.Exact("a scenario file"),
		Long: `capacity runs a scenario again and again, at rates that double until the objective
is missed, then between, and confirms the highest that held for longer. The objective
stands in the scenario: thresholds of latency, backlog and loss. A rate that the
generator cannot offer bounds the search too, and is called by its name. A trial that
the machine disturbed, and that held nothing, is repeated once.

It exits 99 when not even the lowest rate holds. Load goes to loopback, and to a server that consented: see load grant.`,
		Example: "  notifyctl load capacity scenarios/steady.yaml",
		RunE:    func(c *cobra.Command, args []string) error { return runCapacity(c.Context(), p, args[0], &o) },
	}
	o.add(c)
	return c
}

func runCapacity(ctx context.Context, p *program, file string, o *loadOptions) error {
	s, scale, err := o.scenario(file)
	if err != nil {
		return err
	}
	if o.given("count") {
		return term.Usage("--count %s: a trial has a rate and a time, --rate and --duration", o.count)
	}
	o.again = true
	run := func(trial load.Scenario) (*load.Result, error) {
		// Each trial has a server of its own where the run makes one: the backlog of
		// one must not weigh on the next.
		env, err := launchServer(ctx, p, &trial, o)
		if err != nil {
			return nil, err
		}
		defer env.Close()
		env.Config.Scale = scale
		r, err := load.New(trial, env.Config)
		if err != nil {
			return nil, err
		}
		res, err := r.Run(ctx)
		if err == nil {
			err = env.Failed()
		}
		return res, err
	}
	found, err := load.FindCapacity(s, run, func(t load.Trial) {
		what := "holds"
		switch {
		case t.Disturbed:
			what = "is tried again: " + t.Why
		case !t.Held:
			what = "does not: " + t.Why
		}
		if t.Confirm {
			what += " (confirmation)"
		}
		p.note("%12s/s  %s", term.Count(int64(t.Rate)), what)
	})
	if err != nil {
		return err
	}
	if p.global.output == "table" && p.global.jq == "" {
		between := ""
		if share, ok := found.Uncertainty(); ok {
			between = fmt.Sprintf("   (%s/s does not hold: the limit is at most %.1f%% higher)", term.Count(int64(found.MissedAt)), 100*share)
		}
		fmt.Fprintf(p.out, "capacity    %s/s%s\nlimit       %s\ntrials      %d in %.0f s\nverdict     %s\n", term.Count(int64(found.Rate)), between, limitText(found.Limit), len(found.Trials), found.Seconds, found.Verdict.Code)
		for _, r := range found.Verdict.Reasons {
			fmt.Fprintf(p.out, "            %s\n", r)
		}
	} else if err := p.printer().Print(found, nil); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return context.Canceled
	case found.Limit == load.LimitUnsteady:
		return term.Exitf(term.ExitSLO, "no rate was confirmed: what held once did not hold again")
	case found.Rate == 0 && len(found.Trials) > 0:
		return term.Exitf(term.ExitSLO, "not even %s/s holds", term.Count(int64(found.Trials[len(found.Trials)-1].Rate)))
	}
	return nil
}

// limitText says why a search ended where it did.
func limitText(l load.Limit) string {
	text := map[load.Limit]string{
		load.LimitObjective: "more misses the objective", load.LimitGenerator: "more cannot be generated here",
		load.LimitMost: "nobody asked for more: objective.most", load.LimitNothing: "the lowest rate tried misses it",
		load.LimitUnsteady: "what held once did not hold again", load.LimitStopped: "before the search was over",
	}[l]
	return string(l) + ": " + text
}
