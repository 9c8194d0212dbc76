package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newTrigger(p *program) *cobra.Command {
	c := &cobra.Command{
		Use: "trigger", Short: "Call a URL at a future time",
		Long: `A trigger is a signed HTTP callback at a future time. It is never early, it is retried
if the call fails, and it can be cancelled until the call. An operator sets the caller's
base URLs and secrets: notifyctl caller set, notifyctl caller rotate-secret.`,
	}
	c.AddCommand(newTriggerCreate(p), newTriggerShow(p), newTriggerList(p), newTriggerCancel(p), newTriggerReschedule(p))
	return c
}

type triggerOptions struct {
	file              string
	url, payload, key string
	later             laterOptions
	exact             bool
	jitter            string
	retry             []string
	lateness, late    string
	dryRun            bool
}

func newTriggerCreate(p *program) *cobra.Command {
	var o triggerOptions
	c := &cobra.Command{
		Use: "create --url URL (--at WHEN | --in DELAY) | create -f FILE", Short: "Register a trigger, or a file of triggers", Args: cobra.NoArgs,
		Example: `  notifyctl trigger create --url https://shop.example/hooks/hold --in 15m --payload '{"hold":"h-7719"}'
  notifyctl trigger create --url https://shop.example/hooks/open --at 'tomorrow 09:00' --tz Europe/Berlin --payload @body.bin
  notifyctl trigger create --url https://shop.example/hooks/x --in 1h --retry 5s --retry 1m --max-lateness 10m --late drop`,
		RunE: func(c *cobra.Command, _ []string) error { return runTriggerCreate(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&o.file, "file", "f", "", "file of triggers in the form of the API, NDJSON or a JSON array; -: standard input; only --idempotency-key goes with it")
	f.StringVar(&o.url, "url", "", "URL to call; it must lie below one of the caller's base URLs")
	o.later.add(f)
	f.StringVar(&o.payload, "payload", "", "body of the call, at most 4,096 bytes, sent byte for byte; @FILE reads a file, @- standard input")
	f.StringVar(&o.jitter, "jitter", "", "delay by a random time up to this, to spread load; default: the server's")
	f.BoolVar(&o.exact, "exact", false, "no random delay")
	f.StringArrayVar(&o.retry, "retry", nil, "wait before the next attempt; may be given up to 20 times; default: 10s 30s 2m 10m 30m")
	f.StringVar(&o.lateness, "max-lateness", "", "how late the first attempt may be; see --late")
	f.StringVar(&o.late, "late", "", "what to do if it is later than --max-lateness: fire, drop, dead_letter")
	f.StringVar(&o.key, "idempotency-key", "", "the idempotency key; default: random")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the request instead of sending it")
	completeFlag(c, "late", []string{"fire", "drop", "dead_letter"})
	return c
}

func runTriggerCreate(ctx context.Context, p *program, o *triggerOptions) error {
	if o.file != "" {
		if o.url != "" || o.later.given() || o.payload != "" || o.dryRun {
			return term.Usage("-f: the file describes the triggers, so no flag may describe a trigger; only --idempotency-key is allowed with -f")
		}
		return runTriggerFile(ctx, p, o)
	}
	body, err := o.trigger(p)
	if err != nil {
		return err
	}
	t, err := p.target()
	if err != nil {
		return err
	}
	key := cmp.Or(o.key, newKey(p.now()))
	if o.dryRun {
		return printRequest(p, t.server+"/v1/triggers", key, body)
	}
	if err := p.confirm(&t, changes, "register a trigger"); err != nil {
		return err
	}
	out, err := p.clientOf(&t).Trigger(ctx, body, key)
	if err != nil {
		return withRetryHint(ctx, err, key, "register")
	}
	if err := p.printer().Record(out, term.Table{{"trigger", out.TriggerID}, {"fires", out.FireAt.UTC().Format("2006-01-02T15:04:05.000Z")}}); err != nil {
		return err
	}
	o.later.printDue(p, out.FireAt)
	p.note("to see its outcome: notifyctl trigger show %s", out.TriggerID)
	return nil
}

func (o *triggerOptions) trigger(p *program) (t api.Trigger, err error) {
	if o.url == "" {
		return t, term.Usage("--url is missing; give the URL to call")
	}
	t = api.Trigger{CallbackURL: o.url, Exact: o.exact, LatePolicy: o.late}
	at, err := o.later.resolveFuture(p.now(), o.key != "")
	switch {
	case err != nil:
		return t, err
	case at == nil:
		return t, term.Usage("give a time with --at or --in")
	}
	t.FireAt = at
	for flag, s := range map[string]*string{"--jitter": &o.jitter, "--max-lateness": &o.lateness} {
		if *s == "" {
			continue
		}
		d, err := parseSpan(*s)
		if err != nil {
			return t, err
		}
		seconds := d.Seconds()
		if flag == "--jitter" {
			t.JitterSeconds = &seconds
		} else {
			t.MaxLatenessSeconds = &seconds
		}
	}
	for _, s := range o.retry {
		d, err := parseSpan(s)
		if err != nil {
			return t, err
		}
		t.RetryScheduleSeconds = append(t.RetryScheduleSeconds, d.Seconds())
	}
	payload := []byte(o.payload)
	if name, ok := strings.CutPrefix(o.payload, "@"); ok {
		if payload, err = readAll(p, name); err != nil {
			return t, err
		}
	}
	switch {
	case len(payload) == 0:
	case json.Valid(payload) && (payload[0] == '{' || payload[0] == '['):
		t.Payload = payload
	case utf8.Valid(payload):
		if t.Payload, err = json.Marshal(string(payload)); err != nil {
			return t, err
		}
	default:
		t.PayloadBase64 = base64.StdEncoding.EncodeToString(payload)
	}
	return t, nil
}

func newTriggerShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "show TRIGGER", Short: "Show the state of a trigger, and its calls", Args: term.Exact("a trigger id"), Aliases: []string{"why"},
		Example: "  notifyctl trigger show trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS",
		RunE:    func(c *cobra.Command, args []string) error { return showTrigger(c.Context(), p, args[0]) },
	}
}

func showTrigger(ctx context.Context, p *program, id string) error {
	cl, err := p.client()
	if err != nil {
		return err
	}
	t, err := cl.TriggerStatus(ctx, id)
	if err != nil {
		return err
	}
	return printTrigger(p, &t)
}

func printTrigger(p *program, t *api.TriggerStatus) error {
	pr := p.printer()
	if pr.Format != "table" || pr.JQ != "" {
		return pr.Print(t, nil)
	}
	out := term.Table{
		{"trigger", t.TriggerID}, {"status", t.Status}, {"reason", t.Reason}, {"caller", t.Caller}, {"url", t.CallbackURL},
		{"payload", strconv.Itoa(t.PayloadBytes) + " bytes"}, {"created", p.timeText(t.CreatedAt)}, {"fires", p.timeText(t.FireAt)},
		{"ended", p.optionalTimeText(t.EndedAt)}, {"trace", t.TraceID},
	}
	if t.Generation > 0 {
		out = append(out, []string{"generation", strconv.Itoa(int(t.Generation))})
	}
	if t.MaxLatenessSeconds > 0 {
		out = append(out, []string{"max lateness", time.Duration(t.MaxLatenessSeconds*float64(time.Second)).String() + ", then " + t.LatePolicy})
	}
	if t.Deferrals > 0 {
		out = append(out, []string{"deferrals", count(t.Deferrals)})
	}
	if err := pr.Record(t, out); err != nil {
		return err
	}
	if len(t.Log) > 0 {
		fmt.Fprintln(p.out)
		if err := pr.Print(t, attemptsTable(p, t.Log)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p.out, "\n%s\n", term.Clean(t.Next))
	return err
}

func attemptsTable(p *program, log []api.TriggerAttempt) term.Table {
	t := term.Table{{"TIME", "ATTEMPT", "CLASS", "STATUS", "TOOK", "ADDRESS", "DETAIL"}}
	for _, a := range log {
		status := ""
		if a.Status != 0 {
			status = strconv.Itoa(a.Status)
		}
		detail := a.Detail
		if a.Body != "" {
			detail = strings.TrimSpace(detail + " " + strconv.Quote(a.Body))
		}
		t = append(t, []string{
			p.localTimeText(a.At), strconv.Itoa(a.N), a.Class, status,
			span(time.Duration(a.TookMS * float64(time.Millisecond))), a.Address, detail,
		})
	}
	return t
}

var triggerStates = []string{"PENDING", "IN_FLIGHT", "FIRED", "FAILED", "CANCELLED", "EXPIRED"}

func newTriggerList(p *program) *cobra.Command {
	var q api.TriggerQuery
	c := newListing(p, &cobra.Command{
		Short: "List triggers, newest first",
		Example: `  notifyctl trigger ls --status FAILED
  notifyctl trigger ls --status PENDING --limit 1000 -o jsonl --jq .trigger_id`,
	}, &listing[api.TriggerStatus]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.TriggerPage, error) {
			q.Status, q.Cursor, q.Limit = strings.ToUpper(q.Status), after, n
			return cl.Triggers(ctx, q)
		},
		columns: columns[api.TriggerStatus]{
			head: "TRIGGER  STATUS  FIRES  ATTEMPTS  REASON  CALLER  URL", optional: []string{"CALLER", "REASON", "ATTEMPTS"},
			row: func(s *api.TriggerStatus) []string {
				fires := p.timeText(s.FireAt)
				if s.Status == "CANCELLED" { // a cancelled trigger never fires
					fires = ""
				}
				return []string{s.TriggerID, s.Status, fires, strconv.Itoa(s.Attempts), s.Reason, s.Caller, s.CallbackURL}
			},
		},
	})
	f := c.Flags()
	f.StringVar(&q.Status, "status", "", "only this status: "+strings.Join(triggerStates, ", "))
	f.StringVar(&q.Caller, "caller", "", "only this caller's (operators)")
	completeFlag(c, "status", triggerStates)
	return c
}

func newTriggerCancel(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "cancel TRIGGER", Short: "Cancel a trigger for good", Args: term.Exact("a trigger id"),
		Long: `cancel ends a waiting trigger, also between two attempts. No call starts afterwards.
It exits 6 while a call may be under way, and after the trigger has ended.`,
		Example: "  notifyctl trigger cancel trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS",
		RunE:    func(c *cobra.Command, args []string) error { return cancelTrigger(c.Context(), p, args[0]) },
	}
}

func cancelTrigger(ctx context.Context, p *program, id string) error {
	return confirmAndChange(p, changes, "cancel "+id, "", func(cl *api.Client) (api.TriggerStatus, error) {
		return cl.CancelTrigger(ctx, id)
	}, func(out *api.TriggerStatus) error {
		return p.printer().Record(out, term.Table{{"cancelled", out.TriggerID}, {"at", p.optionalTimeText(out.EndedAt)}, {"final", "no call will be made"}})
	})
}

func newTriggerReschedule(p *program) *cobra.Command {
	var o laterOptions
	c := &cobra.Command{
		Use: "reschedule TRIGGER", Short: "Move a waiting trigger to another time", Args: term.Exact("a trigger id"),
		Example: `  notifyctl trigger reschedule trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS --in 30m
  notifyctl trigger reschedule trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS --at 'tomorrow 09:00' --tz Europe/Berlin`,
		RunE: func(c *cobra.Command, args []string) error { return runReschedule(c.Context(), p, args[0], &o) },
	}
	o.add(c.Flags())
	return c
}

// runTriggerFile registers the triggers of a file, 1,000 per request. The idempotency keys depend
// on the content of the file, as in a batch of notifications. So a second run registers nothing
// twice.
func runTriggerFile(ctx context.Context, p *program, o *triggerOptions) error {
	t, err := p.target()
	if err != nil {
		return err
	}
	if err := p.confirm(&t, changes, "register the triggers in "+label(o.file)); err != nil {
		return err
	}
	key, err := batchKey(p, o.file, o.key)
	if err != nil {
		return err
	}
	b := &batchSender{p: p, o: &sendOptions{}}
	err = postChunks(ctx, p, p.clientOf(&t), o.file, "/v1/triggers:batch", key, b.recordAnswer)
	pr, sum := p.printer(), &b.total
	if err == nil && sum.Sent == 0 {
		return term.Usage("%s contains no triggers", label(o.file))
	}
	if pr.Format != "jsonl" {
		var table term.Table
		for _, f := range sum.Failed {
			if table == nil {
				table = term.Table{{"LINE", "CODE", "DETAIL"}}
			}
			table = append(table, []string{fmt.Sprint(f.Line), f.Error.Code, detailOf(f.Error)})
		}
		if perr := pr.Print(sum, table); perr != nil {
			return perr
		}
	}
	p.note("%s triggers: %s accepted (%s by an earlier run), %s refused", count(sum.Sent), count(sum.Accepted), count(sum.Replayed), count(sum.Rejected))
	switch {
	case err != nil:
		return err
	case sum.Rejected > 0:
		return term.Exitf(term.ExitPartial, "%s of %s triggers were refused", count(sum.Rejected), count(sum.Sent))
	}
	return nil
}
