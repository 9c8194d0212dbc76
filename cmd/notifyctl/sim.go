package main

import (
	"bytes"
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

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// simClient calls the control API of simulated providers.
type simClient struct {
	p       *program
	control string // --simulators
	base    string
	http    *http.Client
}

func newSim(p *program) *cobra.Command {
	s := &simClient{p: p}
	c := &cobra.Command{
		Use: "sim", Short: "Look into simulated providers and script their faults",
		Long: `sim talks to the control API of simulated providers: those of "notifyd dev", whose
context names them, or those that --simulators names.`,
	}
	c.PersistentFlags().StringVar(&s.control, "simulators", "", "control URL (default: the context's)")
	rule := &cobra.Command{Use: "rule", Short: "Script faults"}
	rule.AddCommand(s.newRuleAdd(), s.newRuleList(), &cobra.Command{
		Use: "rm RULE", Short: "Remove a rule", Args: term.Exact("the number of a rule"), Aliases: []string{"remove"},
		RunE: s.run(func(ctx context.Context, args []string) error {
			n, err := strconv.ParseUint(args[0], 10, 64)
			if err != nil {
				return term.Usage("%q is not the number of a rule", args[0])
			}
			if err := s.call(ctx, http.MethodDelete, fmt.Sprintf("/control/rules/%d", n), nil, nil); err != nil {
				return err
			}
			p.note("rule %d is removed", n)
			return nil
		}),
	})
	c.AddCommand(s.newSummary(), s.newInbox(), rule, s.newLedger(), s.newCallbacks(), &cobra.Command{
		Use: "reset", Short: "Remove every rule, and restore latencies and receipts", Args: cobra.NoArgs,
		RunE: s.run(func(ctx context.Context, _ []string) error {
			if err := s.call(ctx, http.MethodPost, "/control/reset", nil, nil); err != nil {
				return err
			}
			p.note("rules are removed; ledger and inbox are kept")
			return nil
		}),
	})
	return c
}

// run makes a RunE of what calls the simulators.
func (s *simClient) run(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
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
		s.base = strings.TrimSuffix(control, "/")
		s.http = &http.Client{Timeout: s.p.global.timeout, Transport: &http.Transport{DisableKeepAlives: true}}
		return do(c.Context(), args)
	}
}

func (s *simClient) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, body)
	if err != nil {
		return term.Usage("--simulators: %v", err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Msg: "the simulators did not answer", Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Msg: "the simulators' answer broke off", Err: err}
	}
	if resp.StatusCode >= 300 {
		return simError(resp, b)
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return badAnswer(err)
	}
	return nil
}

func simError(resp *http.Response, body []byte) error {
	var e struct{ Code, Field, Message string }
	if json.Unmarshal(body, &e) != nil || e.Message == "" {
		e.Message = "the simulators answered " + resp.Status
	}
	kind := notify.KindInternal
	switch resp.StatusCode {
	case http.StatusBadRequest:
		kind = notify.KindInvalid
	case http.StatusNotFound:
		kind = notify.KindNotFound
	}
	return &notify.Error{Kind: kind, Code: e.Code, Field: e.Field, Msg: e.Message}
}

// simTotals are the counts of the ledger.
type simTotals struct {
	Requests   uint64 `json:"requests"`
	Receivers  uint64 `json:"receivers"`
	Accepted   uint64 `json:"accepted"`
	Ambiguous  uint64 `json:"ambiguous"`
	Rejected   uint64 `json:"rejected"`
	IDs        uint64 `json:"ids"`
	Deliveries uint64 `json:"deliveries"`
	Duplicates uint64 `json:"duplicates"`
}

func (s *simClient) newSummary() *cobra.Command {
	return &cobra.Command{
		Use: "summary", Short: "Count what the providers were sent", Args: cobra.NoArgs,
		RunE: s.run(func(ctx context.Context, _ []string) error {
			var raw json.RawMessage
			if err := s.call(ctx, http.MethodGet, "/ledger/totals", nil, &raw); err != nil {
				return err
			}
			var sum struct {
				simTotals
				Providers map[string]simTotals `json:"providers"`
			}
			if err := json.Unmarshal(raw, &sum); err != nil {
				return badAnswer(err)
			}
			t := term.Table{{"PROVIDER", "REQUESTS", "RECEIVERS", "ACCEPTED", "AMBIGUOUS", "REJECTED", "IDS", "DELIVERIES", "DUPLICATES"}}
			row := func(name string, v simTotals) {
				t = append(t, []string{
					name, count(v.Requests), count(v.Receivers), count(v.Accepted), count(v.Ambiguous),
					count(v.Rejected), count(v.IDs), count(v.Deliveries), count(v.Duplicates),
				})
			}
			for _, name := range slices.Sorted(maps.Keys(sum.Providers)) {
				row(name, sum.Providers[name])
			}
			row("all", sum.simTotals)
			return s.p.printer().Print(raw, t)
		}),
	}
}

// simMessage is one message as its receiver would see it.
type simMessage struct {
	At       time.Time `json:"at"`
	Provider string    `json:"provider"`
	Channel  string    `json:"channel"`
	To       string    `json:"to"`
	Title    string    `json:"title"`
	Body     string    `json:"body"`
	ID       string    `json:"id"`
	Attempt  string    `json:"attempt,omitempty"`
	Status   int       `json:"status"`
	Outcome  string    `json:"outcome"`
	// Traceparent and Tracestate are the W3C headers it came with.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
}

func (s *simClient) newInbox() *cobra.Command {
	var channel, query string
	var limit int
	cols := columns[simMessage]{head: "AT  PROVIDER  TO  TITLE  BODY  STATUS  NOTIFICATION", row: func(m *simMessage) []string {
		return []string{s.p.when(m.At), m.Provider, brief(m.To, 24), brief(m.Title, 24), brief(m.Body, 40), fmt.Sprint(m.Status), m.ID}
	}}
	c := &cobra.Command{
		Use: "inbox", Short: "Show the last messages as their receivers would see them", Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return checkKinds(channel, "") },
		RunE: s.run(func(ctx context.Context, _ []string) error {
			var list []simMessage
			q := url.Values{"channel": {channel}, "q": {query}}
			if err := s.call(ctx, http.MethodGet, "/inbox.json?"+q.Encode(), nil, &list); err != nil {
				return err
			}
			list = list[:min(max(limit, 0), len(list))]
			return s.p.printer().Print(list, cols.table(list))
		}),
	}
	c.Flags().StringVar(&channel, "channel", "", "only this channel")
	c.Flags().StringVar(&query, "query", "", "only messages that hold this text")
	c.Flags().IntVar(&limit, "limit", 20, "how many at most")
	complete(c, "channel", channelNames())
	return c
}

// brief shortens a text for a table.
func brief(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// simDelivery is what the ledger knows of one id at one address.
type simDelivery struct {
	ID         string    `json:"id"`
	Provider   string    `json:"provider"`
	Address    string    `json:"address"`
	At         time.Time `json:"at"`
	Attempts   int       `json:"attempts"`
	Deliveries int       `json:"deliveries"`
	Status     int       `json:"status"`
}

func (s *simClient) newLedger() *cobra.Command {
	cols := columns[simDelivery]{head: "NOTIFICATION  PROVIDER  ADDRESS  AT  ATTEMPTS  DELIVERIES  STATUS", row: func(d *simDelivery) []string {
		return []string{d.ID, d.Provider, d.Address, s.p.when(d.At), fmt.Sprint(d.Attempts), fmt.Sprint(d.Deliveries), fmt.Sprint(d.Status)}
	}}
	return &cobra.Command{
		Use: "ledger ID", Short: "Show what the providers received of one notification", Args: term.Exact("a notification id"),
		RunE: s.run(func(ctx context.Context, args []string) error {
			var list []simDelivery
			err := s.call(ctx, http.MethodGet, "/ledger?id="+url.QueryEscape(args[0]), nil, &list)
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

// simCalls are the counts of calls of triggers.
type simCalls struct {
	Calls        int64   `json:"calls"`
	Triggers     int64   `json:"triggers"`
	Taken        int64   `json:"taken"`
	Duplicates   int64   `json:"duplicates"`
	BadSignature int64   `json:"bad_signature"`
	Early        int64   `json:"early"`
	Timed        int64   `json:"timed"`
	P50          int64   `json:"late_p50_us"`
	P99          int64   `json:"late_p99_us"`
	P999         int64   `json:"late_p999_us"`
	Max          int64   `json:"late_max_us"`
	Buckets      []int64 `json:"late_buckets"`
}

// simCall is one call as the receiver saw it.
type simCall struct {
	At        time.Time `json:"at"`
	ID        string    `json:"id"`
	Attempt   int       `json:"attempt"`
	Status    int       `json:"status"`
	Taken     bool      `json:"taken"`
	Signature string    `json:"signature"`
	Path      string    `json:"path"`
	Bytes     int       `json:"bytes"`
	// Traceparent and Tracestate are the W3C headers it came with.
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
	// Content is nil for all but the latest calls that the receiver got.
	Content *simContent `json:"content,omitempty"`
}

// simContent is what a call carried.
type simContent struct {
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Header http.Header `json:"header"`
	Body   string      `json:"body"`             // base64 if Binary
	Binary bool        `json:"binary,omitempty"` // not UTF-8
	Cut    bool        `json:"cut,omitempty"`    // not all of it
}

// print writes what a call carried, as it came, one header a line.
func (c *simCall) print(w io.Writer) {
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
		fmt.Fprintf(w, "  (a body that is no text, in base64)\n")
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

// lateNames are the buckets of lateness.
var lateNames = []string{"<1ms", "<2ms", "<5ms", "<10ms", "<20ms", "<50ms", "<100ms", "<200ms", "<500ms", "<1s", ">=1s"}

func (s *simClient) newCallbacks() *cobra.Command {
	return &cobra.Command{
		Use: "callbacks [TRIGGER]", Short: "Show the calls of triggers that the receiver got", Args: cobra.MaximumNArgs(1),
		Long: `callbacks counts the calls that the simulated receiver of triggers got, or lists those
of one trigger with their headers and bodies, which are kept of the latest 1,000 calls
and up to 4 KiB each. Where callback URLs carry due=<ms since 1970> it also says how late
the first calls came.`,
		Example: "  notifyctl sim callbacks\n  notifyctl sim callbacks trg_01K3ZV7Q0N8M2D4R6T8W0Y2A4C\n  notifyctl sim callbacks trg_01K3ZV7Q0N8M2D4R6T8W0Y2A4C -o jsonl",
		RunE: s.run(func(ctx context.Context, args []string) error {
			if len(args) == 1 {
				return s.callsOf(ctx, args[0])
			}
			var raw json.RawMessage
			if err := s.call(ctx, http.MethodGet, "/callbacks/totals", nil, &raw); err != nil {
				return err
			}
			var sum simCalls
			if err := json.Unmarshal(raw, &sum); err != nil {
				return badAnswer(err)
			}
			return s.p.printer().Print(raw, sum.table())
		}),
	}
}

func (s *simClient) callsOf(ctx context.Context, id string) error {
	var list []simCall
	if err := s.call(ctx, http.MethodGet, "/callbacks?id="+url.QueryEscape(id), nil, &list); err != nil {
		return err
	}
	cols := columns[simCall]{head: "AT  ATTEMPT  STATUS  TAKEN  SIGNATURE  PATH  BYTES", row: func(v *simCall) []string {
		return []string{s.p.clock(v.At), strconv.Itoa(v.Attempt), fmt.Sprint(v.Status), yesNo(v.Taken), v.Signature, v.Path, count(v.Bytes)}
	}}
	if err := s.p.printer().Print(list, cols.table(list)); err != nil || !s.p.human() {
		return err
	}
	for i := range list {
		list[i].print(s.p.out)
	}
	return nil
}

func (sum *simCalls) table() term.Table {
	t := term.Table{{"CALLS", "TRIGGERS", "TAKEN", "DUPLICATES", "BAD SIGNATURES", "EARLY"}, {
		count(sum.Calls), count(sum.Triggers), count(sum.Taken), count(sum.Duplicates), count(sum.BadSignature), count(sum.Early),
	}}
	if sum.Timed == 0 {
		return t
	}
	us := func(n int64) string { return span(time.Duration(n) * time.Microsecond) }
	t = append(t, []string{}, []string{"lateness", "p50 " + us(sum.P50), "p99 " + us(sum.P99), "p99.9 " + us(sum.P999), "max " + us(sum.Max)})
	for i, n := range sum.Buckets {
		if n > 0 && i < len(lateNames) {
			t = append(t, []string{lateNames[i], count(n), strings.Repeat("#", int(1+39*n/sum.Timed))})
		}
	}
	return t
}
