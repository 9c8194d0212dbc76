package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newRates(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "rates", Short: "Show what the server does per second, and how late what is due comes", Args: cobra.NoArgs,
		Long: `rates shows the last minute of the process that answers: receivers and triggers
accepted, reached and failed per second, and the lateness of timers and triggers.
Scope observe. Metrics (/metrics) have the rest.`,
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			r, err := cl.Rates(ctx)
			if err != nil {
				return err
			}
			if err := p.printer().Print(r, func() term.Table { return tableOfRates(&r) }); err != nil {
				return err
			}
			for _, l := range r.Late {
				if l.N > 0 {
					p.note("%s %ss: half at most %s late, 99%% at most %s", count(int(l.N)), l.What, seconds(l.P50), seconds(l.P99))
				}
			}
			return nil
		}),
	}
}

func tableOfRates(r *api.Rates) term.Table {
	t := term.Table{{"WHAT", "ACCEPTED/S", "REACHED/S", "FAILED/S", "OTHER/S"}}
	n := func(v float64) string { return fmt.Sprintf("%.1f", v) }
	for _, one := range r.Rates {
		t = append(t, []string{one.What, n(one.Accepted), n(one.Reached), n(one.Failed), n(one.Other)})
	}
	return t
}

func seconds(s float64) string { return time.Duration(s * float64(time.Second)).String() }

func newAccounts(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "accounts", Short: "Show providers' accounts: room, and which are blocked", Args: cobra.NoArgs,
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			out, err := cl.Accounts(ctx)
			if err != nil {
				return err
			}
			return printPage(p, out, out.Items, func() term.Table {
				t := term.Table{{"PROVIDER", "ACCOUNT", "STATE", "BLOCKED UNTIL", "PROBE", "ROOM", "REASON"}}
				for _, a := range out.Items {
					t = append(t, []string{a.Provider, a.Account, a.State, p.whenever(a.BlockedUntil), p.whenever(a.ProbeAt), fmt.Sprintf("%.0f", a.Room), a.Reason})
				}
				return t
			})
		}),
	}
}
