package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newLane(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "lane", Short: "List lanes, pause and resume them",
		Long: `A lane is a channel's workers: push, sms, email, and each with -bulk. A paused lane
claims nothing and calls no provider. Calls in flight end, and the log keeps the rest in
order. Notifications with a deadline expire at it. A pause survives restarts, until
resume.`,
	}
	cols := columns[api.Lane]{head: "LANE  STATE  SINCE  BY  LAG  IN FLIGHT  WHY", row: func(l *api.Lane) []string {
		state, why := "open", l.Stands
		if l.Stands != "" {
			state = "stands"
		}
		if l.Paused {
			state, why = "paused", l.Reason
		}
		return []string{l.Name, state, p.optionalTimeText(l.Since), l.By, count(l.Lag), count(l.InFlight), why}
	}}
	c.AddCommand(newListing(p, &cobra.Command{Short: "List lanes"}, &listing[api.Lane]{columns: cols, get: wholeList((*api.Client).Lanes), whole: true}))
	set := func(verb, short string, paused bool) *cobra.Command {
		one := &cobra.Command{Use: verb + " LANE", Short: short, Args: term.Exact("a lane, such as push-bulk")}
		reason := reasonFlag(one)
		one.RunE = func(c *cobra.Command, args []string) error {
			return confirmAndChange(p, changes, verb+" lane "+args[0], *reason, func(cl *api.Client) (api.Lane, error) {
				return cl.SetLane(c.Context(), args[0], paused, *reason)
			}, func(l *api.Lane) error { return p.printer().Print(l, cols.table([]api.Lane{*l})) })
		}
		return one
	}
	c.AddCommand(set("pause", "Pause a lane until it is resumed", true), set("resume", "Continue a paused lane", false))
	return c
}

func newRates(p *program) *cobra.Command {
	type line struct { // a line of the table: a rate of one process, or of all processes together
		api.Rate
		process string
		none    string // why there is no rate: the process is missing, or did nothing
	}
	cols := columns[line]{head: "WHAT  ACCEPTED/S  REACHED/S  FAILED/S  OTHER/S", row: func(r *line) []string {
		if r.none != "" {
			return []string{r.none, "", "", "", ""}
		}
		n := func(v float64) string { return fmt.Sprintf("%.1f", v) }
		return []string{r.What, n(r.Accepted), n(r.Reached), n(r.Failed), n(r.Other)}
	}}
	return &cobra.Command{
		Use: "rates", Short: "Show rates per second, and the lateness of timers and triggers", Args: cobra.NoArgs,
		Long: `rates shows the last minute: receivers and triggers accepted, reached and failed per
second, and the lateness of timers and triggers. With several processes it shows the
total, then the figures that each process published within the last seconds. It needs
the scope observe. /metrics has more figures.`,
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, _ []string) error {
			r, err := cl.Rates(ctx)
			if err != nil {
				return err
			}
			var lines []line
			all := ""
			if len(r.Processes) > 1 {
				all = "all"
			}
			for _, one := range r.Rates {
				lines = append(lines, line{Rate: one, process: all})
			}
			var absent []api.Process
			for i := range r.Processes {
				one := &r.Processes[i]
				if one.Missing() {
					absent = append(absent, one.Process)
				}
				did := line{process: one.Name, none: one.State}
				for _, rate := range one.Rates {
					if rate != (api.Rate{What: rate.What}) {
						did.Rate, did.none = rate, ""
						lines = append(lines, did)
					}
				}
				if did.none != "" {
					lines = append(lines, did)
				}
			}
			if all == "" { // there is only one process
				lines = lines[:len(r.Rates)]
			}
			cols.addProcess(lines, func(l *line) string { return l.process })
			if err := p.printer().Print(r, cols.table(lines)); err != nil {
				return err
			}
			for _, l := range r.Late {
				if l.N > 0 {
					p.note("%s %ss: half were at most %s late, 99%% at most %s", count(int(l.N)), l.What, secondsText(l.P50), secondsText(l.P99))
				}
			}
			p.noteMissing(absent)
			return nil
		}),
	}
}

func secondsText(s float64) string { return time.Duration(s * float64(time.Second)).String() }

// deferredCells returns the cells of a table row: how many receivers are deferred, how long ago the
// oldest of them was accepted, when the next attempt is, and why.
func deferredCells(l *api.GroupLag, now time.Time) []string {
	if l.Deferred == nil {
		return []string{"?", "", "", ""}
	}
	sum, oldest, next, why := int64(0), now, time.Time{}, []string{}
	for _, d := range l.Deferred {
		sum += d.Receivers
		if d.Oldest.Before(oldest) {
			oldest = d.Oldest
		}
		if next.IsZero() || d.Next.Before(next) {
			next = d.Next
		}
		if len(why) < 3 {
			why = append(why, d.Reason+" "+count(d.Receivers))
		}
	}
	if sum == 0 {
		return []string{"0", "", "", ""}
	}
	if n := len(l.Deferred) - len(why); n > 0 {
		why = append(why, fmt.Sprintf("and %d more reasons", n))
	}
	return []string{count(sum), span(now.Sub(oldest)), "in " + span(max(next.Sub(now), 0)), strings.Join(why, ", ")}
}

func newLag(p *program) *cobra.Command {
	cols := columns[api.GroupLag]{head: "GROUP  TOPIC  BEHIND  IN FLIGHT  PAUSED  DEFERRED  OLDEST  NEXT  WHY", row: func(l *api.GroupLag) []string {
		paused := fmt.Sprint(l.Paused)
		if l.LanePaused {
			paused = "lane"
		}
		return append([]string{l.Group, l.Topic, count(l.Lag), count(l.InFlight), paused}, deferredCells(l, p.now())...)
	}}
	return &cobra.Command{
		Use: "lag", Short: "Show the lag of each consumer group (scope operate)", Args: cobra.NoArgs,
		Long: `lag shows how far each consumer group is behind its topic, and what is deferred.

BEHIND and IN FLIGHT are records of the log. DEFERRED is receivers that wait in the
timer store for a later attempt: a retry, quiet hours, an open circuit, a blocked
account. When their time comes, they return to the topic. With several processes,
PARTITIONS OF shows which process works on how many of the topic's partitions. A ? means
that the process that answered does not count deferred receivers: ask a process with
the role operator.`,
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, _ []string) error {
			ls, err := cl.Lag(ctx)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(ls, func(l api.GroupLag) bool { return l.Members != nil }) {
				cols.head += "  PARTITIONS OF"
				row := cols.row
				cols.row = func(l *api.GroupLag) []string {
					var has []string
					for _, m := range l.Members {
						has = append(has, fmt.Sprintf("%s %d", m.Process, m.Partitions))
					}
					return append(row(l), strings.Join(has, ", "))
				}
			}
			return p.printer().Print(ls, cols.table(ls))
		}),
	}
}
