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
	var limit int
	ls := &cobra.Command{
		Use: "ls", Short: "List jobs, newest first", Args: cobra.NoArgs, Aliases: []string{"list"},
		RunE: p.call(func(ctx context.Context, cl *api.Client, _ []string) error {
			list, err := cl.Jobs(ctx, limit)
			if err != nil {
				return err
			}
			defer p.more(len(list), "")
			return p.printer().Print(list, func() term.Table {
				t := term.Table{{"JOB", "KIND", "STATE", "POSITION", "PLANNED", "DONE", "BY", "CREATED", "WHY"}}
				for i := range list {
					j := &list[i]
					t = append(t, []string{j.ID, j.Kind, j.State, count(j.Position), count(j.Planned), count(j.Done), j.By, p.when(time.UnixMilli(j.Created)), j.Why})
				}
				return t
			})
		}),
	}
	ls.Flags().IntVar(&limit, "limit", 50, "how many at most")
	c.AddCommand(ls)
	one := func(use, short string, run func(ctx context.Context, t *target, cl *api.Client, id string) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " JOB", Short: short, Args: term.Exact("a job"),
			RunE: func(c *cobra.Command, args []string) error {
				t, err := p.target()
				if err != nil {
					return err
				}
				cl := p.clientOf(&t)
				cl.Context = t.name
				return run(c.Context(), &t, cl, args[0])
			},
		}
	}
	show := func(j *api.Job) error {
		return p.printer().Record(j, func() term.Table { return p.jobFields(j) })
	}
	c.AddCommand(one("show", "Show a job", func(ctx context.Context, _ *target, cl *api.Client, id string) error {
		j, err := cl.Job(ctx, id)
		if err != nil {
			return err
		}
		return show(&j)
	}))
	c.AddCommand(one("watch", "Wait for a job; Ctrl-C pauses it", func(ctx context.Context, _ *target, cl *api.Client, id string) error {
		j, err := cl.Job(ctx, id)
		if err != nil {
			return err
		}
		return p.follow(ctx, cl, j, false, "")
	}))
	c.AddCommand(one("report", "Write a job's report as JSON lines: what was not done, and why", func(ctx context.Context, _ *target, cl *api.Client, id string) error {
		return cl.JobReport(ctx, id, func(l json.RawMessage) error {
			return p.printer().Line(l, func() string { return term.Clean(string(l)) })
		})
	}))
	for change, short := range map[string]string{
		"pause": "Pause a job behind its batch", "resume": "Go on with a paused, stopped or failed job",
		"cancel": "End a job for good", "approve": "Let a job begin that another operator made",
	} {
		var reason string
		cmd := one(change, short, func(ctx context.Context, t *target, cl *api.Client, id string) error {
			cl.Reason = reason
			d := changes
			if change == "cancel" {
				d = undone
			}
			if err := p.confirm(t, d, change+" job "+id); err != nil {
				return err
			}
			j, err := cl.ChangeJob(ctx, id, change)
			if err != nil {
				return err
			}
			return show(&j)
		})
		cmd.Flags().StringVar(&reason, "reason", "", "why; kept in the audit log")
		c.AddCommand(cmd)
	}
	return c
}
