package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newCancel(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "Stop what has not started of a notification, fan-out, campaign or trigger", Args: term.Exact("an id"),
		Long: `cancel stops what has not started: one notification (ntf_...), one receiver of a
fan-out (ntf_...-7), a whole fan-out, a campaign (cmp_...) with its later parts, or a
trigger (trg_...). What waits for its time is cancelled for good, until 4.5 s before
it is due. Anything else: it binds calls that start a second later; what is running
then is not stopped. A campaign is only cancelled after a yes.`,
		Example: `  notifyctl cancel ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS
  notifyctl cancel trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS
  notifyctl cancel cmp_01KAJ8Q2T5E7V9XCB3M4N6P8RS --yes`,
		RunE: func(c *cobra.Command, args []string) error { return runCancel(c.Context(), p, args[0]) },
	}
}

func runCancel(ctx context.Context, p *program, id string) error {
	if strings.HasPrefix(id, "trg_") {
		return cancelTrigger(ctx, p, id)
	}
	if !strings.HasPrefix(id, "cmp_") {
		if err := checkID(id); err != nil {
			return err
		}
	}
	d, cancel := changes, (*api.Client).Cancel
	if strings.HasPrefix(id, "cmp_") {
		d, cancel = undone, (*api.Client).CancelCampaign
	}
	cl, err := p.confirmed(d, "cancel "+id, "")
	if err != nil {
		return err
	}
	out, err := cancel(cl, ctx, id)
	if err != nil {
		return err
	}
	return p.printer().Record(out, func() term.Table {
		if out.Final {
			return term.Table{{"cancelled", out.Scope}, {"at", p.when(out.CancelledAt)}, {"final", "it had not been due: no call is ever made"}}
		}
		return term.Table{{"cancelled", out.Scope}, {"at", p.when(out.CancelledAt)}, {"binds calls from", p.clock(out.BindsAt)}}
	})
}
