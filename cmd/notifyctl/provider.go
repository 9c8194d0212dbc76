package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newProvider(p *program) *cobra.Command {
	c := &cobra.Command{Use: "provider", Short: "Test a provider's credentials and the way to it"}
	var to, reason string
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
		RunE: func(c *cobra.Command, args []string) error {
			return runTestProvider(c.Context(), p, strings.TrimPrefix(args[0], "provider:"), to, reason)
		},
	}
	test.Flags().StringVar(&to, "to", "", "send one real message to this device, number or mail address")
	test.Flags().StringVar(&reason, "reason", "", "why; it is kept in the audit log")
	c.AddCommand(test)
	return c
}

func runTestProvider(ctx context.Context, p *program, name, to, reason string) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	if to != "" {
		if err := p.confirm(&t, changes, "send a real message by "+name); err != nil {
			return err
		}
	}
	cl := p.clientOf(&t)
	cl.Reason, cl.Context = reason, t.name
	out, err := cl.TestProvider(ctx, name, api.ProviderTestRequest{To: to})
	if err != nil {
		return err
	}
	bad := 0
	if err := p.printer().Print(out, func() term.Table {
		t := term.Table{{"ACCOUNT", "VERDICT", "STATUS", "CLASS", "CODE", "TOOK", "CALLED", "DETAIL"}}
		for i := range out.Items {
			one := &out.Items[i]
			status := strconv.Itoa(one.Status)
			if one.Status == 0 {
				status = "none"
			}
			t = append(t, []string{one.Account, one.Verdict, status, one.Class, one.Code, (time.Duration(one.TookMS) * time.Millisecond).String(), one.Called, one.Detail})
		}
		return t
	}); err != nil {
		return err
	}
	for i := range out.Items {
		if out.Items[i].Verdict != "ok" {
			bad++
		}
	}
	if bad > 0 {
		return term.Exitf(term.ExitFindings, "%d of %d calls of %s found something; notifyctl explain CODE says what to do", bad, len(out.Items), out.Provider)
	}
	return nil
}
