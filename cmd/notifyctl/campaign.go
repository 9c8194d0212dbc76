package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
	"github.com/notifyd/notifyd/pkg/notify"
)

// newSetCampaign returns the commands that hold a campaign back.
func newSetCampaign(p *program) []*cobra.Command {
	var cs []*cobra.Command
	add := func(c *cobra.Command, change func(args []string) (api.CampaignChange, error)) {
		reason := c.Flags().String("reason", "", "why; it is kept beside the change")
		c.RunE = func(c *cobra.Command, args []string) error {
			to, err := change(args)
			if err != nil {
				return err
			}
			to.Reason = *reason
			return runSetCampaign(c.Context(), p, args[0], c.Name(), to)
		}
		cs = append(cs, c)
	}
	paused := func(is bool) func([]string) (api.CampaignChange, error) {
		return func([]string) (api.CampaignChange, error) { return api.CampaignChange{Paused: &is}, nil }
	}
	add(&cobra.Command{Use: "pause CAMPAIGN", Short: "Call no more receivers of a campaign until it is resumed", Args: cli.Exact("a campaign id")}, paused(true))
	add(&cobra.Command{Use: "resume CAMPAIGN", Short: "Let a campaign go on", Args: cli.Exact("a campaign id")}, paused(false))
	add(&cobra.Command{
		Use: "rate CAMPAIGN RATE", Short: "Set how many receivers of a campaign are called a second; 0: no limit",
		Args: cli.Exact("a campaign id", "a rate"), Example: "  notifyctl campaign rate cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C 500 --reason 'the shop is slow'",
	}, func(args []string) (api.CampaignChange, error) {
		rate, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return api.CampaignChange{}, notify.Invalid("bad_rate", "RATE", strconv.Quote(args[1])+" is no number of receivers a second")
		}
		return api.CampaignChange{Rate: &rate}, nil
	})
	return cs
}

func runSetCampaign(ctx context.Context, p *program, id, verb string, to api.CampaignChange) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	if err := p.confirm(&t, changes, verb+" campaign "+id); err != nil {
		return err
	}
	cl := p.clientOf(&t)
	cl.Reason, cl.Context = to.Reason, t.name
	out, err := cl.SetCampaign(ctx, id, to)
	if err != nil {
		return err
	}
	return p.printer().Print(out, func() cli.Table {
		return append(cli.Table{{"CAMPAIGN", "STATE", "SINCE", "BY", "WHY"}}, append([]string{id, holdText(&out)}, p.when(out.Since), out.By, out.Reason))
	})
}

// holdText says in words what holds a campaign back.
func holdText(h *api.CampaignHold) string {
	text := "open"
	if h.Paused {
		text = "paused"
	}
	if h.Rate > 0 {
		text += fmt.Sprintf(", %g/s", h.Rate)
	}
	return text
}
