package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// letterFlags are the flags that select dead letters.
type letterFlags struct {
	f            api.LetterFilter
	since, until string
	ids          []string
}

func (l *letterFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&l.f.Channel, "channel", "", "only this channel: push, sms, email, trigger")
	f.StringVar(&l.f.Category, "category", "", "only this category")
	f.StringVar(&l.f.Provider, "provider", "", "only this provider's")
	f.StringVar(&l.f.Class, "class", "", "only this class of error")
	f.StringVar(&l.f.Code, "code", "", "only this code")
	f.StringVar(&l.f.Caller, "caller", "", "only this caller's")
	f.StringVar(&l.f.Template, "template", "", "only this template")
	f.StringVar(&l.since, "since", "", "failed at or after this time: RFC 3339, -2h, yesterday, 'today 09:00'")
	f.StringVar(&l.until, "until", "", "failed before this time")
	f.StringSliceVar(&l.ids, "id", nil, "only these ids; - reads them from standard input, one per line")
	f.StringVar(&l.f.Attempts, "attempts", "", "only with this number of attempts: 3, '>=3', '<2'")
	f.StringVar(&l.f.Where, "where", "", "only letters for which this jq expression is true, e.g. '.code | startswith(\"twilio_\")'")
	completeFlag(c, "channel", []string{"push", "sms", "email", "trigger"})
	completeFlag(c, "category", categoryNames())
}

// filter returns the filter of the flags. It computes relative times once, so that the plan and the
// job select the same letters.
func (l *letterFlags) filter(p *program) (f api.LetterFilter, err error) {
	f = l.f
	since, until, err := p.parsePeriod(l.since, l.until)
	if err != nil {
		return f, err
	}
	if !since.IsZero() {
		f.Since = since.UnixMilli()
	}
	if !until.IsZero() {
		f.Until = until.UnixMilli()
	}
	for _, id := range l.ids {
		if id != "-" {
			f.IDs = append(f.IDs, id)
			continue
		}
		lines := bufio.NewScanner(p.in)
		for lines.Scan() {
			if s := strings.TrimSpace(lines.Text()); s != "" {
				f.IDs = append(f.IDs, s)
			}
		}
		if err := lines.Err(); err != nil {
			return f, err
		}
	}
	return f, nil
}

// jobFlags are the flags of every command that starts a job.
type jobFlags struct {
	letters  letterFlags
	spec     api.JobSpec
	all      bool
	dryRun   bool
	planOut  string
	planFile string
	abortIf  string
	rate     string
	ramp     time.Duration
	name     string
	reason   string
	approval bool
	detach   bool
	report   string
}

func (j *jobFlags) add(c *cobra.Command, kind string) {
	j.spec.Kind = kind
	j.letters.add(c)
	f := c.Flags()
	f.BoolVar(&j.all, "all", false, "select every dead letter; required if there is no filter")
	f.BoolVarP(&j.dryRun, "dry-run", "n", false, "show the plan and start no job")
	f.StringVar(&j.planOut, "plan-out", "", "write the plan to a file for --plan, and start no job")
	f.StringVar(&j.planFile, "plan", "", "start the job of this plan file; exit 6 if the selected letters have changed")
	f.StringVar(&j.rate, "rate", "", "letters per second: 50, 50/s, 2k/s, 600/m")
	f.StringVar(&j.name, "name", "", "name of the job; a second start with this name returns the same job")
	f.StringVar(&j.reason, "reason", "", "why; kept in the audit log")
	f.BoolVar(&j.approval, "needs-approval", false, "wait until another operator approves it")
	f.BoolVar(&j.detach, "detach", false, "start the job and do not wait for it")
	f.StringVar(&j.report, "report", "", "write the job's report to this file, as JSON lines")
	if kind != "replay" {
		return
	}
	f.DurationVar(&j.ramp, "ramp", 0, "raise the rate from a tenth to all of it in this time")
	f.IntVar(&j.spec.Canary, "canary", 10, "send this many first and wait for their outcomes; 0: no canary")
	f.StringVar(&j.abortIf, "abort-if", "20%", "stop if more than this share does not arrive (failed again, suppressed, expired or unknown), e.g. 20%; never: do not stop")
	f.IntVar(&j.spec.MaxReplays, "max-replays", 3, "skip letters that were replayed this many times")
	f.StringVar(&j.spec.Expired, "expired", "skip", "letters past their deadline: skip; send, without the deadline; fail, as EXPIRED")
	f.StringVar(&j.spec.Collapse, "collapse", "none", "none, or latest-per-recipient: only the latest failure of each user, channel and template")
	f.StringVar(&j.spec.Order, "order", "offset", "order of sending: as they failed (offset) or as they were accepted (due)")
	f.StringVar(&j.spec.OpenCircuit, "if-open-circuit", "stop", "if a circuit is open: stop, or wait until it closes")
	f.BoolVar(&j.spec.ForceResend, "force-resend", false, "also send letters that are UNKNOWN; they may have arrived before, and then arrive twice")
	completeFlag(c, "expired", []string{"skip", "send", "fail"})
	completeFlag(c, "collapse", []string{"none", "latest-per-recipient"})
	completeFlag(c, "order", []string{"offset", "due"})
	completeFlag(c, "if-open-circuit", []string{"stop", "wait"})
}

// parseRate parses "50", "50/s", "2k/s" and "600/m".
func parseRate(s string) (float64, error) {
	num, per, _ := strings.Cut(s, "/")
	times := 1.0
	if n, ok := strings.CutSuffix(num, "k"); ok {
		num, times = n, 1000
	}
	v, err := strconv.ParseFloat(num, 64)
	div, ok := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[per]
	if err != nil || !ok || v <= 0 {
		return 0, term.Usage("--rate %q is not a rate such as 50/s, 2k/s or 600/m", s)
	}
	return v * times / div, nil
}

// parseAbort parses "20%", "0.2", "refail>20%" and "never".
func parseAbort(s string) (float64, error) {
	if s == "never" {
		return -1, nil
	}
	in := strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(s, " ", ""), "refail>"))
	num, percent := strings.CutSuffix(in, "%")
	v, err := strconv.ParseFloat(num, 64)
	if percent {
		v /= 100
	}
	if err != nil || v <= 0 || v > 1 {
		return 0, term.Usage("--abort-if %q is not a share such as 20%%, refail>20%% or never", s)
	}
	return v, nil
}

func newDLQJob(p *program, kind, short, long, example string) *cobra.Command {
	var j jobFlags
	c := &cobra.Command{
		Use: kind, Short: short, Long: long, Example: example, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runLetterJob(c.Context(), p, &j) },
	}
	if kind == "replay" {
		c.SuggestFor = []string{"redrive", "retry", "requeue", "recover", "resend"}
	}
	j.add(c, kind)
	return c
}

// loadOrMakePlan reads the plan from the file of --plan. Without --plan, it requests a plan from
// the server.
func (j *jobFlags) loadOrMakePlan(ctx context.Context, p *program, cl *api.Client) (plan api.Plan, err error) {
	if j.planFile != "" {
		b, err := os.ReadFile(j.planFile)
		if err != nil {
			return plan, err
		}
		if json.Unmarshal(b, &plan) != nil || plan.Digest == "" || plan.Spec.Kind != j.spec.Kind {
			return plan, term.Usage("--plan %s was not written by notifyctl dlq %s --plan-out", j.planFile, j.spec.Kind)
		}
		return plan, nil
	}
	spec := j.spec
	if spec.Filter, err = j.letters.filter(p); err != nil {
		return plan, err
	}
	spec.Filter.All = j.all
	if j.rate != "" {
		if spec.Rate, err = parseRate(j.rate); err != nil {
			return plan, err
		}
	}
	if spec.Kind == "replay" {
		if spec.AbortIf, err = parseAbort(j.abortIf); err != nil {
			return plan, err
		}
		spec.Canary = cmp.Or(spec.Canary, -1)
		spec.RampMs = j.ramp.Milliseconds()
	}
	return cl.Plan(ctx, spec)
}

func runLetterJob(ctx context.Context, p *program, j *jobFlags) error {
	t, cl, err := p.operatorClient(j.reason)
	if err != nil {
		return err
	}
	plan, err := j.loadOrMakePlan(ctx, p, cl)
	if err != nil {
		return err
	}
	if j.planOut != "" {
		b, err := json.Marshal(plan)
		if err == nil {
			err = os.WriteFile(j.planOut, append(b, '\n'), 0o600)
		}
		if err != nil {
			return err
		}
		p.note("plan %s is written to %s; start it with: notifyctl dlq %s --plan %s", plan.Digest[:8], j.planOut, plan.Spec.Kind, term.Quote(j.planOut))
	}
	if j.dryRun || j.planOut != "" {
		return p.printer().Record(plan, planFields(p, &plan))
	}
	if p.global.output == "table" && !p.global.quiet {
		for _, f := range planFields(p, &plan) {
			if f[1] != "" {
				p.note("%-11s  %s", f[0], f[1])
			}
		}
	}
	if plan.Entries == 0 {
		p.note("no dead letters to %s", plan.Spec.Kind)
		suggestCodes(ctx, p, cl, &plan.Spec.Filter)
		return printJobSummary(p, &api.Job{Kind: plan.Spec.Kind, State: "done"})
	}
	d := confirmAlways
	if plan.Spec.Kind == "export" {
		d = changes
	}
	if err := p.confirm(t, d, fmt.Sprintf("%s %s dead letters", plan.Spec.Kind, count(plan.Send))); err != nil {
		return err
	}
	job, err := startJob(ctx, cl, api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Entries: plan.Entries, Name: j.name, Approval: j.approval})
	if err != nil {
		return err
	}
	return followJob(ctx, p, cl, job, j.detach, j.report)
}

// suggestCodes prints similar codes if a filter by code selected no letter. The codes of dead
// letters begin with the provider's name, but people often use only the provider's own number.
func suggestCodes(ctx context.Context, p *program, cl *api.Client, f *api.LetterFilter) {
	if f.Code == "" {
		return
	}
	top, err := cl.TopDeadLetters(ctx, api.LetterFilter{}, 1000)
	if err != nil {
		return // without this answer, the command prints no hint
	}
	near := map[string]int{}
	for i := range top.Groups {
		if g := &top.Groups[i]; g.Code != f.Code && strings.HasSuffix(g.Code, "_"+f.Code) {
			near[g.Code] += g.Count
		}
	}
	for _, code := range slices.Sorted(maps.Keys(near)) {
		p.note("no dead letter has the code %s; %s have %s", f.Code, count(near[code]), code)
	}
}

// planFields returns a plan as the rows of a table.
func planFields(p *program, plan *api.Plan) term.Table {
	if plan.Entries == 0 {
		return term.Table{{"plan", plan.Digest}, {"entries", "0: no dead letter matches"}}
	}
	window := ""
	if f := &plan.Spec.Filter; f.Since != 0 || f.Until != 0 {
		at := func(ms int64, open string) string {
			if ms == 0 {
				return open
			}
			return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05Z")
		}
		window = at(f.Since, "the beginning") + " to " + at(f.Until, "now")
	}
	eta := ""
	if plan.Spec.Kind == "replay" && plan.Send > 0 {
		eta = fmt.Sprintf("%s at %g/s", span(time.Duration(plan.EtaMs)*time.Millisecond), plan.Spec.Rate)
		if plan.Spec.Canary > 0 {
			eta += fmt.Sprintf(", after a canary of %d", plan.Spec.Canary)
		}
	}
	soon := ""
	if plan.EndsSoon > 0 {
		soon = count(plan.EndsSoon) + " within a day"
	}
	approval := ""
	if plan.Approval {
		approval = "another operator must approve the job"
	}
	unreachable := ""
	if len(plan.Unreachable) > 0 {
		unreachable = countsText(plan.Unreachable) + ", by their profiles as they are now"
	}
	maybe := ""
	if n := plan.Counts["class"][notify.ClassAmbiguous.String()]; n > 0 && plan.Spec.Kind == "replay" {
		maybe = count(n) + " UNKNOWN: skipped; --force-resend sends them again, and they may arrive twice"
		if plan.Spec.ForceResend {
			maybe = count(n) + " UNKNOWN: they may arrive twice"
		}
	}
	return term.Table{
		{"plan", plan.Digest}, {"window", window}, {"entries", count(plan.Entries)},
		{"by class", countsText(plan.Counts["class"])}, {"by code", countsText(plan.Counts["code"])}, {"by caller", countsText(plan.Counts["caller"])},
		{"by channel", countsText(plan.Counts["channel"])}, {"by provider", countsText(plan.Counts["provider"])}, {"by template", countsText(plan.Counts["template"])},
		{"skip", countsOrEmpty(plan.Skip)}, {"will act on", count(plan.Send)}, {"may have arrived", maybe}, {"would not arrive", unreachable}, {"eta", eta}, {"removed", soon}, {"approval", approval},
	}
}

func countsOrEmpty(m map[string]int) string {
	if len(m) == 0 {
		return ""
	}
	return countsText(m)
}
