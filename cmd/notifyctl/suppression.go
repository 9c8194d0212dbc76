package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newSuppression(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "suppression", Short: "List addresses that nothing is sent to, and lift them",
		Long: `A provider that calls an address dead (a bounce, an app that was removed, a number
that takes no SMS) puts it on the suppression list: what is sent to it ends as
SUPPRESSED suppressed_address, whoever sends it and whatever its category. lift takes
it off; if the provider calls it dead again, it is back.`,
	}
	var f api.SuppressionFilter
	var limit int
	var cursor string
	ls := &cobra.Command{
		Use: "ls", Short: "List the suppressed addresses, by user", Args: cobra.NoArgs, Aliases: []string{"list"},
		Example: "  notifyctl suppression ls --channel email --code sendgrid_bounce",
		RunE: func(c *cobra.Command, _ []string) error {
			return runSuppressions(c.Context(), p, f, cursor, limit)
		},
	}
	ls.Flags().StringVar(&f.UserID, "user", "", "only those in this user's profile")
	ls.Flags().StringVar(&f.Channel, "channel", "", "only push, sms or email")
	ls.Flags().StringVar(&f.Code, "code", "", "only what a provider suppressed with this code")
	ls.Flags().IntVar(&limit, "limit", 50, "how many at most")
	ls.Flags().StringVar(&cursor, "cursor", "", "go on where an earlier list ended")
	complete(ls, "channel", []string{"push", "sms", "email"})
	show := &cobra.Command{
		Use: "show ADDRESS", Short: "Show which profiles suppress an address, and why", Args: term.Exact("an address"),
		RunE: func(c *cobra.Command, args []string) error {
			return runSuppressions(c.Context(), p, api.SuppressionFilter{Address: args[0]}, "", maxPage)
		},
	}
	var user, reason string
	lift := &cobra.Command{
		Use: "lift ADDRESS", Short: "Send to an address again", Args: term.Exact("an address"),
		Long: `lift takes an address off every profile that suppresses it, or off one with --user.
It is suppressed again when a provider calls it dead again.`,
		Example: "  notifyctl suppression lift +4915112345678 --reason 'the carrier repaired it'",
		RunE: func(c *cobra.Command, args []string) error {
			return runLift(c.Context(), p, api.SuppressionLift{Address: args[0], UserID: user}, reason)
		},
	}
	lift.Flags().StringVar(&user, "user", "", "off this user's profile alone")
	lift.Flags().StringVar(&reason, "reason", "", "why; it is kept in the audit log")
	c.AddCommand(ls, show, lift)
	return c
}

func runSuppressions(ctx context.Context, p *program, f api.SuppressionFilter, cursor string, limit int) error {
	return runPages(p, &pages[api.Suppression]{
		limit: limit, cursor: cursor,
		get: func(cl *api.Client, after string, n int) (api.Suppressions, error) {
			return cl.Suppressions(ctx, f, after, n)
		},
		head: []string{"USER", "CHANNEL", "ADDRESS", "CODE"},
		row:  func(s *api.Suppression) []string { return []string{s.UserID, s.Channel, s.Address, s.Code} },
	})
}

func runLift(ctx context.Context, p *program, in api.SuppressionLift, reason string) error {
	cl, err := p.confirmed(changes, "lift the suppression of "+in.Address, reason)
	if err != nil {
		return err
	}
	out, err := cl.LiftSuppression(ctx, in)
	if err != nil {
		return err
	}
	if err := p.printer().Record(out, func() term.Table {
		return term.Table{{"address", out.Address}, {"lifted from", count(out.Lifted) + " profiles"}}
	}); err != nil {
		return err
	}
	if out.Still {
		p.note("another profile still suppresses it: notifyctl suppression show %s", quote(out.Address))
	}
	return nil
}
