package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/load"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/simulator"
	"github.com/notifyd/notifyd/pkg/term"
)

// simulators connects the subcommands of "notifyctl sim" to the simulated providers.
type simulators struct {
	p       *program
	control string // value of --simulators
	*load.Simulators
}

func newSim(p *program) *cobra.Command {
	s := &simulators{p: p}
	c := &cobra.Command{
		Use: "sim", Short: "Inspect simulated providers and script their faults",
		Long: `sim uses the control API of simulated providers: those of "notifyd dev", which the
context names, or those of --simulators.`,
	}
	c.PersistentFlags().StringVar(&s.control, "simulators", "", "control URL of the simulated providers (default: the context's)")
	rule := &cobra.Command{Use: "rule", Short: "Add, list and remove scripted faults"}
	rule.AddCommand(s.newRuleAdd(), s.newRuleList(), &cobra.Command{
		Use: "rm RULE", Short: "Remove a rule", Args: term.Exact("the number of a rule"), Aliases: []string{"remove"},
		RunE: s.run(func(ctx context.Context, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return term.Usage("%q is not the number of a rule", args[0])
			}
			if err := s.Call(ctx, http.MethodDelete, fmt.Sprintf("/control/rules/%d", n), nil, nil); err != nil {
				return err
			}
			p.note("rule %d is removed", n)
			return nil
		}),
	})
	c.AddCommand(s.newSummary(), s.newInbox(), rule, s.newLedger(), s.newCallbacks(), &cobra.Command{
		Use: "reset", Short: "Remove every rule, and reset latencies and receipts", Args: cobra.NoArgs,
		RunE: s.run(func(ctx context.Context, _ []string) error {
			if err := s.Call(ctx, http.MethodPost, "/control/reset", nil, nil); err != nil {
				return err
			}
			p.note("all rules are removed; ledger and inbox are kept")
			return nil
		}),
	})
	return c
}

// run returns a function for cobra.Command.RunE. That function connects to the simulators and then
// calls fn.
func (s *simulators) run(fn func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		control := s.control
		if control == "" {
			t, err := s.p.target()
			if err != nil {
				return err
			}
			control = t.ctx.Simulators
		}
		if control == "" {
			return &term.Error{Exit: term.ExitUsage, Err: errors.New("the context names no simulated providers"), Next: []string{"notifyctl sim --simulators URL ..."}}
		}
		list, err := load.ParseSimulators(control, &http.Client{Timeout: s.p.global.timeout, Transport: &http.Transport{DisableKeepAlives: true}})
		if err != nil {
			return err
		}
		if len(list) > 1 {
			return &term.Error{Exit: term.ExitUsage, Err: errors.New("the context names several simulators, choose one: " + control), Next: []string{"notifyctl sim --simulators " + list[0].URL + " ..."}}
		}
		s.Simulators = list[0]
		return fn(c.Context(), args)
	}
}

func (s *simulators) newSummary() *cobra.Command {
	return &cobra.Command{
		Use: "summary", Short: "Count the requests and messages that the providers received", Args: cobra.NoArgs,
		RunE: s.run(func(ctx context.Context, _ []string) error {
			var raw json.RawMessage
			if err := s.Call(ctx, http.MethodGet, "/ledger/totals", nil, &raw); err != nil {
				return err
			}
			var sum simulator.Summary
			if err := json.Unmarshal(raw, &sum); err != nil {
				return badAnswer(err)
			}
			t := term.Table{{"PROVIDER", "REQUESTS", "RECEIVERS", "ACCEPTED", "AMBIGUOUS", "REJECTED", "IDS", "DELIVERIES", "DUPLICATES"}}
			row := func(name string, v simulator.Totals) {
				t = append(t, []string{
					name, count(v.Requests), count(v.Receivers), count(v.Accepted), count(v.Ambiguous),
					count(v.Rejected), count(v.IDs), count(v.Deliveries), count(v.Duplicates),
				})
			}
			for _, name := range slices.Sorted(maps.Keys(sum.Providers)) {
				row(name, sum.Providers[name])
			}
			row("all", sum.Totals)
			return s.p.printer().Print(raw, t)
		}),
	}
}

func (s *simulators) newInbox() *cobra.Command {
	var channel, query string
	var limit int
	cols := columns[simulator.Message]{head: "AT  PROVIDER  TO  TITLE  BODY  STATUS  NOTIFICATION", row: func(m *simulator.Message) []string {
		return []string{s.p.timeText(m.At), m.Provider.String(), shorten(m.To, 24), shorten(m.Title, 24), shorten(m.Body, 40), fmt.Sprint(m.Status), m.ID}
	}}
	c := &cobra.Command{
		Use: "inbox", Short: "Show the latest messages as their receivers would see them", Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return checkKinds(channel, "") },
		RunE: s.run(func(ctx context.Context, _ []string) error {
			var list []simulator.Message
			q := url.Values{"channel": {channel}, "q": {query}}
			if err := s.Call(ctx, http.MethodGet, "/inbox.json?"+q.Encode(), nil, &list); err != nil {
				return err
			}
			list = list[:min(max(limit, 0), len(list))]
			return s.p.printer().Print(list, cols.table(list))
		}),
	}
	c.Flags().StringVar(&channel, "channel", "", "only this channel")
	c.Flags().StringVar(&query, "query", "", "only messages that contain this text")
	c.Flags().IntVar(&limit, "limit", 20, "how many at most")
	completeFlag(c, "channel", channelNames())
	return c
}

// shorten cuts a text to at most limit characters, so that it fits into a table.
func shorten(s string, limit int) string {
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

func (s *simulators) newLedger() *cobra.Command {
	cols := columns[simulator.Delivery]{head: "NOTIFICATION  PROVIDER  ADDRESS  AT  ATTEMPTS  DELIVERIES  STATUS", row: func(d *simulator.Delivery) []string {
		return []string{d.ID, d.Provider.String(), d.Address, s.p.timeText(d.At), fmt.Sprint(d.Attempts), fmt.Sprint(d.Deliveries), fmt.Sprint(d.Status)}
	}}
	return &cobra.Command{
		Use: "ledger ID", Short: "Show what the providers received of one notification", Args: term.Exact("a notification id"),
		RunE: s.run(func(ctx context.Context, args []string) error {
			var list []simulator.Delivery
			err := s.Call(ctx, http.MethodGet, "/ledger?id="+url.QueryEscape(args[0]), nil, &list)
			switch {
			case notify.KindOf(err) == notify.KindNotFound:
				return term.Exitf(term.ExitNotFound, "no simulated provider has received %s", args[0])
			case err != nil:
				return err
			}
			return s.p.printer().Print(list, cols.table(list))
		}),
	}
}

// printCall prints the headers and the body of a call unchanged, one header per line.
func printCall(w io.Writer, c *simulator.Call) {
	if c.Content == nil {
		fmt.Fprintf(w, "\nattempt %d: its headers and body are no longer kept\n", c.Attempt)
		return
	}
	fmt.Fprintf(w, "\nattempt %d: %s %s\n", c.Attempt, c.Content.Method, term.Clean(c.Content.URL))
	for _, name := range slices.Sorted(maps.Keys(c.Content.Header)) {
		for _, v := range c.Content.Header[name] {
			fmt.Fprintf(w, "  %s: %s\n", term.Clean(name), term.Clean(v))
		}
	}
	switch {
	case c.Content.Binary:
		fmt.Fprintf(w, "  (a binary body, in base64)\n")
	case c.Content.Body == "":
		fmt.Fprintf(w, "  (no body)\n")
	}
	for line := range strings.Lines(c.Content.Body) {
		fmt.Fprintf(w, "  %s\n", term.Clean(strings.TrimSuffix(line, "\n")))
	}
	if c.Content.Cut {
		fmt.Fprintf(w, "  (%s bytes; the rest is not kept)\n", count(c.Bytes))
	}
}

// lateNames are the names of the buckets in which lateness is counted.
var lateNames = []string{"<1ms", "<2ms", "<5ms", "<10ms", "<20ms", "<50ms", "<100ms", "<200ms", "<500ms", "<1s", ">=1s"}

func (s *simulators) newCallbacks() *cobra.Command {
	return &cobra.Command{
		Use: "callbacks [TRIGGER]", Short: "Show the callbacks that the simulated service received", Args: cobra.MaximumNArgs(1),
		Long: `callbacks counts the calls of triggers that the simulated service received. With a
trigger it lists the calls of that trigger with their headers and bodies; these are kept
for the latest 1,000 calls, up to 4 KiB each. If callback URLs contain
due=<ms since 1970>, it also shows how late the first calls came.`,
		Example: "  notifyctl sim callbacks\n  notifyctl sim callbacks trg_01K3ZV7Q0N8M2D4R6T8W0Y2A4C\n  notifyctl sim callbacks trg_01K3ZV7Q0N8M2D4R6T8W0Y2A4C -o jsonl",
		RunE: s.run(func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				return s.callsOf(ctx, args[0])
			}
			var raw json.RawMessage
			if err := s.Call(ctx, http.MethodGet, "/callbacks/totals", nil, &raw); err != nil {
				return err
			}
			var sum simulator.CallTotals
			if err := json.Unmarshal(raw, &sum); err != nil {
				return badAnswer(err)
			}
			return s.p.printer().Print(raw, callTotals(&sum))
		}),
	}
}

func (s *simulators) callsOf(ctx context.Context, id string) error {
	var list []simulator.Call
	if err := s.Call(ctx, http.MethodGet, "/callbacks?id="+url.QueryEscape(id), nil, &list); err != nil {
		return err
	}
	cols := columns[simulator.Call]{head: "AT  ATTEMPT  STATUS  TAKEN  SIGNATURE  PATH  BYTES", row: func(v *simulator.Call) []string {
		return []string{s.p.localTimeText(v.At), strconv.Itoa(v.Attempt), fmt.Sprint(v.Status), yesNo(v.Taken), string(v.Signature), v.Path, count(v.Bytes)}
	}}
	if err := s.p.printer().Print(list, cols.table(list)); err != nil || !s.p.printsForPeople() {
		return err
	}
	for i := range list {
		printCall(s.p.out, &list[i])
	}
	return nil
}

func callTotals(sum *simulator.CallTotals) term.Table {
	t := term.Table{{"CALLS", "TRIGGERS", "TAKEN", "DUPLICATES", "BAD SIGNATURES", "EARLY"}, {
		count(sum.Calls), count(sum.Triggers), count(sum.Taken), count(sum.Duplicates), count(sum.BadSignature), count(sum.Early),
	}}
	if sum.Timed == 0 {
		return t
	}
	us := func(n int64) string { return span(time.Duration(n) * time.Microsecond) }
	t = append(t, []string{}, []string{"lateness", "p50 " + us(sum.LateP50us), "p99 " + us(sum.LateP99us), "p99.9 " + us(sum.LateP999us), "max " + us(sum.LateMaxus)})
	for i, n := range sum.LateBuckets {
		if n > 0 && i < len(lateNames) {
			t = append(t, []string{lateNames[i], count(n), strings.Repeat("#", int(1+39*n/sum.Timed))})
		}
	}
	return t
}

var (
	simProviders = []string{"apns", "fcm", "twilio", "sendgrid", "callback"}
	simActions   = []string{"error", "outage", "throttle", "unauthorized", "gateway", "reset", "reset_stream", "drop", "hang", "drip", "latency", "receipt", "redirect", "huge", "refuse", "go_away", "close"}
)

func (s *simulators) newRuleAdd() *cobra.Command {
	var r simulator.Rule
	var provider string
	c := &cobra.Command{
		Use: "add ACTION", Short: "Add a rule; newer rules win", Args: term.Exact("an action"),
		Long: `add makes the providers misbehave. Actions: error (with --status or --code), outage
(503), throttle (429), unauthorized, gateway (the message is accepted, but the answer is
502 or --status), reset, reset_stream, drop (the connection breaks after or before the
message is accepted), hang, drip, latency (--median), receipt (accepted, and the later
receipt says --code).

The provider callback, which receives triggers, also has redirect (--location) and huge
(an answer of 64 MiB). apns also has refuse (the stream is refused, nothing is
accepted), go_away (the connection ends after the answer) and close (the connection is
closed in order; the message is accepted but not answered).`,
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
			s.p.note("%s of %s, %s", string(r.Do), cmp.Or(r.Provider.String(), "all providers"), until)
			return nil
		}),
	}
	f := c.Flags()
	f.StringVar(&provider, "provider", "", "only this provider: apns, fcm, twilio, sendgrid, callback")
	f.StringVar(&r.Account, "account", "", "only this Twilio account")
	f.StringVar(&r.Pool, "pool", "", "only this SendGrid IP pool")
	f.StringVar(&r.Template, "template", "", "only this SendGrid template")
	f.StringVar(&r.Prefix, "prefix", "", "only addresses with this prefix")
	f.StringVar(&r.ID, "id", "", "only this notification")
	f.Float64Var(&r.Rate, "rate", 0, "share of the matching requests, above 0 and up to 1; 0: all")
	f.Uint64Var(&r.Count, "count", 0, "apply the rule to this many requests at most; 0: no limit")
	f.DurationVar((*time.Duration)(&r.For), "for", 0, "how long the rule holds; 0: until it is removed")
	f.IntVar(&r.Status, "status", 0, "error, gateway: HTTP status")
	f.StringVar(&r.Code, "code", "", "error: the provider's code; receipt: the code in the receipt")
	f.DurationVar((*time.Duration)(&r.RetryAfter), "retry-after", 0, "error, throttle: the Retry-After header")
	f.StringVar(&r.Location, "location", "", "redirect: URL to redirect to")
	f.DurationVar((*time.Duration)(&r.Latency.Median), "median", 0, "drip, latency: median")
	f.DurationVar((*time.Duration)(&r.Latency.P99), "p99", 0, "drip, latency: 99th percentile")
	completeFlag(c, "provider", simProviders)
	return c
}

func (s *simulators) newRuleList() *cobra.Command {
	cols := columns[simulator.Rule]{head: "RULE  DO  PROVIDER  STATUS  CODE  RATE  ENDS  MATCHED  PICKED", row: func(r *simulator.Rule) []string {
		return []string{
			fmt.Sprint(r.Number), string(r.Do), cmp.Or(r.Provider.String(), "all"), textIf(r.Status > 0, fmt.Sprint(r.Status)), r.Code,
			strconv.FormatFloat(r.Rate, 'g', -1, 64), s.p.timeText(r.Until), count(r.Matched), count(r.Picked),
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
				s.p.note("none: the providers work normally")
			}
			return s.p.printer().Print(list, cols.table(list))
		}),
	}
}
