package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func (p *program) jobFields(j *api.Job) term.Table {
	filter, _ := json.Marshal(j.Spec.Filter) // of strings and numbers
	t := term.Table{
		{"job", j.ID}, {"kind", j.Kind}, {"name", j.Name}, {"state", j.State}, {"why", j.Why}, {"by", j.By}, {"approved by", j.Approved},
		{"context", j.Context}, {"reason", j.Reason}, {"plan", j.Digest}, {"filter", string(filter)},
		{"position", fmt.Sprintf("%s of %s", count(j.Position), count(j.Planned))}, {"done", count(j.Done)}, {"skipped", skipped(j.Skipped)},
		{"exhausted", count(j.Exhaust)}, {"failed", count(j.Failed)},
	}
	if j.Kind == "replay" {
		t = append(t, []string{"outcomes", j.Outcomes.Text(count[int])},
			[]string{"rate", fmt.Sprintf("asked %g/s, sent %.1f/s", j.Spec.Rate, j.Reached)})
	}
	return append(t, []string{"created", p.when(time.UnixMilli(j.Created))}, []string{"updated", p.when(time.UnixMilli(j.Updated))})
}

func newJob(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "job", Short: "Watch and steer operators' jobs: replay, discard, export, reconcile",
		Long: `Jobs run on the server; a client only watches. They go on after a restart where
they were. States: waiting (for approval), running, paused (by an operator), stopped
(by its own guard; why says so), failed, done, cancelled.`,
	}
	c.AddCommand(newListing(p, &cobra.Command{Short: "List jobs, newest first"}, &listing[api.Job]{
		once: true,
		get: func(ctx context.Context, cl *api.Client, _ string, n int) (out api.List[api.Job], err error) {
			out.Items, err = cl.Jobs(ctx, n)
			return out, err
		},
		columns: columns[api.Job]{head: "JOB  KIND  STATE  POSITION  PLANNED  DONE  BY  CREATED  WHY", row: func(j *api.Job) []string {
			return []string{j.ID, j.Kind, j.State, count(j.Position), count(j.Planned), count(j.Done), j.By, p.when(time.UnixMilli(j.Created)), j.Why}
		}},
	}), newGet(p, &cobra.Command{Use: "show JOB", Short: "Show a job", Args: term.Exact("a job")}, (*api.Client).Job, p.jobFields), &cobra.Command{
		Use: "watch JOB", Short: "Wait for a job; Ctrl-C pauses it", Args: term.Exact("a job"),
		RunE: func(c *cobra.Command, args []string) error {
			_, cl, err := p.operator("")
			if err != nil {
				return err
			}
			j, err := cl.Job(c.Context(), args[0])
			if err != nil {
				return err
			}
			return p.follow(c.Context(), cl, j, false, "")
		},
	}, &cobra.Command{
		Use: "report JOB", Short: "Write a job's report as JSON lines: what was not done, and why", Args: term.Exact("a job"),
		RunE: p.call(func(ctx context.Context, cl *api.Client, args []string) error {
			return cl.JobReport(ctx, args[0], func(l json.RawMessage) error {
				return p.printer().Line(l, func() string { return term.Clean(string(l)) })
			})
		}),
	})
	for verb, short := range map[string]string{
		"pause": "Pause a job behind its batch", "resume": "Go on with a paused, stopped or failed job",
		"cancel": "End a job for good", "approve": "Let a job begin that another operator made",
	} {
		cmd := &cobra.Command{Use: verb + " JOB", Short: short, Args: term.Exact("a job")}
		reason := reasonFlag(cmd)
		cmd.RunE = func(c *cobra.Command, args []string) error {
			d := changes
			if verb == "cancel" {
				d = undone
			}
			return change(p, d, verb+" job "+args[0], *reason, func(cl *api.Client) (api.Job, error) {
				return cl.ChangeJob(c.Context(), args[0], verb)
			}, func(j *api.Job) error { return p.printer().Record(j, p.jobFields(j)) })
		}
		c.AddCommand(cmd)
	}
	return c
}
