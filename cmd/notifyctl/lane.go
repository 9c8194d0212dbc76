package main

import (
	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/spf13/cobra"
)

func newLane(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "lane", Short: "Look at lanes, pause them and let them go on",
		Long: `A lane is a channel's workers: push, sms, email, and each with -bulk. A paused one
claims and calls nothing; what is in flight ends, and the log keeps the rest, in order.
What has a deadline expires at it. A pause holds across restarts, until resume.`,
	}
	cols := columns[api.Lane]{head: "LANE  STATE  SINCE  BY  LAG  IN FLIGHT  WHY", row: func(l *api.Lane) []string {
		state, why := "open", l.Stands
		if l.Stands != "" {
			state = "stands"
		}
		if l.Paused {
			state, why = "paused", l.Reason
		}
		return []string{l.Name, state, p.whenever(l.Since), l.By, count(l.Lag), count(l.InFlight), why}
	}}
	c.AddCommand(newListing(p, &cobra.Command{Short: "List lanes"}, &listing[api.Lane]{columns: cols, get: all((*api.Client).Lanes), whole: true}))
	set := func(verb, short string, paused bool) *cobra.Command {
		one := &cobra.Command{Use: verb + " LANE", Short: short, Args: term.Exact("a lane, such as push-bulk")}
		reason := reasonFlag(one)
		one.RunE = func(c *cobra.Command, args []string) error {
			return change(p, changes, verb+" lane "+args[0], *reason, func(cl *api.Client) (api.Lane, error) {
				return cl.SetLane(c.Context(), args[0], paused, *reason)
			}, func(l *api.Lane) error { return p.printer().Print(l, cols.table([]api.Lane{*l})) })
		}
		return one
	}
	c.AddCommand(set("pause", "Claim nothing more of a lane until it is resumed", true), set("resume", "Let a lane go on", false))
	return c
}
