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
		Use: "reconcile", Short: "Find notifications and triggers that are stuck or lost, and repair them", Args: cobra.NoArgs,
		Long: `reconcile reads every kept notification and every unfinished trigger, and checks that
something (a record, a timer, a row) still leads to its end. It changes nothing, and
exits 9 if it found something. "reconcile apply" starts a job that repairs what a report
lists. The server repairs triggers every hour by itself; it does not repair
notifications by itself.

                    notifications                         triggers
  missing           timer is gone: repair by hand         no index row: row is written
  late              timer is due: start a scheduler       due long ago: enqueued again
  stuck             deferred, no timer: handed on again
  orphan                                                  never answered: dropped if due
  claim_expired     worker is gone: resumed               dispatcher died: enqueued
  open_bucket       past minute with timers: start a scheduler
  status_alone      rows without a request: check by hand
  record_alone      record passed, no outcome: claimed, then resumed
  dead_letter_owed                                        lacks in triggers-dlq: written
  unreadable                                              check by hand (see DETAIL)

A resumed notification may have been sent before. Pushes, and otp, alert and
transactional on every channel, are sent again under the same provider id. Marketing and
digest by SMS or mail become UNKNOWN. See also: notifyctl audit, notifyctl why.`,
		Example: `  notifyctl reconcile --report-out report.json; notifyctl reconcile apply --report report.json`,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := p.client()
			if err != nil {
				return err
			}
			_, rep, err := requestReconcile(c, cl, since)
			if err != nil {
				return err
			}
			if err := saveReport(&rep, out); err != nil {
				return err
			}
			return printFindings(p, &rep)
		},
	}
	c.Flags().StringVar(&out, "report-out", "", "write the report to a file, for apply")
	c.Flags().StringVar(&since, "since", "", "only notifications accepted this long ago or later, e.g. 24h; default: all that are kept")
	c.AddCommand(newReconcileApply(p))
	return c
}

// requestReconcile makes the server look for findings. It returns the findings in two forms: as a
// plan, which a job can carry out, and as a report.
func requestReconcile(c *cobra.Command, cl *api.Client, since string) (plan api.Plan, rep api.ReconcileReport, err error) {
	spec := api.JobSpec{Kind: "reconcile"}
	if since != "" {
		d, err := time.ParseDuration(since)
		if err != nil || d <= 0 {
			return plan, rep, term.Usage("--since %q must be a duration above 0, such as 24h", since)
		}
		spec.Filter.Since = time.Now().Add(-d).UnixMilli()
	}
	if !c.Flags().Changed("timeout") { // no limit, because the server reads everything that it accepted
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

// printFindings prints a report. It returns an error if the report has findings.
func printFindings(p *program, rep *api.ReconcileReport) error {
	if err := p.printer().Print(rep, listFindings(p, rep)); err != nil {
		return err
	}
	p.note("%s notifications, and %s rows and %s index rows of triggers, read in %s", count(int(rep.Notifications)), count(rep.Rows), count(rep.Index), span(rep.Took))
	if len(rep.Findings) == 0 {
		return nil
	}
	return term.Exitf(term.ExitFindings, "the report has findings: %s", countsText(rep.Counts))
}

func listFindings(p *program, rep *api.ReconcileReport) term.Table {
	t := term.Table{{"CLASS", "ID", "CALLER", "STATE", "NEXT", "DETAIL"}}
	for i := range rep.Findings {
		f := &rep.Findings[i]
		next := ""
		if f.NextAt != 0 {
			next = p.timeText(time.UnixMilli(f.NextAt))
		}
		what := f.ID
		if what == "" {
			what = fmt.Sprintf("shard %d, %s", f.Shard, time.UnixMilli(f.Minute*60_000).UTC().Format("2006-01-02 15:04"))
		}
		t = append(t, []string{f.Class, what, f.Caller, f.State, next, f.Detail})
	}
	if rep.Truncated {
		t = append(t, []string{"...", "the list is not complete"})
	}
	return t
}

// countsText returns counts with their names: "3 late, 1 stuck".
func countsText(counts map[string]int) string {
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
		Use: "apply", Short: "Repair the findings of a report", Args: cobra.NoArgs,
		Long: `apply starts a job that repairs the findings of a report: of --report, or of a new one.
The job skips rows that have changed since, and a second apply changes nothing. A report
is valid for 15 minutes. Only one such job runs at a time. notifyctl job report shows
the result for each finding.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return runReconcileApply(c, p, file, since, detach, reason)
		},
	}
	c.Flags().StringVar(&file, "report", "", "report that reconcile --report-out wrote; default: a new one")
	c.Flags().StringVar(&since, "since", "", "for a new report: only notifications accepted this long ago or later")
	c.MarkFlagsMutuallyExclusive("report", "since")
	c.Flags().BoolVar(&detach, "detach", false, "start the job and do not wait for it")
	c.Flags().StringVar(&reason, "reason", "", "why; kept in the audit log")
	return c
}

func runReconcileApply(c *cobra.Command, p *program, file, since string, detach bool, reason string) error {
	ctx := c.Context()
	t, cl, err := p.operatorClient(reason)
	if err != nil {
		return err
	}
	var rep api.ReconcileReport
	var raw json.RawMessage
	if file == "" {
		var plan api.Plan
		plan, rep, err = requestReconcile(c, cl, since)
		raw = plan.Reconcile
	} else {
		if raw, err = os.ReadFile(file); err == nil && (json.Unmarshal(raw, &rep) != nil || rep.Digest == "") {
			return term.Usage("--report %s is not a report of notifyctl reconcile", file)
		}
	}
	if err != nil {
		return err
	}
	p.note("found %s", countsText(rep.Counts))
	if len(rep.Findings) > 0 {
		if err := p.confirm(t, changes, "repair "+countsText(rep.Counts)); err != nil {
			return err
		}
	}
	job, err := startJob(ctx, cl, api.JobRequest{Spec: api.JobSpec{Kind: "reconcile", Report: rep.Digest}, Digest: rep.Digest, Report: raw})
	if err != nil {
		return err
	}
	return followJob(ctx, p, cl, job, detach, "")
}
