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
		Use: "audit", Short: "Check that nothing accepted was lost; list who changed what, and why",
		Long: run.Long, Args: cobra.NoArgs, RunE: run.RunE,
	}
	c.Flags().AddFlagSet(run.Flags())
	var limit int
	cols := columns[api.AuditRow]{head: "SEQ  AT  ACTOR  ACTION  TARGET  SET  RESULT  COUNTS  REASON", row: func(r *api.AuditRow) []string {
		return []string{fmt.Sprint(r.Seq), p.timeText(r.At), r.Actor, r.Action, r.Target, string(r.Set), r.Result, countsOrEmpty(r.Counts), r.Reason}
	}}
	ls := &cobra.Command{
		Use: "ls", Short: "List the latest rows, oldest first", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, _ []string) error {
			rows, err := cl.Audit(ctx, nil, limit)
			if err != nil {
				return err
			}
			defer p.noteNextPage(len(rows), "")
			return p.printer().Print(rows, cols.table(api.FoldAudit(rows)))
		}),
	}
	ls.Flags().IntVar(&limit, "limit", 50, "how many at most")
	var expect string
	verify := &cobra.Command{
		Use: "verify", Short: "Check the hash chain of the audit log; exit 9 if it is broken", Args: cobra.NoArgs,
		Long: `verify reads every row and checks that its hash follows from the row before. Keep the
head it prints in another place: with --expect, verify then also notices rows that were
removed from the end.`,
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, _ []string) error {
			v, err := cl.VerifyAudit(ctx, expect)
			if err != nil {
				return err
			}
			if err := p.printer().Record(v, term.Table{{"rows", count(v.Rows)}, {"head", fmt.Sprintf("%d:%s", v.Rows, v.Head)}}); err != nil {
				return err
			}
			if v.Broken != 0 {
				return term.Exitf(term.ExitFindings, "the audit log is broken at row %d: %s", v.Broken, v.Why)
			}
			return nil
		}),
	}
	verify.Flags().StringVar(&expect, "expect", "", "SEQ:HASH, the head that an earlier verify printed; it must still be in the log")
	c.AddCommand(run, ls, verify)
	return c
}

func newAuditRun(p *program) *cobra.Command {
	var since string
	c := &cobra.Command{
		Use: "run", Short: "Check that accepted = terminal + pending; exit 9 on drift", Args: cobra.NoArgs,
		Long: `run makes the server count what it accepted. Each notification and trigger must have an
outcome, or something that leads to one: a record of the log, a timer, the spill buffer
or the queue of triggers. If it has neither, the server checks it again, and then counts
it as drift: run lists it with the reason, and exits 9. The server keeps working
meanwhile. The last line is

  audit accepted=… terminal=… pending=… drift=…`,
		RunE: func(c *cobra.Command, _ []string) error {
			var from time.Time
			if since != "" {
				d, err := time.ParseDuration(since)
				if err != nil || d <= 0 {
					return term.Usage("--since %q must be a duration above 0, such as 24h", since)
				}
				from = time.Now().Add(-d)
			}
			cl, err := p.client()
			if err != nil {
				return err
			}
			if !c.Flags().Changed("timeout") { // the server reads everything that was accepted, which may take long
				cl.HTTPClient.Timeout = 0
			}
			rep, err := cl.Conservation(c.Context(), from)
			if err != nil {
				return err
			}
			if err := printConservation(p, &rep); err != nil {
				return err
			}
			if rep.Drift > 0 {
				return term.Exitf(term.ExitFindings, "the audit found drift in %d notifications and triggers: %s", rep.Drift, keyValueText(rep.Classes))
			}
			return nil
		},
	}
	c.Flags().StringVar(&since, "since", "", "check only what was accepted this long ago or later, e.g. 24h; default: everything kept")
	return c
}

// printConservation prints a report. After the tables it prints one line for scripts. JSON and YAML
// do not need this line, because their fields contain the same figures.
func printConservation(p *program, rep *api.Conservation) error {
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
			fmt.Fprintln(p.out, "The list is not complete: there are more.")
		}
	}
	if len(rep.States) > 0 {
		fmt.Fprintf(p.out, "\nterminal  %s\n", keyValueText(rep.States))
	}
	if len(rep.Waiting) > 0 {
		fmt.Fprintf(p.out, "pending   %s\n", keyValueText(rep.Waiting))
	}
	if len(rep.Unanswered) > 0 {
		fmt.Fprintf(p.out, "no answer was sent because of a crash: %s\n", term.Clean(strings.Join(rep.Unanswered, " ")))
	}
	fmt.Fprintf(p.out, "read %d chunks, %d rows, %d triggers in %s; %d looked lost at first but were not\n",
		rep.Chunks, rep.Rows, rep.Triggers, time.Duration(rep.TookMS)*time.Millisecond, rep.Confirmed)
	_, err := fmt.Fprintf(p.out, "audit accepted=%d terminal=%d pending=%d drift=%d\n", rep.Accepted, rep.Terminal, rep.Pending, rep.Drift)
	return err
}

// keyValueText returns the counts as text, sorted by name: "a=1 b=2".
func keyValueText(counts map[string]int64) string {
	parts := make([]string, 0, len(counts))
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s=%d", term.Clean(k), counts[k]))
	}
	return strings.Join(parts, " ")
}
