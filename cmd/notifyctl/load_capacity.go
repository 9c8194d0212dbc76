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
		Use: "capacity SCENARIO.yaml", Short: "Search for the highest rate that meets a scenario's objective", Args: term.Exact("a scenario file"),
		Long: `capacity runs a scenario repeatedly. It doubles the rate until the objective is missed,
searches between the last two rates, and confirms the highest rate that held in a longer
trial. The objective is part of the scenario: thresholds of latency, backlog and loss.
The search also ends at a rate that the load generator cannot send, and then says so.
A trial that did not hold and was disturbed by the machine is repeated once.

It exits 99 if not even the lowest rate holds. Load is only sent to loopback addresses,
and to a server that consented: see load grant.`,
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
	if o.flagGiven("count") {
		return term.Usage("--count %s cannot be used with load capacity, because a trial has a rate and a duration (--rate, --duration)", o.count)
	}
	o.repeatedTrial = true
	run := func(trial load.Scenario) (*load.Result, error) {
		// If the run starts a server, start a new server for each trial. Otherwise the backlog of
		// one trial would slow down the next trial.
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
			what = "is repeated: " + t.Why
		case !t.Held:
			what = "does not hold: " + t.Why
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
			between = fmt.Sprintf("   (%s/s does not hold, so the limit is at most %.1f%% higher)", term.Count(int64(found.MissedAt)), 100*share)
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
		return term.Exitf(term.ExitSLO, "no rate was confirmed: a rate that held once did not hold again")
	case found.Rate == 0 && len(found.Trials) > 0:
		return term.Exitf(term.ExitSLO, "the objective is missed even at the lowest rate, %s/s", term.Count(int64(found.Trials[len(found.Trials)-1].Rate)))
	}
	return nil
}

// limitText returns in words why a search ended.
func limitText(l load.Limit) string {
	text := map[load.Limit]string{
		load.LimitObjective: "a higher rate misses the objective", load.LimitGenerator: "this machine cannot generate a higher rate",
		load.LimitMost: "stopped at objective.most; raise it to search for a higher rate", load.LimitNothing: "the lowest rate tried misses the objective",
		load.LimitUnsteady: "a rate that held once did not hold again", load.LimitStopped: "interrupted before the search was over",
	}[l]
	return string(l) + ": " + text
}
