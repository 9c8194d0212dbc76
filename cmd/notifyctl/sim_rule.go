package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/term"
)

// simRule scripts faults of simulated providers.
type simRule struct {
	Number     uint64     `json:"number,omitempty"`
	Provider   string     `json:"provider,omitempty"`
	Account    string     `json:"account,omitempty"`
	Pool       string     `json:"pool,omitempty"`
	Prefix     string     `json:"prefix,omitempty"`
	Template   string     `json:"template,omitempty"`
	ID         string     `json:"id,omitempty"`
	Rate       float64    `json:"rate,omitempty"`
	Count      uint64     `json:"count,omitempty"`
	For        string     `json:"for,omitempty"`
	Until      *time.Time `json:"until,omitempty"`
	Do         string     `json:"do"`
	Status     int        `json:"status,omitempty"`
	Code       string     `json:"code,omitempty"`
	RetryAfter string     `json:"retry_after,omitempty"`
	Latency    *simDelay  `json:"latency,omitempty"`
	Location   string     `json:"location,omitempty"`
	Matched    uint64     `json:"matched,omitempty"`
	Picked     uint64     `json:"picked,omitempty"`
}

type simDelay struct {
	Median string `json:"median"`
	P99    string `json:"p99,omitempty"`
}

var (
	simProviders = []string{"apns", "fcm", "twilio", "sendgrid", "callback"}
	simActions   = []string{"error", "outage", "throttle", "unauthorized", "gateway", "reset", "reset_stream", "drop", "hang", "drip", "latency", "receipt", "redirect", "huge", "refuse", "go_away", "close"}
)

func (s *simClient) newRuleAdd() *cobra.Command {
	var r simRule
	var lasts, retryAfter, median, p99 time.Duration
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
			r.Do, r.For, r.RetryAfter = args[0], written(lasts), written(retryAfter)
			if median > 0 || p99 > 0 {
				r.Latency = &simDelay{Median: median.String(), P99: written(p99)}
			}
			var out struct {
				Number uint64 `json:"number"`
			}
			if err := s.call(ctx, http.MethodPost, "/control/rules", r, &out); err != nil {
				return err
			}
			if err := s.p.printer().Record(out, term.Table{{"rule", fmt.Sprint(out.Number)}}); err != nil {
				return err
			}
			until := "until notifyctl sim rule rm " + fmt.Sprint(out.Number)
			if lasts > 0 {
				until = "for " + span(lasts)
			}
			s.p.note("%s of %s, %s", r.Do, first(r.Provider, "all providers"), until)
			return nil
		}),
	}
	f := c.Flags()
	f.StringVar(&r.Provider, "provider", "", "only this provider: apns, fcm, twilio, sendgrid, callback")
	f.StringVar(&r.Account, "account", "", "only this Twilio account")
	f.StringVar(&r.Pool, "pool", "", "only this SendGrid IP pool")
	f.StringVar(&r.Template, "template", "", "only this SendGrid template")
	f.StringVar(&r.Prefix, "prefix", "", "only addresses that begin so")
	f.StringVar(&r.ID, "id", "", "only this notification")
	f.Float64Var(&r.Rate, "rate", 0, "share of the matching requests, above 0 to 1; 0: all")
	f.Uint64Var(&r.Count, "count", 0, "most requests it is applied to; 0: no limit")
	f.DurationVar(&lasts, "for", 0, "how long it holds; 0: until it is removed")
	f.IntVar(&r.Status, "status", 0, "error, gateway: HTTP status")
	f.StringVar(&r.Code, "code", "", "error: the provider's code; receipt: what it says")
	f.DurationVar(&retryAfter, "retry-after", 0, "error, throttle: the Retry-After header")
	f.StringVar(&r.Location, "location", "", "redirect: where to")
	f.DurationVar(&median, "median", 0, "drip, latency: median")
	f.DurationVar(&p99, "p99", 0, "drip, latency: 99th percentile")
	complete(c, "provider", simProviders)
	return c
}

// written is a duration as the control API reads it; 0 is left out.
func written(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func (s *simClient) newRuleList() *cobra.Command {
	cols := columns[simRule]{head: "RULE  DO  PROVIDER  STATUS  CODE  RATE  ENDS  MATCHED  PICKED", row: func(r *simRule) []string {
		return []string{
			fmt.Sprint(r.Number), r.Do, first(r.Provider, "all"), mark(r.Status > 0, fmt.Sprint(r.Status)), r.Code,
			strconv.FormatFloat(r.Rate, 'g', -1, 64), s.p.whenever(r.Until), count(r.Matched), count(r.Picked),
		}
	}}
	return &cobra.Command{
		Use: "ls", Short: "List the rules in force, newest first", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: s.run(func(ctx context.Context, _ []string) error {
			var list []simRule
			if err := s.call(ctx, http.MethodGet, "/control/rules", nil, &list); err != nil {
				return err
			}
			if len(list) == 0 {
				s.p.note("none: the providers behave")
			}
			return s.p.printer().Print(list, cols.table(list))
		}),
	}
}
