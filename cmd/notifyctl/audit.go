package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newAudit(p *program) *cobra.Command {
	run := newAuditRun(p)
	c := &cobra.Command{
		Use: "audit", Short: "Whether all that was accepted ended or is on its way; who changed what, and why",
		Long: run.Long, Args: cobra.NoArgs, RunE: run.RunE,
	}
	c.Flags().AddFlagSet(run.Flags())
	var limit int
	cols := columns[api.AuditRow]{head: "SEQ  AT  ACTOR  ACTION  TARGET  SET  RESULT  COUNTS  REASON", row: func(r *api.AuditRow) []string {
		return []string{fmt.Sprint(r.Seq), p.when(r.At), r.Actor, r.Action, r.Target, string(r.Set), r.Result, skipped(r.Counts), r.Reason}
	}}
	ls := &cobra.Command{
		Use: "ls", Short: "List the latest rows, oldest first", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			rows, err := cl.Audit(ctx, nil, limit)
			if err != nil {
				return err
			}
			defer p.more(len(rows), "")
			return p.printer().Print(rows, cols.table(api.FoldAudit(rows)))
		}),
	}
	ls.Flags().IntVar(&limit, "limit", 50, "how many at most")
	var expect string
	verify := &cobra.Command{
		Use: "verify", Short: "Check the chain of the audit log; exit 9 where it is broken", Args: cobra.NoArgs,
		Long: `verify reads every row and checks that each follows the one before. Keep the head it
prints elsewhere: --expect then notices that the end was cut off.`,
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			v, err := cl.VerifyAudit(ctx, expect)
			if err != nil {
				return err
			}
			if err := p.printer().Record(v, term.Table{{"rows", count(v.Rows)}, {"head", fmt.Sprintf("%d:%s", v.Rows, v.Head)}}); err != nil {
				return err
			}
			if v.Broken != 0 {
				return term.Exitf(term.ExitFindings, "broken at row %d: %s", v.Broken, v.Why)
			}
			return nil
		}),
	}
	verify.Flags().StringVar(&expect, "expect", "", "SEQ:HASH, the head of an earlier check, which must still be there")
	c.AddCommand(run, ls, verify)
	return c
}

func newAuditRun(p *program) *cobra.Command {
	var since string
	c := &cobra.Command{
		Use: "run", Short: "Add up accepted = terminal + pending; exit 9 on drift", Args: cobra.NoArgs,
		Long: `run makes the server add up, while it works, what it accepted against outcomes and
against what leads on to one: a record of the log, a timer, the spill buffer, the queue of
triggers. What has neither was looked at again, and is drift: it is listed, with what is
wrong, and the exit code is 9. The last line is

  audit accepted=… terminal=… pending=… drift=…`,
		RunE: func(c *cobra.Command, _ []string) error {
			var from time.Time
			if since != "" {
				d, err := time.ParseDuration(since)
				if err != nil || d <= 0 {
					return term.Usage("--since: a duration above 0, e.g. 24h")
				}
				from = time.Now().Add(-d)
			}
			cl, err := p.client()
			if err != nil {
				return err
			}
			if !c.Flags().Changed("timeout") { // it reads all that was accepted
				cl.HTTPClient.Timeout = 0
			}
			rep, err := cl.Conservation(c.Context(), from)
			if err != nil {
				return err
			}
			if err := conservation(p, &rep); err != nil {
				return err
			}
			if rep.Drift > 0 {
				return term.Exitf(term.ExitFindings, "drift of %d: %s", rep.Drift, tally(rep.Classes))
			}
			return nil
		},
	}
	c.Flags().StringVar(&since, "since", "", "what was accepted this long ago and later, e.g. 24h; default: all that is kept")
	return c
}

// conservation prints a report. The line for scripts stands behind a table, and
// not in what a program reads.
func conservation(p *program, rep *api.Conservation) error {
	pr := p.printer()
	if pr.Format != "table" || pr.JQ != "" {
		return pr.Print(rep, nil)
	}
	groups := term.Table{{"HOUR", "CALLER", "CHANNEL", "ACCEPTED", "TERMINAL", "PENDING", "LOST"}}
	for i := range rep.Groups {
		g := &rep.Groups[i]
		groups = append(groups, []string{g.Hour.UTC().Format("2006-01-02T15Z"), g.Caller, g.Channel, fmt.Sprint(g.Accepted), fmt.Sprint(g.Terminal), fmt.Sprint(g.Pending), fmt.Sprint(g.Lost)})
	}
	if err := pr.Print(rep, groups); err != nil {
		return err
	}
	if len(rep.Findings) > 0 {
		fmt.Fprintln(p.out)
		drift := term.Table{{"DRIFT", "ID", "CALLER", "STATE", "WHY"}}
		for i := range rep.Findings {
			f := &rep.Findings[i]
			drift = append(drift, []string{f.Class, f.ID, f.Caller, f.State, f.Detail})
		}
		if err := pr.Print(rep, drift); err != nil {
			return err
		}
		if rep.Truncated {
			fmt.Fprintln(p.out, "There are more than are listed.")
		}
	}
	if len(rep.States) > 0 {
		fmt.Fprintf(p.out, "\nterminal  %s\n", tally(rep.States))
	}
	if len(rep.Waiting) > 0 {
		fmt.Fprintf(p.out, "pending   %s\n", tally(rep.Waiting))
	}
	if len(rep.Unanswered) > 0 {
		fmt.Fprintf(p.out, "not answered, cut by a crash: %s\n", term.Clean(strings.Join(rep.Unanswered, " ")))
	}
	fmt.Fprintf(p.out, "read %d chunks, %d rows, %d triggers in %s; %d looked lost at first and were not\n",
		rep.Chunks, rep.Rows, rep.Triggers, time.Duration(rep.TookMS)*time.Millisecond, rep.Confirmed)
	_, err := fmt.Fprintf(p.out, "audit accepted=%d terminal=%d pending=%d drift=%d\n", rep.Accepted, rep.Terminal, rep.Pending, rep.Drift)
	return err
}

// tally is "a=1 b=2", by name.
func tally(counts map[string]int64) string {
	parts := make([]string, 0, len(counts))
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s=%d", term.Clean(k), counts[k]))
	}
	return strings.Join(parts, " ")
}
