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
		Use: "circuit", Short: "List circuit breakers, and hold them open or closed",
		Long: `Each provider's route and each caller's callbacks have a circuit breaker, a circuit for
short. While it is open, no call is made, and what waits for it uses no attempts. open
and close hold a circuit until reset; after reset, the results of its calls decide
again. A provider's circuit can only be held open; the hold applies to every process and
survives restarts. notifyctl provider test calls the provider even then.

Each process has its own circuits, and a share of the rate of each account. ls and
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
		return []string{c.Name, state, p.optionalTimeText(c.Since), c.Why(), p.optionalTimeText(c.Until), flight, strconv.Itoa(c.Queued)}
	}}
	c.AddCommand(newListing(p, &cobra.Command{Short: "List circuits"}, &listing[api.Circuit]{columns: cols, get: wholeList((*api.Client).Circuits), whole: true, process: func(c *api.Circuit) string { return c.Process }}))
	accounts := columns[api.Account]{head: "PROVIDER  ACCOUNT  STATE  BLOCKED UNTIL  PROBE  ROOM  IN FLIGHT  REASON", row: func(a *api.Account) []string {
		return []string{a.Provider, a.Account, a.State, p.optionalTimeText(a.BlockedUntil), p.optionalTimeText(a.ProbeAt), fmt.Sprintf("%.0f", a.Room), fmt.Sprintf("%d/%d", a.InFlight, a.Limit), a.Reason}
	}}
	c.AddCommand(newListing(p, &cobra.Command{
		Use: "accounts", Short: "List the providers' accounts: free capacity, and which are blocked", Args: cobra.NoArgs,
		Long: `accounts lists the accounts of providers, one line for each process that calls them.
ROOM is how many messages the rate of the account allows at once now. IN FLIGHT is how
many requests are under way, and how many the process may have under way.`,
	}, &listing[api.Account]{columns: accounts, get: wholeList((*api.Client).Accounts), whole: true, process: func(a *api.Account) string { return a.Process }}))
	for _, a := range []struct{ name, to, short string }{
		{"open", "open", "Hold a circuit open: no calls are made until it is reset"},
		{"close", "closed", "Hold a circuit closed: calls are made, even if they fail, until it is reset"},
		{"reset", "reset", "End a hold: the results of the calls open and close the circuit again"},
	} {
		c.AddCommand(&cobra.Command{
			Use: a.name + " CIRCUIT", Short: a.short, Args: term.Exact("a circuit, such as caller:shop or provider:twilio"),
			RunE: func(c *cobra.Command, args []string) error {
				return confirmAndChange(p, changes, a.name+" circuit "+args[0], "", func(cl *api.Client) (api.Circuit, error) {
					return cl.SetCircuit(c.Context(), args[0], a.to)
				}, func(c *api.Circuit) error { return p.printer().Print(c, cols.table([]api.Circuit{*c})) })
			},
		})
	}
	return c
}

func newURL(p *program) *cobra.Command {
	c := &cobra.Command{Use: "url", Short: "Check callback URLs"}
	c.AddCommand(&cobra.Command{
		Use: "check URL", Short: "Show which addresses a URL resolves to, and which of them may be called", Args: term.Exact("a URL"),
		Long: `check makes the server resolve the host and judge each address. It connects to nothing.
It exits 9 if no address may be called.`,
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, args []string) error {
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
	c := &cobra.Command{Use: "provider", Short: "Test a provider's credentials and the connection to it"}
	test := &cobra.Command{
		Use: "test NAME", Short: "Call a provider once, without a campaign (scope operate)",
		Args: term.Exact("apns, fcm, twilio, sendgrid, or an account of circuit accounts"),
		Long: `test makes the server call a provider as its workers would, and prints the answer.
No message is delivered: FCM and SendGrid have a dry run, Twilio is asked for the
account, and APNs gets a push for a token that no device has. For APNs that proves the
key, but not the topic. With --to, one real message goes to that address, marked as a
test, and it proves the topic as well.

The test counts towards the provider's rate limit. It ignores the circuit and does not
change it. It calls each account or pool; with --to, only the first.

VERDICT is ok, credentials_refused, wrong_project (good credentials of another project,
topic or account), refused (the message or its address), throttled, unreachable or
unavailable (5xx). test exits 9 if one is not ok.`,
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
	t, cl, err := p.operatorClient(reason)
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
		return term.Exitf(term.ExitFindings, "%d of %d calls of %s failed; notifyctl explain CODE says what to do", bad, len(out.Items), out.Provider)
	}
	return nil
}
