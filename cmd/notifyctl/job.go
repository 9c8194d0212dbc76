package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func jobFields(p *program, j *api.Job) term.Table {
	filter, _ := json.Marshal(j.Spec.Filter) // cannot fail: a filter contains only simple values
	t := term.Table{
		{"job", j.ID}, {"kind", j.Kind}, {"name", j.Name}, {"state", j.State}, {"why", j.Why}, {"by", j.By}, {"approved by", j.Approved},
		{"context", j.Context}, {"reason", j.Reason}, {"plan", j.Digest}, {"filter", string(filter)},
		{"position", fmt.Sprintf("%s of %s", count(j.Position), count(j.Planned))}, {"done", count(j.Done)}, {"skipped", countsOrEmpty(j.Skipped)},
		{"exhausted", count(j.Exhausted)}, {"failed", count(j.Failed)},
	}
	if j.Kind == "replay" {
		t = append(t, []string{"outcomes", j.Outcomes.Text(count[int])},
			[]string{"rate", fmt.Sprintf("set %g/s, sent %.1f/s", j.Spec.Rate, j.Reached)})
	}
	return append(t, []string{"created", p.timeText(time.UnixMilli(j.Created))}, []string{"updated", p.timeText(time.UnixMilli(j.Updated))})
}

func newJob(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "job", Short: "Watch and control operators' jobs: replay, discard, export, reconcile",
		Long: `Jobs run on the server; a client only watches them. After a restart of the server they
continue where they were. States: waiting (for approval), running, paused (by an
operator), stopped (by the job's own limits; the field why says which), failed, done,
cancelled.`,
	}
	c.AddCommand(newListing(p, &cobra.Command{Short: "List jobs, newest first"}, &listing[api.Job]{
		once: true,
		get: func(ctx context.Context, cl *api.Client, _ string, n int) (out api.List[api.Job], err error) {
			out.Items, err = cl.Jobs(ctx, n)
			return out, err
		},
		columns: columns[api.Job]{head: "JOB  KIND  STATE  POSITION  PLANNED  DONE  BY  CREATED  WHY", row: func(j *api.Job) []string {
			return []string{j.ID, j.Kind, j.State, count(j.Position), count(j.Planned), count(j.Done), j.By, p.timeText(time.UnixMilli(j.Created)), j.Why}
		}},
	}), newShowCommand(p, &cobra.Command{Use: "show JOB", Short: "Show a job", Args: term.Exact("a job")}, (*api.Client).Job, withProgram(p, jobFields)), &cobra.Command{
		Use: "watch JOB", Short: "Wait for a job; Ctrl-C pauses it", Args: term.Exact("a job"),
		RunE: func(c *cobra.Command, args []string) error {
			_, cl, err := p.operatorClient("")
			if err != nil {
				return err
			}
			j, err := cl.Job(c.Context(), args[0])
			if err != nil {
				return err
			}
			return followJob(c.Context(), p, cl, j, false, "")
		},
	}, &cobra.Command{
		Use: "report JOB", Short: "Write a job's report as JSON lines: what was not done, and why", Args: term.Exact("a job"),
		RunE: p.withClient(func(ctx context.Context, cl *api.Client, args []string) error {
			return cl.JobReport(ctx, args[0], func(l json.RawMessage) error {
				return p.printer().Line(l, func() string { return term.Clean(string(l)) })
			})
		}),
	})
	for verb, short := range map[string]string{
		"pause": "Pause a job after its current batch", "resume": "Continue a paused, stopped or failed job",
		"cancel": "End a job for good", "approve": "Approve a job that another operator created",
	} {
		cmd := &cobra.Command{Use: verb + " JOB", Short: short, Args: term.Exact("a job")}
		reason := reasonFlag(cmd)
		cmd.RunE = func(c *cobra.Command, args []string) error {
			d := changes
			if verb == "cancel" {
				d = confirmAlways
			}
			return confirmAndChange(p, d, verb+" job "+args[0], *reason, func(cl *api.Client) (api.Job, error) {
				return cl.ChangeJob(c.Context(), args[0], verb)
			}, func(j *api.Job) error { return p.printer().Record(j, jobFields(p, j)) })
		}
		c.AddCommand(cmd)
	}
	return c
}

// startJob starts a job on the server. Ctrl-C does not interrupt the request, because then it would
// be unknown whether the job was started. followJob pauses the job afterwards.
func startJob(ctx context.Context, cl *api.Client, r api.JobRequest) (api.Job, error) {
	late, stop := outliveContext(ctx, finalRequestTime)
	defer stop()
	job, err := cl.StartJob(late, r)
	if err != nil && late.Err() != nil {
		err = &term.Error{Exit: term.ExitInterrupt, Err: fmt.Errorf("it is not known whether the job was started: %w", err), Next: []string{"notifyctl job ls"}}
	}
	return job, err
}

// finalRequestTime is how long a request may take after Ctrl-C. Another Ctrl-C ends it at once.
const finalRequestTime = 30 * time.Second

// outliveContext returns a context that ends some time after ctx. The parameter extra is that time.
func outliveContext(ctx context.Context, extra time.Duration) (context.Context, context.CancelFunc) {
	late, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(extra)
		defer t.Stop()
		select {
		case <-t.C:
			end()
		case <-late.Done():
		}
	})
	return late, func() { stop(); end() }
}

// followJob waits until a job stops running. If detach is true, it does not wait. Ctrl-C pauses the
// job and prints how to continue it.
func followJob(ctx context.Context, p *program, cl *api.Client, job api.Job, detach bool, report string) error {
	if detach {
		p.note("job %s is %s; watch it with: notifyctl job watch %s", job.ID, job.State, job.ID)
		return p.printer().Record(job, jobFields(p, &job))
	}
	bar := p.startProgress(job.Kind, int64(job.Planned))
	for !jobNotRunning(&job) {
		bar.set(int64(job.Position))
		if !notify.Sleep(ctx, 300*time.Millisecond) {
			bar.end()
			return pauseInterruptedJob(ctx, p, cl, &job)
		}
		now, err := cl.Job(ctx, job.ID)
		if err != nil {
			if ctx.Err() != nil {
				continue
			}
			bar.end()
			return &term.Error{Exit: term.ExitCode(err), Err: err, Next: []string{"notifyctl job watch " + job.ID}}
		}
		job = now
	}
	bar.set(int64(job.Position))
	bar.end()
	if report != "" {
		if err := writeReport(ctx, cl, job.ID, report); err != nil {
			return err
		}
	}
	return printJobSummary(p, &job)
}

// jobNotRunning reports whether a job has ended or waits for an operator.
func jobNotRunning(j *api.Job) bool { return j.State != "running" }

// pauseInterruptedJob pauses the job. Otherwise the server would continue it after Ctrl-C.
func pauseInterruptedJob(ctx context.Context, p *program, cl *api.Client, job *api.Job) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), finalRequestTime)
	defer stop()
	now, err := cl.ChangeJob(ctx, job.ID, "pause")
	if err != nil {
		return &term.Error{Exit: term.ExitInterrupt, Err: fmt.Errorf("job %s could not be paused and keeps running: %w", job.ID, err), Next: []string{"notifyctl job pause " + job.ID}}
	}
	return &term.Error{
		Exit: term.ExitInterrupt, Err: fmt.Errorf("job %s is paused at entry %s of %s", now.ID, count(now.Position), count(now.Planned)),
		Next: []string{"notifyctl job resume " + now.ID, "notifyctl job cancel " + now.ID},
	}
}

func writeReport(ctx context.Context, cl *api.Client, id, name string) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	err = cl.JobReport(ctx, id, func(l json.RawMessage) error {
		_, err := w.Write(append(l, '\n'))
		return err
	})
	return errors.Join(err, w.Flush(), f.Close())
}

// printJobSummary prints a job. In a table it prints one line of counts; if the job has processed
// all planned entries, these counts add up to the planned number. It returns an error with the exit
// code that belongs to the job's state.
func printJobSummary(p *program, j *api.Job) error {
	verb := map[string]string{"replay": "replayed", "discard": "discarded", "export": "exported", "reconcile": "repaired"}[j.Kind]
	of := "="
	if j.Position < j.Planned {
		of = "of"
	}
	line := fmt.Sprintf("%s %s  skipped %s  exhausted %s  failed %s  %s planned %s", verb, count(j.Done), count(j.Skips()), count(j.Exhausted), count(j.Failed), of, count(j.Planned))
	if err := p.printer().Print(j, term.Table{{line}}); err != nil {
		return err
	}
	if len(j.Skipped) > 0 {
		p.note("skipped: %s", countsText(j.Skipped))
	}
	if j.Kind == "replay" && j.ID != "" {
		p.note("outcomes: %s; rate: set %g/s, sent %.1f/s", j.Outcomes.Text(count[int]), j.Spec.Rate, j.Reached)
	}
	if j.ID != "" {
		p.note("job %s", j.ID)
	}
	switch j.State {
	case "stopped":
		return &term.Error{Exit: term.ExitGuard, Err: fmt.Errorf("the job stopped: %s", j.Why), Next: []string{"notifyctl job show " + j.ID, "notifyctl job resume " + j.ID}}
	case "failed":
		return &term.Error{Exit: term.ExitError, Err: fmt.Errorf("the job failed: %s", j.Why), Next: []string{"notifyctl job resume " + j.ID}}
	case "paused":
		return &term.Error{Exit: term.ExitPending, Err: fmt.Errorf("the job was paused %s", j.Why), Next: []string{"notifyctl job resume " + j.ID}}
	case "waiting":
		return &term.Error{Exit: term.ExitPending, Err: errors.New("another operator must approve the job"), Next: []string{"notifyctl job approve " + j.ID}}
	case "cancelled":
		return term.Exitf(term.ExitError, "the job was cancelled %s", j.Why)
	}
	if j.Failed > 0 {
		return &term.Error{Exit: term.ExitPartial, Err: fmt.Errorf("%s entries of the job failed", count(j.Failed)), Next: []string{"notifyctl job report " + j.ID}}
	}
	return nil
}
