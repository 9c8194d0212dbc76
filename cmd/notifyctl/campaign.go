package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/spf13/cobra"
)

func newCampaign(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "campaign", Short: "List campaigns, pause them and set their rate",
		Long: `A paused campaign calls no receiver and uses no attempt; receivers that expire
meanwhile expire. After resume those that were put off go on within ten minutes, after
a change of the rate within one. What is set holds across restarts.`,
	}
	c.AddCommand(newCampaignList(p), &cobra.Command{
		Use: "show CAMPAIGN", Short: "Count a campaign's receivers by state", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign show cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C",
		RunE: p.call(func(ctx context.Context, cl *api.Client, args []string) error {
			return showCampaign(ctx, p, cl, args[0])
		}),
	})
	set := func(s *cobra.Command, to func(args []string) (api.CampaignChange, error)) {
		reason := s.Flags().String("reason", "", "why; it is kept beside the change")
		s.RunE = func(s *cobra.Command, args []string) error {
			in, err := to(args)
			if err != nil {
				return err
			}
			in.Reason = *reason
			return change(p, changes, s.Name()+" campaign "+args[0], in.Reason, func(cl *api.Client) (api.CampaignHold, error) {
				return cl.SetCampaign(s.Context(), args[0], in)
			}, func(h *api.CampaignHold) error {
				return p.printer().Print(h, term.Table{{"CAMPAIGN", "STATE", "SINCE", "BY", "WHY"}, {args[0], holdText(h), p.when(h.Since), h.By, h.Reason}})
			})
		}
		c.AddCommand(s)
	}
	paused := func(is bool) func([]string) (api.CampaignChange, error) {
		return func([]string) (api.CampaignChange, error) { return api.CampaignChange{Paused: &is}, nil }
	}
	set(&cobra.Command{
		Use: "pause CAMPAIGN", Short: "Call no more receivers of a campaign until it is resumed", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign pause cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C --reason 'a wrong price'",
	}, paused(true))
	set(&cobra.Command{
		Use: "resume CAMPAIGN", Short: "Let a campaign go on", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign resume cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C",
	}, paused(false))
	set(&cobra.Command{
		Use: "rate CAMPAIGN RATE", Short: "Set how many receivers of a campaign are called a second; 0: no limit",
		Args: term.Exact("a campaign id", "a rate"), Example: "  notifyctl campaign rate cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C 500 --reason 'the shop is slow'",
	}, func(args []string) (api.CampaignChange, error) {
		rate, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return api.CampaignChange{}, notify.Invalid("bad_rate", "RATE", strconv.Quote(args[1])+" is no number of receivers a second")
		}
		return api.CampaignChange{Rate: &rate}, nil
	})
	return c
}

func newCampaignList(p *program) *cobra.Command {
	var caller string
	c := newListing(p, &cobra.Command{Short: "List campaigns, newest first", Example: "  notifyctl campaign ls --limit 10"}, &listing[api.Campaign]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.CampaignPage, error) {
			return cl.Campaigns(ctx, caller, api.Page{After: after, Limit: n})
		},
		columns: columns[api.Campaign]{head: "CAMPAIGN  CREATED  CALLER  PARTS  ACCEPTED  REJECTED  HOLD", row: func(c *api.Campaign) []string {
			hold := ""
			if c.Hold != nil {
				hold = holdText(c.Hold)
			}
			return []string{c.CampaignID, p.when(c.CreatedAt), c.Caller, count(c.Parts), count(c.Accepted), count(c.Rejected), hold}
		}},
	})
	c.Flags().StringVar(&caller, "caller", "", "operators: only of this caller")
	return c
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
