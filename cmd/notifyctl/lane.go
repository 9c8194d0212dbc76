package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newLane(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "lane", Short: "Look at lanes, pause them and let them go on",
		Long: `A lane is a channel's workers: push, sms, email, and each with -bulk. A paused one
claims and calls nothing; what is in flight ends, and the log keeps the rest, in order.
What has a deadline expires at it. A pause holds across restarts, until resume.`,
	}
	c.AddCommand(&cobra.Command{
		Use: "ls", Short: "List lanes", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			out, err := cl.Lanes(ctx)
			if err != nil {
				return err
			}
			return printPage(p, out, out.Items, func() term.Table { return p.lanes(out.Items) })
		}),
	})
	for _, a := range []struct {
		name, short string
		paused      bool
	}{
		{"pause", "Claim nothing more of a lane until it is resumed", true},
		{"resume", "Let a lane go on", false},
	} {
		var reason string
		one := &cobra.Command{
			Use: a.name + " LANE", Short: a.short, Args: term.Exact("a lane, such as push-bulk"),
			RunE: func(c *cobra.Command, args []string) error {
				return runSetLane(c.Context(), p, args[0], a.name, a.paused, reason)
			},
		}
		one.Flags().StringVar(&reason, "reason", "", "why; it is kept in the audit log")
		c.AddCommand(one)
	}
	return c
}

func runSetLane(ctx context.Context, p *program, name, verb string, paused bool, reason string) error {
	cl, err := p.confirmed(changes, verb+" lane "+name, reason)
	if err != nil {
		return err
	}
	out, err := cl.SetLane(ctx, name, paused, reason)
	if err != nil {
		return err
	}
	return p.printer().Print(out, func() term.Table { return p.lanes([]api.Lane{out}) })
}

func (p *program) lanes(ls []api.Lane) term.Table {
	t := term.Table{{"LANE", "STATE", "SINCE", "BY", "LAG", "IN FLIGHT", "WHY"}}
	for i := range ls {
		l := &ls[i]
		state, why := "open", l.Stands
		if l.Stands != "" {
			state = "stands"
		}
		if l.Paused {
			state, why = "paused", l.Reason
		}
		t = append(t, []string{l.Name, state, p.whenever(l.Since), l.By, count(l.Lag), count(l.InFlight), why})
	}
	return t
}
