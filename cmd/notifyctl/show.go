package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newShow(p *program) *cobra.Command {
	var content, full bool
	c := &cobra.Command{
		Use: "show ID", Short: "Show where a notification, a fan-out or a campaign stands", Args: term.Exact("an id"),
		Long: `show prints the status of a notification (ntf_..., or ntf_...-7 for one receiver of
a fan-out). For a fan-out or a campaign (cmp_...) it counts the receivers by state.

--content prints what the notification says and where it was sent, addresses masked. It
is for the caller that sent it and for operators, whose looks the audit log keeps.`,
		Example: `  notifyctl show ntf_01K3ZV7Q0N8M2D4R6T8W0Y2A4C
  notifyctl show cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C -o json --jq .counts
  notifyctl show ntf_01K3ZV7Q0N8M2D4R6T8W0Y2A4C --content`,
		RunE: func(c *cobra.Command, args []string) error {
			if content || full {
				address := ""
				if full {
					address = api.FullAddress
				}
				return showContent(c.Context(), p, args[0], address)
			}
			return runShow(c.Context(), p, args[0])
		},
	}
	c.Flags().BoolVar(&content, "content", false, "show what it says and where it was sent")
	c.Flags().BoolVar(&full, "full-address", false, "with --content: do not mask addresses")
	return c
}

func showContent(ctx context.Context, p *program, id, address string) error {
	if err := checkID(id); err != nil {
		return err
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	c, err := cl.NotificationContent(ctx, id, address)
	if err != nil {
		return err
	}
	return p.printer().Record(c, func() term.Table {
		to := strings.Join(c.Addresses, ", ")
		if c.FromProfile {
			to += "  (the profile's now)"
		}
		return term.Table{
			{"notification", c.NotificationID}, {"channel", c.Channel}, {"caller", c.Caller}, {"user", c.UserID}, {"address", to},
			{"from", c.Content.From}, {"template", c.Content.Template}, {"title", c.Content.Title}, {"body", c.Content.Body}, {"html", c.Content.HTML},
			{"variables", string(c.Content.Variables)}, {"own variables", string(c.Variables)}, {"data", string(c.Content.Data)}, {"collapse key", c.Content.CollapseKey},
		}
	})
}

func runShow(ctx context.Context, p *program, id string) error {
	if strings.HasPrefix(id, "trg_") {
		return showTrigger(ctx, p, id)
	}
	if !strings.HasPrefix(id, "cmp_") {
		if err := checkID(id); err != nil {
			return err
		}
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	if strings.HasPrefix(id, "cmp_") {
		return showCampaign(ctx, p, cl, id)
	}
	s, err := cl.Notification(ctx, id)
	if err != nil {
		return err
	}
	if s.Status == "" { // the answer was that of a fan-out as a whole
		sum, err := total(ctx, func(page api.Page) (api.Summary, error) { return cl.Summary(ctx, id, page) })
		if err != nil {
			return err
		}
		return p.printSummary(&sum)
	}
	return p.printer().Record(s, func() term.Table { return p.statusFields(&s) })
}

// checkID refuses what no notification can be called.
func checkID(id string) error {
	if _, err := notify.ParseID(id); err != nil {
		if strings.HasPrefix(id, "ntf_") {
			return term.Usage("%q is no id: after ntf_ come 26 letters and digits, and -NUMBER for a receiver of a fan-out; was a part lost in copying?", id)
		}
		return term.Usage("%q is no id: they begin with ntf_ (notification), cmp_ (campaign) or trg_ (trigger)", id)
	}
	return nil
}

func newCampaign(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "campaign", Short: "List campaigns, pause them and set their rate",
		Long: `A paused campaign calls no receiver and uses no attempt; receivers that expire
meanwhile expire. After resume those that were put off go on within ten minutes, after
a change of the rate within one. What is set holds across restarts.`,
	}
	c.AddCommand(newCampaignList(p))
	c.AddCommand(newSetCampaign(p)...)
	c.AddCommand(&cobra.Command{
		Use: "show CAMPAIGN", Short: "Count a campaign's receivers by state", Args: term.Exact("a campaign id"),
		Example: "  notifyctl campaign show cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C",
		RunE: p.call(func(ctx context.Context, cl *api.Client, args []string) error {
			return showCampaign(ctx, p, cl, args[0])
		}),
	})
	return c
}

func showCampaign(ctx context.Context, p *program, cl *api.Client, id string) error {
	sum, err := total(ctx, func(page api.Page) (api.Summary, error) { return cl.Campaign(ctx, id, page) })
	if err != nil {
		return err
	}
	return p.printSummary(&sum)
}

// total adds up the pages of a count.
func total(ctx context.Context, get func(api.Page) (api.Summary, error)) (api.Summary, error) {
	sum, err := get(api.Page{})
	for page := sum; err == nil && !page.Complete && page.Next != ""; {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		if page, err = get(api.Page{After: page.Next}); err != nil {
			break
		}
		sum.Counted += page.Counted
		sum.Complete, sum.Next = page.Complete, page.Next
		for state, n := range page.Counts {
			sum.Counts[state] += n
		}
	}
	if sum.Pending != nil {
		left := sum.Accepted - sum.Counted
		sum.Pending = &left
	}
	return sum, err
}

func (p *program) printSummary(s *api.Summary) error {
	return p.printer().Record(s, func() term.Table {
		t := term.Table{
			{"campaign", s.CampaignID}, {"fan-out", s.NotificationID}, {"caller", s.Caller},
			{"channel", s.Channel}, {"category", s.Category}, {"created", p.when(s.CreatedAt)},
			{"due", p.whenever(s.ScheduledAt)}, {"cancelled", p.whenever(s.CancelledAt)}, {"trace", s.TraceID},
		}
		if s.Hold != nil {
			t = append(t, []string{"hold", holdText(s.Hold)}, []string{"  by", s.Hold.By}, []string{"  why", s.Hold.Reason})
		}
		if s.Parts > 0 {
			t = append(t, []string{"parts", count(s.Parts)})
		}
		if s.Accepted > 0 {
			t = append(t, []string{"accepted", count(s.Accepted)})
		}
		if s.Rejected > 0 {
			t = append(t, []string{"rejected", count(s.Rejected)})
		}
		t = append(t, []string{"counted", count(s.Counted)})
		for state := notify.State(1); int(state) < notify.States; state++ {
			if n := s.Counts[state.String()]; n > 0 {
				t = append(t, []string{"  " + state.String(), fmt.Sprintf("%s  (%s)", count(n), share(int64(n), s.Counted))})
			}
		}
		if s.Pending != nil && *s.Pending != 0 {
			what := "not counted yet"
			if s.Complete {
				what = "accepted, and nothing is found of them: ask notifyctl doctor"
			}
			t = append(t, []string{"pending", fmt.Sprintf("%s  (%s)", count(*s.Pending), what)})
		}
		return t
	})
}

// share writes n of all as a percentage; what is not all of it is never 100%.
func share(n, all int64) string {
	pc := 100 * float64(n) / float64(max(all, 1))
	switch {
	case n == all:
		return "100%"
	case pc > 99.9:
		return ">99.9%"
	case pc < 0.1:
		return "<0.1%"
	}
	return fmt.Sprintf("%.1f%%", pc)
}

func (p *program) statusFields(s *api.Status) term.Table {
	t := term.Table{
		{"notification", s.NotificationID}, {"status", s.Status}, {"code", s.Code},
		{"channel", s.Channel}, {"category", s.Category}, {"user", s.UserID},
		{"caller", s.Caller}, {"campaign", s.Campaign},
	}
	if s.Attempts > 0 {
		t = append(t, []string{"attempts", fmt.Sprint(s.Attempts)})
	}
	if s.Epoch > 0 {
		t = append(t, []string{"epoch", fmt.Sprintf("%d (replayed)", s.Epoch)})
	}
	due, expires := "due", "expires"
	if terminal(s.Status) { // it may have ended before either
		due, expires = "was due", "would expire"
	}
	return append(t, []string{"accepted", p.when(s.AcceptedAt)}, []string{due, p.whenever(s.ScheduledAt)},
		[]string{"updated", p.whenever(s.UpdatedAt)}, []string{expires, p.whenever(s.ExpiresAt)}, []string{"trace", s.TraceID})
}
