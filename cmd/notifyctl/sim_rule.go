package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

var (
	simProviders = []string{"apns", "fcm", "twilio", "sendgrid", "callback"}
	simActions   = []string{"error", "outage", "throttle", "unauthorized", "gateway", "reset", "reset_stream", "drop", "hang", "drip", "latency", "receipt", "redirect", "huge", "refuse", "go_away", "close"}
)

func (s *simulators) newRuleAdd() *cobra.Command {
	var r simulator.Rule
	var provider string
	c := &cobra.Command{
		Use: "add ACTION", Short: "Add a rule; newer rules come first", Args: term.Exact("an action"),
		Long: `add makes the providers misbehave. Actions: error (with --status or --code), outage
(503), throttle (429), unauthorized, gateway (the message is taken, the answer is 502
or --status), reset, reset_stream, drop (the connection breaks after or before the
message was taken), hang, drip, latency (--median), receipt (taken, its receipt later says --code). The receiver of triggers, provider
callback, also has redirect (--location) and huge (an answer of 64 MiB); apns has
refuse (the stream, untaken), go_away (the connection, once it is answered) and
close (in order, taken but not answered).`,
		Example: `  notifyctl sim rule add outage --provider apns --for 30s
  notifyctl sim rule add error --provider apns --code Unregistered --rate 0.05
  notifyctl sim rule add latency --provider twilio --median 2s --p99 8s`,
		ValidArgs: simActions,
		RunE: s.run(func(ctx context.Context, args []string) error {
			r.Do = simulator.Action(args[0])
			if err := r.Provider.UnmarshalText([]byte(provider)); err != nil {
				return err
			}
			var out struct {
				Number uint64 `json:"number"`
			}
			if err := s.Call(ctx, http.MethodPost, "/control/rules", r, &out); err != nil {
				return err
			}
			if err := s.p.printer().Record(out, term.Table{{"rule", fmt.Sprint(out.Number)}}); err != nil {
				return err
			}
			until := "until notifyctl sim rule rm " + fmt.Sprint(out.Number)
			if r.For > 0 {
				until = "for " + span(time.Duration(r.For))
			}
			s.p.note("%s of %s, %s", string(r.Do), first(r.Provider.String(), "all providers"), until)
			return nil
		}),
	}
	f := c.Flags()
	f.StringVar(&provider, "provider", "", "only this provider: apns, fcm, twilio, sendgrid, callback")
	f.StringVar(&r.Account, "account", "", "only this Twilio account")
	f.StringVar(&r.Pool, "pool", "", "only this SendGrid IP pool")
	f.StringVar(&r.Template, "template", "", "only this SendGrid template")
	f.StringVar(&r.Prefix, "prefix", "", "only addresses that begin so")
	f.StringVar(&r.ID, "id", "", "only this notification")
	f.Float64Var(&r.Rate, "rate", 0, "share of the matching requests, above 0 to 1; 0: all")
	f.Uint64Var(&r.Count, "count", 0, "most requests it is applied to; 0: no limit")
	f.DurationVar((*time.Duration)(&r.For), "for", 0, "how long it holds; 0: until it is removed")
	f.IntVar(&r.Status, "status", 0, "error, gateway: HTTP status")
	f.StringVar(&r.Code, "code", "", "error: the provider's code; receipt: what it says")
	f.DurationVar((*time.Duration)(&r.RetryAfter), "retry-after", 0, "error, throttle: the Retry-After header")
	f.StringVar(&r.Location, "location", "", "redirect: where to")
	f.DurationVar((*time.Duration)(&r.Latency.Median), "median", 0, "drip, latency: median")
	f.DurationVar((*time.Duration)(&r.Latency.P99), "p99", 0, "drip, latency: 99th percentile")
	complete(c, "provider", simProviders)
	return c
}

func (s *simulators) newRuleList() *cobra.Command {
	cols := columns[simulator.Rule]{head: "RULE  DO  PROVIDER  STATUS  CODE  RATE  ENDS  MATCHED  PICKED", row: func(r *simulator.Rule) []string {
		return []string{
			fmt.Sprint(r.Number), string(r.Do), first(r.Provider.String(), "all"), mark(r.Status > 0, fmt.Sprint(r.Status)), r.Code,
			strconv.FormatFloat(r.Rate, 'g', -1, 64), s.p.when(r.Until), count(r.Matched), count(r.Picked),
		}
	}}
	return &cobra.Command{
		Use: "ls", Short: "List the rules in force, newest first", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: s.run(func(ctx context.Context, _ []string) error {
			var list []simulator.Rule
			if err := s.Call(ctx, http.MethodGet, "/control/rules", nil, &list); err != nil {
				return err
			}
			if len(list) == 0 {
				s.p.note("none: the providers behave")
			}
			return s.p.printer().Print(list, cols.table(list))
		}),
	}
}
