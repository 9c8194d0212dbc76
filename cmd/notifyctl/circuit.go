package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newCircuit(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "circuit", Short: "Look at breakers, and hold them open or closed",
		Long: `Circuits stand before each provider's route and each caller's callbacks. An open one
lets nothing through; what waits for it keeps its attempts. open and close hold one
until reset gives it back to what its calls say. A provider's is held open or reset,
in every process and across restarts. notifyctl provider test calls it all the same.

Each process has circuits of its own, and a part of the room of each account. ls and
accounts list those of all processes.`,
	}
	cols := columns[api.Circuit]{head: "CIRCUIT  STATE  SINCE  WHY  NEXT TRY  IN FLIGHT  QUEUED", row: func(c *api.Circuit) []string {
		state, flight := c.State, strconv.Itoa(c.InFlight)
		if c.Pinned {
			state += " (held)"
		}
		if c.Limit > 0 {
			flight += "/" + strconv.Itoa(c.Limit)
		}
		return []string{c.Name, state, p.whenever(c.Since), c.Why(), p.whenever(c.Until), flight, strconv.Itoa(c.Queued)}
	}}
	c.AddCommand(newListing(p, &cobra.Command{Short: "List circuits"}, &listing[api.Circuit]{columns: cols, get: all((*api.Client).Circuits), whole: true, process: func(c *api.Circuit) string { return c.Process }}))
	accounts := columns[api.Account]{head: "PROVIDER  ACCOUNT  STATE  BLOCKED UNTIL  PROBE  ROOM  IN FLIGHT  REASON", row: func(a *api.Account) []string {
		return []string{a.Provider, a.Account, a.State, p.whenever(a.BlockedUntil), p.whenever(a.ProbeAt), fmt.Sprintf("%.0f", a.Room), fmt.Sprintf("%d/%d", a.InFlight, a.Limit), a.Reason}
	}}
	c.AddCommand(newListing(p, &cobra.Command{
		Use: "accounts", Short: "Show providers' accounts: room, and which are blocked", Args: cobra.NoArgs,
		Long: `accounts lists the accounts of providers, one line for each process that calls them. ROOM is
how many messages an account takes at once now by its rate. IN FLIGHT is how many requests
are at it, of those that the process may make.`,
	}, &listing[api.Account]{columns: accounts, get: all((*api.Client).Accounts), whole: true, process: func(a *api.Account) string { return a.Process }}))
	for _, a := range []struct{ name, to, short string }{
		{"open", "open", "Let nothing through until it is reset"},
		{"close", "closed", "Let everything through until it is reset"},
		{"reset", "reset", "Give it back to what its calls say"},
	} {
		c.AddCommand(&cobra.Command{
			Use: a.name + " CIRCUIT", Short: a.short, Args: term.Exact("a circuit, such as caller:shop or provider:twilio"),
			RunE: func(c *cobra.Command, args []string) error {
				return change(p, changes, a.name+" circuit "+args[0], "", func(cl *api.Client) (api.Circuit, error) {
					return cl.SetCircuit(c.Context(), args[0], a.to)
				}, func(c *api.Circuit) error { return p.printer().Print(c, cols.table([]api.Circuit{*c})) })
			},
		})
	}
	return c
}

func newURL(p *program) *cobra.Command {
	c := &cobra.Command{Use: "url", Short: "Look at callback URLs"}
	c.AddCommand(&cobra.Command{
		Use: "check URL", Short: "Say of each address a URL resolves to whether it may be called", Args: term.Exact("a URL"),
		Long: `check resolves the host as the server would, and judges each address; nothing is
connected to. Exit 9 when no address may be called.`,
		RunE: p.call(func(ctx context.Context, cl *api.Client, args []string) error {
			out, err := cl.CheckURL(ctx, args[0])
			if err != nil {
				return err
			}
			t := term.Table{{"ADDRESS", "VERDICT", "WHY"}}
			for _, a := range out.Addresses {
				verdict := "allowed"
				if !a.Allowed {
					verdict = "denied"
				}
				t = append(t, []string{a.Address, verdict, a.Why})
			}
			if err := p.printer().Print(out, t); err != nil {
				return err
			}
			p.note("%s port %d", strings.TrimSpace(out.Host), out.Port)
			if !out.Allowed {
				return term.Exitf(term.ExitFindings, "%s may not be called", out.URL)
			}
			return nil
		}),
	})
	return c
}

func newProvider(p *program) *cobra.Command {
	c := &cobra.Command{Use: "provider", Short: "Test a provider's credentials and the way to it"}
	test := &cobra.Command{
		Use: "test NAME", Short: "Call a provider once, without a campaign (scope operate)",
		Args: term.Exact("apns, fcm, twilio, sendgrid, or an account of circuit accounts"),
		Long: `test lets the server call a provider as its workers would, and says what was answered.
Nothing reaches anybody: FCM and SendGrid have a dry run, Twilio is asked for the
account, and APNs gets a push for a token that no device has. That proves the key, but
the topic only with --to. With --to one real message goes to that address; it says that
it is a test.

It keeps to the provider's rate limit. It is called whether its circuit is open, held
or closed, and no circuit changes. Each account or pool is called; with --to, the first.

VERDICT is ok, credentials_refused, wrong_project (good credentials of another project,
topic or account), refused (the message or its address), throttled, unreachable or
unavailable (5xx). Exit 9 when one is not ok.`,
		Example: "  notifyctl provider test fcm\n  notifyctl provider test twilio --to +4915112345678 --reason 'new token'",
	}
	to, reason := test.Flags().String("to", "", "send one real message to this device, number or mail address"), reasonFlag(test)
	test.RunE = func(c *cobra.Command, args []string) error {
		return runTestProvider(c.Context(), p, strings.TrimPrefix(args[0], "provider:"), *to, *reason)
	}
	c.AddCommand(test)
	return c
}

func runTestProvider(ctx context.Context, p *program, name, to, reason string) error {
	t, cl, err := p.operator(reason)
	if err != nil {
		return err
	}
	if to != "" {
		if err := p.confirm(t, changes, "send a real message by "+name); err != nil {
			return err
		}
	}
	out, err := cl.TestProvider(ctx, name, api.ProviderTestRequest{To: to})
	if err != nil {
		return err
	}
	bad := 0
	cols := columns[api.ProviderTrial]{head: "ACCOUNT  VERDICT  STATUS  CLASS  CODE  TOOK  CALLED  DETAIL", row: func(one *api.ProviderTrial) []string {
		if one.Verdict != "ok" {
			bad++
		}
		status := strconv.Itoa(one.Status)
		if one.Status == 0 {
			status = "none"
		}
		return []string{one.Account, one.Verdict, status, one.Class, one.Code, (time.Duration(one.TookMS) * time.Millisecond).String(), one.Called, one.Detail}
	}}
	if err := p.printer().Print(out, cols.table(out.Items)); err != nil {
		return err
	}
	if bad > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d calls of %s found something; notifyctl explain CODE says what to do", bad, len(out.Items), out.Provider)
	}
	return nil
}
