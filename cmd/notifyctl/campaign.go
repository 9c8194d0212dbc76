package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
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
	add(&cobra.Command{Use: "pause CAMPAIGN", Short: "Call no more receivers of a campaign until it is resumed", Args: term.Exact("a campaign id"), Example: "  notifyctl campaign pause cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C --reason 'a wrong price'"}, paused(true))
	add(&cobra.Command{Use: "resume CAMPAIGN", Short: "Let a campaign go on", Args: term.Exact("a campaign id"), Example: "  notifyctl campaign resume cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C"}, paused(false))
	add(&cobra.Command{
		Use: "rate CAMPAIGN RATE", Short: "Set how many receivers of a campaign are called a second; 0: no limit",
		Args: term.Exact("a campaign id", "a rate"), Example: "  notifyctl campaign rate cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C 500 --reason 'the shop is slow'",
	}, func(args []string) (api.CampaignChange, error) {
		rate, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return api.CampaignChange{}, notify.Invalid("bad_rate", "RATE", strconv.Quote(args[1])+" is no number of receivers a second")
		}
		return api.CampaignChange{Rate: &rate}, nil
	})
	return cs
}

func newCampaignList(p *program) *cobra.Command {
	var caller, cursor string
	var limit int
	c := &cobra.Command{
		Use: "ls", Short: "List campaigns, newest first", Example: "  notifyctl campaign ls --limit 10", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: func(c *cobra.Command, _ []string) error {
			return runCampaignList(c.Context(), p, caller, cursor, limit)
		},
	}
	f := c.Flags()
	f.StringVar(&caller, "caller", "", "operators: only of this caller")
	f.IntVar(&limit, "limit", 50, "how many at most")
	f.StringVar(&cursor, "cursor", "", "go on where an earlier list ended")
	return c
}

func runCampaignList(ctx context.Context, p *program, caller, cursor string, limit int) error {
	return runPages(p, &pages[api.Campaign]{
		limit: limit, cursor: cursor,
		get: func(cl *api.Client, after string, n int) (api.CampaignPage, error) {
			return cl.Campaigns(ctx, caller, api.Page{After: after, Limit: n})
		},
		head: []string{"CAMPAIGN", "CREATED", "CALLER", "PARTS", "ACCEPTED", "REJECTED", "HOLD"},
		row: func(c *api.Campaign) []string {
			hold := ""
			if c.Hold != nil {
				hold = holdText(c.Hold)
			}
			return []string{c.CampaignID, p.when(c.CreatedAt), c.Caller, count(c.Parts), count(c.Accepted), count(c.Rejected), hold}
		},
	})
}

func runSetCampaign(ctx context.Context, p *program, id, verb string, to api.CampaignChange) error {
	cl, err := p.confirmed(changes, verb+" campaign "+id, to.Reason)
	if err != nil {
		return err
	}
	out, err := cl.SetCampaign(ctx, id, to)
	if err != nil {
		return err
	}
	return p.printer().Print(out, func() term.Table {
		return append(term.Table{{"CAMPAIGN", "STATE", "SINCE", "BY", "WHY"}}, append([]string{id, holdText(&out)}, p.when(out.Since), out.By, out.Reason))
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
