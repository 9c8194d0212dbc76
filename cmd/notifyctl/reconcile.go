package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
)

func newReconcile(p *program) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "reconcile", Short: "Find triggers that nothing leads to any more", Args: cobra.NoArgs,
		Long: `reconcile reads every trigger that is not over, and what should lead to it. It changes
nothing; exit 9 when it found something. The server does the same every hour, and
repairs what it finds.

  overdue           waits although it was due long ago       repaired: enqueued anew
  claim_expired     claimed by somebody who died             repaired: the same
  no_index          nothing will wake it                     repaired: the row is written
  dead_letter_owed  failed, and triggers-dlq may not know    repaired: the record is written
  orphan_index      a request that was never answered        nothing to do: dropped when due
  open_bucket       a past minute still holds timers         nothing to do here: a scheduler must run
  unreadable        a row of another release, or damaged     left for people`,
		Example: `  notifyctl reconcile --report-out report.json; notifyctl reconcile apply --report report.json`,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := p.client()
			if err != nil {
				return err
			}
			_, rep, err := reconcile(c.Context(), cl)
			if err != nil {
				return err
			}
			if err := saveReport(&rep, out); err != nil {
				return err
			}
			return p.findings(&rep)
		},
	}
	c.Flags().StringVar(&out, "report-out", "", "write the report to a file, for apply")
	c.AddCommand(newReconcileApply(p))
	return c
}

// reconcile has the server look; what it finds is a plan, which a job repairs.
func reconcile(ctx context.Context, cl *api.Client) (plan api.Plan, rep api.ReconcileReport, err error) {
	if plan, err = cl.Plan(ctx, api.JobSpec{Kind: "reconcile"}); err != nil {
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
func (p *program) findings(rep *api.ReconcileReport) error {
	if err := p.printer().Print(rep, func() cli.Table { return p.listFindings(rep) }); err != nil {
		return err
	}
	p.note("%s rows and %s index rows read in %s", count(rep.Rows), count(rep.Index), span(rep.Took))
	if len(rep.Findings) == 0 {
		return nil
	}
	return cli.Exitf(cli.ExitFindings, "found %s", sums(rep.Counts))
}

func (p *program) listFindings(rep *api.ReconcileReport) cli.Table {
	t := cli.Table{{"CLASS", "TRIGGER", "CALLER", "STATE", "NEXT"}}
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
		t = append(t, []string{f.Class, what, f.Caller, f.State, next})
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
	var file, reason string
	var detach bool
	c := &cobra.Command{
		Use: "apply", Short: "Repair what a report lists", Args: cobra.NoArgs,
		Long: `apply has a job repair what a report lists: that of --report, or one it makes now. A row that
has changed since is left alone; a second apply changes nothing. A report is good for
15 minutes.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return runReconcileApply(c.Context(), p, file, detach, reason)
		},
	}
	c.Flags().StringVar(&file, "report", "", "the report that reconcile --report-out wrote; default: a new one")
	c.Flags().BoolVar(&detach, "detach", false, "do not wait for the job")
	c.Flags().StringVar(&reason, "reason", "", "why; kept in the audit log")
	return c
}

func runReconcileApply(ctx context.Context, p *program, file string, detach bool, reason string) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	cl := p.clientOf(&t)
	cl.Context, cl.Reason = t.name, reason
	var rep api.ReconcileReport
	var raw json.RawMessage
	if file == "" {
		var plan api.Plan
		plan, rep, err = reconcile(ctx, cl)
		raw = plan.Reconcile
	} else {
		if raw, err = os.ReadFile(file); err == nil && (json.Unmarshal(raw, &rep) != nil || rep.Digest == "") {
			return cli.Usage("--report %s is no report of notifyctl reconcile", file)
		}
	}
	if err != nil {
		return err
	}
	p.note("found %s", sums(rep.Counts))
	if len(rep.Findings) > 0 {
		if err := p.confirm(&t, changes, "repair "+sums(rep.Counts)); err != nil {
			return err
		}
	}
	job, err := begin(ctx, cl, api.JobRequest{Spec: api.JobSpec{Kind: "reconcile", Report: rep.Digest}, Digest: rep.Digest, Report: raw})
	if err != nil {
		return err
	}
	return p.follow(ctx, cl, job, detach, "")
}
