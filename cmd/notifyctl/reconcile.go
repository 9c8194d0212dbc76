package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newReconcile(p *program) *cobra.Command {
	var out, since string
	c := &cobra.Command{
		Use: "reconcile", Short: "Find notifications and triggers that nothing leads to any more", Args: cobra.NoArgs,
		Long: `reconcile reads every notification that is kept and every trigger that is not over, and
what should lead to the end of each. It changes nothing; exit 9 when it found something.
apply has a job repair what a report lists. The server repairs triggers every hour by
itself; notifications it only audits.

                    of notifications                         of triggers
  missing           its timer is gone: for people            no index row: it is written
  late              its timer is due: a scheduler must run   due long ago: enqueued anew
  stuck             put off, nothing leads on: handed on again
  orphan                                                     never answered: dropped when due
  claim_expired     a worker left it: resumed                a dispatcher died: enqueued anew
  open_bucket       a past minute still holds timers: a scheduler must run
  status_alone      rows of what nobody accepted: for people
  record_alone      its record was passed, no outcome: claimed, and resumed
  dead_letter_owed                                           triggers-dlq may not know: written
  unreadable                                                 another release, or damaged: for people

What is resumed goes by the policy of what is ambiguous: pushes, and otp, alert and
transactional everywhere, are sent again under the id the provider knows; marketing and
digest by SMS or mail become UNKNOWN. See also: notifyctl audit, notifyctl why.`,
		Example: `  notifyctl reconcile --report-out report.json; notifyctl reconcile apply --report report.json`,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := p.client()
			if err != nil {
				return err
			}
			_, rep, err := reconcile(c, cl, since)
			if err != nil {
				return err
			}
			if err := saveReport(&rep, out); err != nil {
				return err
			}
			return findings(p, &rep)
		},
	}
	c.Flags().StringVar(&out, "report-out", "", "write the report to a file, for apply")
	c.Flags().StringVar(&since, "since", "", "only notifications accepted this long ago and later, e.g. 24h; default: all that are kept")
	c.AddCommand(newReconcileApply(p))
	return c
}

// reconcile has the server look; what it finds is a plan, which a job repairs.
func reconcile(c *cobra.Command, cl *api.Client, since string) (plan api.Plan, rep api.ReconcileReport, err error) {
	spec := api.JobSpec{Kind: "reconcile"}
	if since != "" {
		d, err := time.ParseDuration(since)
		if err != nil || d <= 0 {
			return plan, rep, term.Usage("--since: a duration above 0, e.g. 24h")
		}
		spec.Filter.Since = time.Now().Add(-d).UnixMilli()
	}
	if !c.Flags().Changed("timeout") { // it reads all that was accepted
		cl.HTTPClient.Timeout = 0
	}
	if plan, err = cl.Plan(c.Context(), spec); err != nil {
		return plan, rep, err
	}
	err = json.Unmarshal(plan.Reconcile, &rep)
	return plan, rep, err
}

func saveReport(rep *api.ReconcileReport, name string) error {
	if name == "" {
		return nil
	}
	b, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o600)
}

// findings prints a report, and is an error when it holds any.
func findings(p *program, rep *api.ReconcileReport) error {
	if err := p.printer().Print(rep, listFindings(p, rep)); err != nil {
		return err
	}
	p.note("%s notifications, and %s rows and %s index rows of triggers, read in %s", count(int(rep.Notifications)), count(rep.Rows), count(rep.Index), span(rep.Took))
	if len(rep.Findings) == 0 {
		return nil
	}
	return term.Exitf(term.ExitFindings, "found %s", sums(rep.Counts))
}

func listFindings(p *program, rep *api.ReconcileReport) term.Table {
	t := term.Table{{"CLASS", "ID", "CALLER", "STATE", "NEXT", "DETAIL"}}
	for i := range rep.Findings {
		f := &rep.Findings[i]
		next := ""
		if f.NextAt != 0 {
			next = p.when(time.UnixMilli(f.NextAt))
		}
		what := f.ID
		if what == "" {
			what = fmt.Sprintf("shard %d, %s", f.Shard, time.UnixMilli(f.Minute*60_000).UTC().Format("2006-01-02 15:04"))
		}
		t = append(t, []string{f.Class, what, f.Caller, f.State, next, f.Detail})
	}
	if rep.Truncated {
		t = append(t, []string{"...", "there are more than are listed"})
	}
	return t
}

// sums writes counts by class.
func sums(counts map[string]int) string {
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(counts)) {
		if counts[class] > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", count(counts[class]), class))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func newReconcileApply(p *program) *cobra.Command {
	var file, reason, since string
	var detach bool
	c := &cobra.Command{
		Use: "apply", Short: "Repair what a report lists", Args: cobra.NoArgs,
		Long: `apply has a job repair what a report lists: that of --report, or one it makes now. A row that
has changed since is left alone; a second apply changes nothing. A report is good for
15 minutes. One such job runs at a time. notifyctl job report says what became of each.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return runReconcileApply(c, p, file, since, detach, reason)
		},
	}
	c.Flags().StringVar(&file, "report", "", "the report that reconcile --report-out wrote; default: a new one")
	c.Flags().StringVar(&since, "since", "", "of a new report: only notifications accepted this long ago and later")
	c.MarkFlagsMutuallyExclusive("report", "since")
	c.Flags().BoolVar(&detach, "detach", false, "do not wait for the job")
	c.Flags().StringVar(&reason, "reason", "", "why; kept in the audit log")
	return c
}

func runReconcileApply(c *cobra.Command, p *program, file, since string, detach bool, reason string) error {
	ctx := c.Context()
	t, cl, err := p.operator(reason)
	if err != nil {
		return err
	}
	var rep api.ReconcileReport
	var raw json.RawMessage
	if file == "" {
		var plan api.Plan
		plan, rep, err = reconcile(c, cl, since)
		raw = plan.Reconcile
	} else {
		if raw, err = os.ReadFile(file); err == nil && (json.Unmarshal(raw, &rep) != nil || rep.Digest == "") {
			return term.Usage("--report %s is no report of notifyctl reconcile", file)
		}
	}
	if err != nil {
		return err
	}
	p.note("found %s", sums(rep.Counts))
	if len(rep.Findings) > 0 {
		if err := p.confirm(t, changes, "repair "+sums(rep.Counts)); err != nil {
			return err
		}
	}
	job, err := begin(ctx, cl, api.JobRequest{Spec: api.JobSpec{Kind: "reconcile", Report: rep.Digest}, Digest: rep.Digest, Report: raw})
	if err != nil {
		return err
	}
	return follow(ctx, p, cl, job, detach, "")
}
