package web

import (
	"cmp"
	"encoding/base64"
	"encoding/json"

	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// filter is a filter of dead letters, read from the query of a page. It keeps the text of times, so
// that links and commands show the same text.
type filter struct {
	api.LetterFilter
	Since, Until string
}

func readFilter(q url.Values) (f filter) {
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	f.LetterFilter = api.ReadLetterFilter(text, nil)
	f.Since, f.Until = text("since"), text("until")
	f.All = q.Get("all") == "1"
	return f
}

// query returns the filter as parameters of a link.
func (f filter) query() url.Values {
	q := f.Query()
	if f.State == "dead" {
		q.Del("state")
	}
	for name, v := range map[string]string{"since": f.Since, "until": f.Until} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// Link returns the link to the list with this filter.
func (f filter) Link() string { return withQuery(Prefix+"dead-letters", f.query()) }

// Plan returns the link to the page that plans a job for the letters that the filter selects. The
// parameter kind is the kind of the job.
func (f filter) Plan(kind string) string {
	q := f.query()
	q.Del("state")
	q.Set("kind", kind)
	return withQuery(Prefix+"plan", q)
}

// Empty reports whether the filter selects all letters.
func (f filter) Empty() bool { return len(f.query()) == 0 }

// flags returns the flags of notifyctl for the filter.
func (f filter) flags() (out []string) {
	f.State = ""
	for _, w := range f.Words() {
		out = append(out, "--"+w[0], w[1])
	}
	return append(out, "--since", f.Since, "--until", f.Until)
}

// Command returns the notifyctl command that lists the same letters.
func (f filter) Command() string {
	state := f.State
	if state == "any" {
		state = ""
	}
	return command(append(append([]string{"dlq", "ls"}, f.flags()...), "--state", state)...)
}

func withQuery(path string, q url.Values) string {
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// parseTime parses a time, or a time before now such as -24h.
func parseTime(field, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d <= 0 {
		return now.Add(d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, notify.Invalid("bad_time", field, "must be a time such as 2026-11-22T10:00:00Z, or a time before now such as -24h")
	}
	return t, nil
}

// apiFilter returns the filter for the API, without the state. Its relative times are computed from
// now.
func (f *filter) apiFilter(now time.Time) (out api.LetterFilter, err error) {
	out = f.LetterFilter
	out.State = ""
	for _, t := range []struct {
		field, in string
		to        *int64
	}{{"since", f.Since, &out.Since}, {"until", f.Until, &out.Until}} {
		at, err := parseTime(t.field, t.in, now)
		if err != nil {
			return out, err
		}
		if !at.IsZero() {
			*t.to = at.UnixMilli()
		}
	}
	return out, nil
}

// letterPage is how many dead letters a page lists.
const letterPage = 25

type lettersBody struct {
	Filter filter
	Cursor string
	Page   part[api.DeadLetterPage]
	Top    part[api.LetterTop]
	Next   string
}

// GroupFilter returns the filter with the properties of a group added.
func (b *lettersBody) GroupFilter(g api.LetterGroup) filter {
	f := b.Filter
	f.Channel, f.Class, f.Code, f.Provider, f.Template = g.Channel, g.Class, g.Code, g.Provider, g.Template
	return f
}

// Replayable reports whether a plan would select at least one letter of this list.
func (b *lettersBody) Replayable() bool { return b.Filter.State == "dead" && len(b.Page.V.Items) > 0 }

func (p *Page) deadLetters(v *visit) error {
	q := v.r.URL.Query()
	b := lettersBody{Filter: readFilter(q), Cursor: q.Get("cursor")}
	b.Filter.State = cmp.Or(b.Filter.State, "dead")
	f := &b.Filter
	list, err := f.apiFilter(p.cfg.Now())
	if err != nil {
		return err
	}
	if f.State != "any" {
		list.State = f.State
	}
	// A cursor is only valid for the same query. A relative time would give another time for each
	// page. So the link to the next page contains the computed times.
	if since, until := q.Get("since_ms"), q.Get("until_ms"); b.Cursor != "" {
		list.Since, _ = strconv.ParseInt(since, 10, 64)
		list.Until, _ = strconv.ParseInt(until, 10, 64)
	}
	var qs apiCalls
	addCall(&qs, &b.Page, func() (api.DeadLetterPage, error) { return v.client.DeadLetters(v.ctx, list, b.Cursor, letterPage) })
	if b.Cursor == "" {
		addCall(&qs, &b.Top, func() (api.LetterTop, error) { return v.client.TopDeadLetters(v.ctx, list, 8) })
	}
	qs.wait()
	if b.Page.Err != nil && notify.KindOf(b.Page.Err) == notify.KindInvalid {
		return b.Page.Err
	}
	if b.Page.V.Cursor != "" {
		next := f.query()
		next.Set("cursor", b.Page.V.Cursor)
		next.Set("since_ms", strconv.FormatInt(list.Since, 10))
		next.Set("until_ms", strconv.FormatInt(list.Until, 10))
		b.Next = withQuery(Prefix+"dead-letters", next)
	}
	return v.show("deadletters", "Dead letters", &b)
}

// planBody is a plan with the form that starts its job.
type planBody struct {
	Kind    string
	Filter  filter
	Options options
	Plan    api.Plan
	Spec    string // the plan's spec, encoded for the form
	Command string
	Empty   bool // the filter is empty, and the query does not contain all=1
	All     string
}

// options are the options of a replay in the form.
type options struct {
	Rate, Canary, AbortIf                 string
	Expired, Collapse, Order, OpenCircuit string
}

// namedCounts are the counts of a plan for one property.
type namedCounts struct {
	Name   string
	Counts map[string]int
}

// By returns the counts of a plan, in a fixed order of properties.
func (b *planBody) By() (out []namedCounts) {
	for _, name := range []string{"caller", "channel", "provider", "class", "code", "template"} {
		if len(b.Plan.Counts[name]) > 0 {
			out = append(out, namedCounts{name, b.Plan.Counts[name]})
		}
	}
	return out
}

// Eta returns how long the job will take at its rate, without the wait for the canary.
func (b *planBody) Eta() time.Duration { return time.Duration(b.Plan.EtaMs) * time.Millisecond }

func allowedOr(s string, of ...string) string {
	if slices.Contains(of, s) {
		return s
	}
	return of[0]
}

func (p *Page) plan(v *visit) error {
	q := v.r.URL.Query()
	b := planBody{Kind: allowedOr(q.Get("kind"), "replay", "discard"), Filter: readFilter(q)}
	b.Filter.State = "dead"
	b.Options = options{
		Rate: strings.TrimSpace(q.Get("rate")), Canary: strings.TrimSpace(q.Get("canary")), AbortIf: strings.TrimSpace(q.Get("abort_if")),
		Expired: allowedOr(q.Get("expired"), "skip", "send", "fail"), Collapse: allowedOr(q.Get("collapse"), "none", "latest-per-recipient"),
		Order: allowedOr(q.Get("order"), "offset", "due"), OpenCircuit: allowedOr(q.Get("open_circuit"), "stop", "wait"),
	}
	title := "Plan a " + b.Kind
	if b.Filter.Empty() && !b.Filter.All {
		q.Set("all", "1")
		b.Empty, b.All = true, withQuery(Prefix+"plan", q)
		return v.show("plan", title, &b)
	}
	spec := api.JobSpec{Kind: b.Kind}
	var err error
	if spec.Filter, err = b.Filter.apiFilter(p.cfg.Now()); err != nil {
		return err
	}
	if err = b.Options.applyTo(&spec); err != nil {
		return err
	}
	if b.Plan, err = v.client.Plan(v.ctx, spec); err != nil {
		return err
	}
	raw, err := json.Marshal(b.Plan.Spec)
	if err != nil {
		return err
	}
	b.Spec = base64.RawURLEncoding.EncodeToString(raw)
	b.Command = b.command()
	return v.show("plan", title, &b)
}

// Limits that the API has too.
const (
	maxRate   = 20_000
	maxCanary = 1000
)

// applyTo parses the options into spec. In the API, a negative number turns the canary or the guard
// off. In the form, 0 turns it off and a negative number is refused, so that a typing error cannot
// turn off the guard.
func (o *options) applyTo(spec *api.JobSpec) (err error) {
	if spec.Kind != "replay" {
		*o = options{}
		return nil
	}
	number := func(field, s string, most float64) float64 {
		n, nerr := strconv.ParseFloat(s, 64)
		if (nerr != nil || !(n >= 0 && n <= most)) && err == nil { // this form of the condition also finds NaN
			err = notify.Invalid("bad_number", field, "must be a number from 0 to "+strconv.FormatFloat(most, 'f', -1, 64))
		}
		return n
	}
	o.Rate = cmp.Or(o.Rate, "50")
	o.Canary = cmp.Or(o.Canary, "10")
	o.AbortIf = cmp.Or(o.AbortIf, "20")
	spec.Rate, spec.AbortIf = number("rate", o.Rate, maxRate), number("abort_if", o.AbortIf, 100)/100
	spec.AbortIf = cmp.Or(spec.AbortIf, -1)
	// Do not round a fraction to 0, because 0 means no canary.
	canary := number("canary", o.Canary, maxCanary)
	if spec.Canary = int(canary); float64(spec.Canary) != canary && err == nil {
		err = notify.Invalid("bad_number", "canary", "must be a whole number; 0: no canary")
	}
	spec.Canary = cmp.Or(spec.Canary, -1)
	spec.Expired, spec.Collapse, spec.Order, spec.OpenCircuit = o.Expired, o.Collapse, o.Order, o.OpenCircuit
	return err
}

// command returns the notifyctl command that makes the same plan.
func (b *planBody) command() string {
	args := append([]string{"dlq", b.Kind}, b.Filter.flags()...)
	if b.Filter.All {
		args = append(args, "--all")
	}
	if b.Kind == "replay" {
		o := &b.Options
		unless := func(s, def string) string {
			if s == def {
				return ""
			}
			return s
		}
		abort := o.AbortIf + "%"
		if b.Plan.Spec.AbortIf < 0 {
			abort = "never"
		}
		args = append(args, "--rate", o.Rate, "--canary", o.Canary, "--abort-if", abort, "--expired", unless(o.Expired, "skip"),
			"--collapse", unless(o.Collapse, "none"), "--order", unless(o.Order, "offset"), "--if-open-circuit", unless(o.OpenCircuit, "stop"))
	}
	return command(args...)
}

// startJob starts the job of the plan that is shown. If the selected letters have changed since the
// plan was made, the server refuses the job.
func (p *Page) startJob(v *visit) error {
	raw, err := base64.RawURLEncoding.DecodeString(v.r.PostFormValue("spec"))
	var r api.JobRequest
	if err == nil {
		err = json.Unmarshal(raw, &r.Spec)
	}
	if err != nil {
		return notify.Invalid("bad_form", "spec", "the form does not contain a plan; open the plan again")
	}
	if r.Spec.Kind == "discard" && strings.TrimSpace(v.r.PostFormValue("confirm")) != "discard" {
		return notify.Invalid("not_confirmed", "confirm", `type "discard" to confirm; go back and try again`)
	}
	r.Digest = v.r.PostFormValue("digest")
	r.Entries, _ = strconv.Atoi(v.r.PostFormValue("entries"))
	r.Approval = v.r.PostFormValue("approval") == "1"
	v.client.Reason = headerText(v.r.PostFormValue("reason"))
	j, err := v.client.StartJob(v.ctx, r)
	if err != nil {
		return err
	}
	return v.goTo(Prefix + "jobs/" + url.PathEscape(j.ID))
}

// headerText returns s in a form that is valid in an HTTP header.
func headerText(s string) string { return notify.EscapeControls(strings.Join(strings.Fields(s), " ")) }
