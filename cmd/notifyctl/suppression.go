package main

import (
	"context"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/spf13/cobra"
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
	list := &listing[api.Suppression]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.Suppressions, error) {
			return cl.Suppressions(ctx, f, after, n)
		},
		columns: columns[api.Suppression]{head: "USER  CHANNEL  ADDRESS  CODE", row: func(s *api.Suppression) []string {
			return []string{s.UserID, s.Channel, s.Address, s.Code}
		}},
	}
	ls := newListing(p, &cobra.Command{
		Short: "List the suppressed addresses, by user", Example: "  notifyctl suppression ls --channel email --code sendgrid_bounce",
	}, list)
	ls.Flags().StringVar(&f.UserID, "user", "", "only those in this user's profile")
	ls.Flags().StringVar(&f.Channel, "channel", "", "only push, sms or email")
	ls.Flags().StringVar(&f.Code, "code", "", "only what a provider suppressed with this code")
	complete(ls, "channel", []string{"push", "sms", "email"})
	show := &cobra.Command{
		Use: "show ADDRESS", Short: "Show which profiles suppress an address, and why", Args: term.Exact("an address"),
		RunE: func(c *cobra.Command, args []string) error {
			f.Address = args[0]
			return list.print(c.Context(), p, maxPage, "")
		},
	}
	lift := &cobra.Command{
		Use: "lift ADDRESS", Short: "Send to an address again", Args: term.Exact("an address"),
		Long: `lift takes an address off every profile that suppresses it, or off one with --user.
It is suppressed again when a provider calls it dead again.`,
		Example: "  notifyctl suppression lift +4915112345678 --reason 'the carrier repaired it'",
	}
	user, reason := lift.Flags().String("user", "", "off this user's profile alone"), reasonFlag(lift)
	lift.RunE = func(c *cobra.Command, args []string) error {
		return change(p, changes, "lift the suppression of "+args[0], *reason, func(cl *api.Client) (api.SuppressionLifted, error) {
			return cl.LiftSuppression(c.Context(), api.SuppressionLift{Address: args[0], UserID: *user})
		}, func(out *api.SuppressionLifted) error {
			if err := p.printer().Record(out, term.Table{{"address", out.Address}, {"lifted from", count(out.Lifted) + " profiles"}}); err != nil {
				return err
			}
			if out.Still {
				p.note("another profile still suppresses it: notifyctl suppression show %s", quote(out.Address))
			}
			return nil
		})
	}
	c.AddCommand(ls, show, lift)
	return c
}
