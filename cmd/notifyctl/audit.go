package main

import (
	"context"
	"fmt"

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
