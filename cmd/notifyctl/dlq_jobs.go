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

// letterFlags are the filters of dead letters.
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
	f.StringVar(&l.since, "since", "", "failed at or after: a time, a distance such as -2h, or yesterday, 'today 09:00'")
	f.StringVar(&l.until, "until", "", "failed before")
	f.StringSliceVar(&l.ids, "id", nil, "only these ids; - reads them from standard input, one a line")
	f.StringVar(&l.f.Attempts, "attempts", "", "only with so many attempts: 3, '>=3', '<2'")
	f.StringVar(&l.f.Where, "where", "", "only those of which a jq expression is true, e.g. '.code | startswith(\"twilio_\")'")
	complete(c, "channel", []string{"push", "sms", "email", "trigger"})
	complete(c, "category", categoryNames())
}

// filter resolves times once.
func (l *letterFlags) filter(p *program) (f api.LetterFilter, err error) {
	f = l.f
	since, until, err := p.window(l.since, l.until)
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

// jobFlags are what every command that makes a job has.
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
	f.BoolVar(&j.all, "all", false, "say that no filter is meant")
	f.BoolVarP(&j.dryRun, "dry-run", "n", false, "show the plan, and do nothing")
	f.StringVar(&j.planOut, "plan-out", "", "write the plan to a file, for --plan; nothing is done")
	f.StringVar(&j.planFile, "plan", "", "carry out the plan of this file; exit 6 when what it selects has changed")
	f.StringVar(&j.rate, "rate", "", "so many a second: 50, 50/s, 2k/s, 600/m")
	f.StringVar(&j.name, "name", "", "name of the job: the same again joins it")
	f.StringVar(&j.reason, "reason", "", "why; kept in the audit log")
	f.BoolVar(&j.approval, "needs-approval", false, "wait until another operator approves it")
	f.BoolVar(&j.detach, "detach", false, "do not wait for the job")
	f.StringVar(&j.report, "report", "", "write the report, JSON lines, to a file")
	if kind != "replay" {
		return
	}
	f.DurationVar(&j.ramp, "ramp", 0, "reach the rate in this time, from a tenth of it")
	f.IntVar(&j.spec.Canary, "canary", 10, "so many first, and await their outcomes; 0: none")
	f.StringVar(&j.abortIf, "abort-if", "20%", "stop when more than this part reaches nobody (failed again, suppressed, expired, unknown), e.g. 20%; never")
	f.IntVar(&j.spec.MaxReplays, "max-replays", 3, "leave what was replayed so often before")
	f.StringVar(&j.spec.Expired, "expired", "skip", "what is past its deadline: skip, send without it, fail as EXPIRED")
	f.StringVar(&j.spec.Collapse, "collapse", "none", "none, or latest-per-recipient")
	f.StringVar(&j.spec.Order, "order", "offset", "as they failed (offset) or were accepted (due)")
	f.StringVar(&j.spec.OpenCircuit, "if-open-circuit", "stop", "stop, or wait until it is closed")
	f.BoolVar(&j.spec.ForceResend, "force-resend", false, "also those that are UNKNOWN: the receiver may have them, and they may arrive twice")
	complete(c, "expired", []string{"skip", "send", "fail"})
	complete(c, "collapse", []string{"none", "latest-per-recipient"})
	complete(c, "order", []string{"offset", "due"})
	complete(c, "if-open-circuit", []string{"stop", "wait"})
}

// parseRate reads "50", "50/s", "2k/s" and "600/m".
func parseRate(s string) (float64, error) {
	num, per, _ := strings.Cut(s, "/")
	times := 1.0
	if n, ok := strings.CutSuffix(num, "k"); ok {
		num, times = n, 1000
	}
	v, err := strconv.ParseFloat(num, 64)
	div, ok := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[per]
	if err != nil || !ok || v <= 0 {
		return 0, term.Usage("--rate %q: write 50, 50/s, 2k/s or 600/m", s)
	}
	return v * times / div, nil
}

// parseAbort reads "20%", "0.2", "refail>20%" and "never".
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
		return 0, term.Usage("--abort-if %q: write 20%%, refail>20%% or never", s)
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

// plan is that of --plan, or one made now.
func (j *jobFlags) plan(ctx context.Context, p *program, cl *api.Client) (plan api.Plan, err error) {
	if j.planFile != "" {
		b, err := os.ReadFile(j.planFile)
		if err != nil {
			return plan, err
		}
		if json.Unmarshal(b, &plan) != nil || plan.Digest == "" || plan.Spec.Kind != j.spec.Kind {
			return plan, term.Usage("--plan %s is no plan of notifyctl dlq %s --plan-out", j.planFile, j.spec.Kind)
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
	t, cl, err := p.operator(j.reason)
	if err != nil {
		return err
	}
	plan, err := j.plan(ctx, p, cl)
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
		p.note("plan %s is in %s; carry it out with: notifyctl dlq %s --plan %s", plan.Digest[:8], j.planOut, plan.Spec.Kind, term.Quote(j.planOut))
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
		p.note("there is nothing to %s", plan.Spec.Kind)
		hintCode(ctx, p, cl, &plan.Spec.Filter)
		return sumUp(p, &api.Job{Kind: plan.Spec.Kind, State: "done"})
	}
	d := undone
	if plan.Spec.Kind == "export" {
		d = changes
	}
	if err := p.confirm(t, d, fmt.Sprintf("%s %s dead letters", plan.Spec.Kind, count(plan.Send))); err != nil {
		return err
	}
	job, err := begin(ctx, cl, api.JobRequest{Spec: plan.Spec, Digest: plan.Digest, Entries: plan.Entries, Name: j.name, Approval: j.approval})
	if err != nil {
		return err
	}
	return follow(ctx, p, cl, job, j.detach, j.report)
}

// hintCode says, where a filter by code selected nothing, which codes of dead letters
// end like it: a provider's own number stands behind the provider's name.
func hintCode(ctx context.Context, p *program, cl *api.Client, f *api.LetterFilter) {
	if f.Code == "" {
		return
	}
	top, err := cl.TopDeadLetters(ctx, api.LetterFilter{}, 1000)
	if err != nil {
		return // a hint, no more
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

// planFields shows a plan.
func planFields(p *program, plan *api.Plan) term.Table {
	if plan.Entries == 0 {
		return term.Table{{"plan", plan.Digest}, {"entries", "0: nothing matches"}}
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
			eta += fmt.Sprintf(", behind a canary of %d", plan.Spec.Canary)
		}
	}
	soon := ""
	if plan.EndsSoon > 0 {
		soon = count(plan.EndsSoon) + " within a day"
	}
	approval := ""
	if plan.Approval {
		approval = "another operator must approve it"
	}
	unreachable := ""
	if len(plan.Unreach) > 0 {
		unreachable = sums(plan.Unreach) + "; their profiles say so now"
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
		{"by class", sums(plan.Counts["class"])}, {"by code", sums(plan.Counts["code"])}, {"by caller", sums(plan.Counts["caller"])},
		{"by channel", sums(plan.Counts["channel"])}, {"by provider", sums(plan.Counts["provider"])}, {"by template", sums(plan.Counts["template"])},
		{"skip", skipped(plan.Skip)}, {"will act on", count(plan.Send)}, {"may have arrived", maybe}, {"would reach nobody", unreachable}, {"eta", eta}, {"ages out", soon}, {"approval", approval},
	}
}

func skipped(m map[string]int) string {
	if len(m) == 0 {
		return ""
	}
	return sums(m)
}
