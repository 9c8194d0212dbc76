package main

import (
	"context"
	"encoding/json"
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

	"github.com/notifyd/notifyd/pkg/term"
)

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
