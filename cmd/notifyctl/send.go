package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

type sendOptions struct {
	channel, category                                 string
	user, address                                     string
	title, body, html, template, data, from, collapse string
	vars                                              []string
	ttl, until                                        string
	later                                             laterOptions
	key                                               string

	file          string
	fanout        string
	format        string
	campaign      string
	partSize      int
	inFlight      int
	wait, dryRun  bool
	contentNamed  bool // a flag in contentFlags was given
	addressedFlag bool // --user or --address was given
}

func newSend(p *program) *cobra.Command {
	var o sendOptions
	c := &cobra.Command{
		Use: "send", Short: "Send one notification, a batch file, or one content to many receivers", Args: cobra.NoArgs,
		Long: `send has three forms:

  one       --channel, a receiver and a content; prints the notification's id
  a batch   -f FILE: different notifications in the form of the API, one JSON object per
            line or one JSON array; sent in order, a thousand per request
  a fan-out --fanout FILE: one content for all receivers in a file: one user id per
            line, or NDJSON {"user_id","address","variables"}, or CSV with a header
            (user_id, address, and variables by name). It is sent as a campaign in
            parts, of any size in bounded memory

Every form is safe to repeat. The idempotency keys of a batch follow from the contents
of the file, so a second run sends nothing twice. A fan-out records its progress; when
it is stopped, it prints the command that continues it.`,
		Example: `  notifyctl send --channel push --user ann --title Hello --body 'It works' --wait
  notifyctl send --channel sms --category otp --user ann --address +4915112345678 --body 'Code {{code}}' --var code=1234 --ttl 5m
  notifyctl send --channel push --user ann --body 'Doors open' --expires-at 'tomorrow 20:00' --tz Europe/Berlin
  notifyctl send -f orders.ndjson -o jsonl
  notifyctl send --channel push --category marketing --title Sale --body 'Hi {{name}}' --fanout users.csv --wait --timeout 10m`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.noteGivenFlags(c)
			return runSend(c.Context(), p, &o)
		},
	}
	o.add(c)
	return c
}

// contentFlags are the flags that say what to send, and when.
var contentFlags = []string{
	"channel", "category", "title", "body", "html", "template", "var", "data", "from", "collapse-key", "at", "in", "tz", "ttl", "expires-in", "expires-at",
}

// noteGivenFlags records which groups of flags were given.
func (o *sendOptions) noteGivenFlags(c *cobra.Command) {
	for _, name := range contentFlags {
		o.contentNamed = o.contentNamed || c.Flags().Changed(name)
	}
	o.addressedFlag = c.Flags().Changed("user") || c.Flags().Changed("address")
}

func (o *sendOptions) add(c *cobra.Command) {
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.channel, "channel", "", "push, sms or email")
	f.StringVar(&o.category, "category", "transactional", "otp, alert, transactional, marketing or digest")
	f.StringVar(&o.user, "user", "", "user to send to; the user's addresses are looked up when it is sent")
	f.StringVar(&o.address, "address", "", "with --user: send to this address instead of the looked-up ones: apns:TOKEN, fcm:TOKEN, a phone number, a mail address")
	f.StringVar(&o.title, "title", "", "title of a push, subject of a mail")
	f.StringVar(&o.body, "body", "", "text, in which {{name}} is replaced by a variable; -: standard input")
	f.StringVar(&o.html, "html", "", "HTML of a mail; @FILE reads a file")
	f.StringVar(&o.template, "template", "", "id of a template at the provider")
	f.StringArrayVar(&o.vars, "var", nil, "a variable as name=value; may be given more than once")
	f.StringVar(&o.data, "data", "", "push: JSON object for the app; @FILE reads a file")
	f.StringVar(&o.from, "from", "", "a configured sender; default: the server's default sender")
	f.StringVar(&o.collapse, "collapse-key", "", "push: replaces an earlier push with this key on the device")
	f.StringVar(&o.ttl, "ttl", "", "give up after this time, e.g. 10m or 2d; default: never")
	f.StringVar(&o.ttl, "expires-in", "", "the same as --ttl")
	f.StringVar(&o.until, "expires-at", "", "give up at this time, in the form of --at; default: never")
	o.later.add(f)
	f.StringVar(&o.key, "idempotency-key", "", "one: the key (default: random); batch: prefix of its keys, a new prefix sends the file again")

	f.StringVarP(&o.file, "file", "f", "", "batch: file of notifications, NDJSON or a JSON array; -: standard input")
	f.StringVar(&o.fanout, "fanout", "", "fan-out: file of receivers; -: standard input")
	f.StringVar(&o.format, "fanout-format", "auto", "fan-out: format of the file: auto, lines, ndjson, csv")
	f.StringVar(&o.campaign, "campaign", "", "fan-out: id of the campaign to continue")
	f.IntVar(&o.partSize, "part-size", 50_000, "fan-out: receivers per part")
	f.IntVar(&o.inFlight, "in-flight", 4, "fan-out: parts sent at the same time")

	f.BoolVar(&o.wait, "wait", false, "wait for the outcome; exit 8 if --timeout ends first")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the request instead of sending it")
	completeKinds(c)
	completeFlag(c, "fanout-format", receiverFormats)
}

func runSend(ctx context.Context, p *program, o *sendOptions) error {
	if err := checkKinds(o.channel, o.category); err != nil {
		return err
	}
	switch {
	case o.file != "" && o.fanout != "":
		return term.Usage("-f (a batch) and --fanout cannot be used together")
	case o.file != "":
		if o.contentNamed || o.addressedFlag {
			return term.Usage("-f: the file contains the notifications, so flags for the content or the receiver cannot be given")
		}
		return runSendBatch(ctx, p, o)
	case o.fanout != "":
		if o.addressedFlag || o.key != "" {
			return term.Usage("--fanout: the file contains the receivers, and the campaign id is the idempotency key, so --user, --address and --idempotency-key cannot be given")
		}
		return runSendFanout(ctx, p, o)
	case o.campaign != "":
		return term.Usage("--campaign needs --fanout")
	}
	return runSendOne(ctx, p, o)
}

func runSendOne(ctx context.Context, p *program, o *sendOptions) error {
	switch {
	case !o.addressedFlag:
		return term.Usage("no receiver is given: use --user, or -f FILE for a batch, or --fanout FILE for many receivers")
	case o.user == "":
		return term.Usage("--address needs --user: opt-outs, quiet hours and the history belong to a user")
	}
	n, err := o.notification(p)
	if err != nil {
		return err
	}
	key := cmp.Or(o.key, newKey(p.now()))
	t, err := p.target()
	if err != nil {
		return err
	}
	if o.dryRun {
		return printRequest(p, t.server+"/v1/notifications", key, n)
	}
	if err := p.confirm(&t, changes, "send"); err != nil {
		return err
	}
	cl := p.clientOf(&t)
	out, err := cl.Send(ctx, n, key)
	if err != nil {
		return withRetryHint(ctx, err, key, "send")
	}
	if o.wait {
		return waitOne(ctx, p, cl, out.NotificationID)
	}
	if err := p.printer().Record(out, term.Table{{"notification", out.NotificationID}, {"status", out.Status}}); err != nil {
		return err
	}
	if out.Replayed {
		p.note("a request with this key was sent before: nothing was sent again")
	}
	if n.ScheduledAt != nil {
		o.later.printDue(p, *n.ScheduledAt)
	}
	p.note("to see its outcome: notifyctl why %s", out.NotificationID)
	return nil
}

// exitOf returns the exit code of err. After the end of ctx it returns ExitInterrupt.
func exitOf(ctx context.Context, err error) int {
	if ctx.Err() != nil {
		return term.ExitInterrupt
	}
	return term.ExitCode(err)
}

// newKey returns a new, unique idempotency key.
func newKey(now time.Time) string { return "ctl-" + notify.NewBase(now).String() }

func (o *sendOptions) notification(p *program) (n api.Notification, err error) {
	if o.channel == "" {
		return n, term.Usage("--channel is missing; give one of %s", strings.Join(channelNames(), ", "))
	}
	n = api.Notification{Channel: o.channel, Category: o.category, To: api.Receiver{UserID: o.user, Address: o.address}}
	if n.Content, err = o.content(p); err != nil {
		return n, err
	}
	n.ScheduledAt, n.ExpiresAt, err = o.sendTimes(p.now())
	return n, err
}

func (o *sendOptions) content(p *program) (c api.Content, err error) {
	c = api.Content{Template: o.template, Title: o.title, Body: o.body, From: o.from, CollapseKey: o.collapse}
	if o.body == "-" {
		if o.fanout == "-" {
			return c, term.Usage("--body - and --fanout -: there is only one standard input")
		}
		b, err := readAll(p, "-")
		if err != nil {
			return c, err
		}
		c.Body = strings.TrimSuffix(string(b), "\n")
	}
	if c.HTML, err = textOrFile(p, o.html); err != nil {
		return c, err
	}
	data, err := textOrFile(p, o.data)
	if err != nil {
		return c, err
	}
	if data != "" {
		if !isObject([]byte(data)) {
			return c, term.Usage("--data is not a JSON object")
		}
		c.Data = compact([]byte(data))
	}
	c.Variables, err = variables(o.vars)
	return c, err
}

// textOrFile returns the text of a flag. If the text is @ and a name, it returns the content of the
// file with this name.
func textOrFile(p *program, v string) (string, error) {
	name, ok := strings.CutPrefix(v, "@")
	if !ok {
		return v, nil
	}
	if name == "-" {
		return "", term.Usage("@- is not supported; name a file")
	}
	b, err := readAll(p, name)
	return string(b), err
}

func isObject(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 0 && b[0] == '{' && json.Valid(b)
}

func compact(b []byte) json.RawMessage {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return b
	}
	return out.Bytes()
}

func variables(list []string) (json.RawMessage, error) {
	if len(list) == 0 {
		return nil, nil
	}
	vars := map[string]string{}
	for _, kv := range list {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return nil, term.Usage("--var %q is not name=value", kv)
		}
		if _, twice := vars[name]; twice {
			return nil, term.Usage("--var %s is given twice", name)
		}
		vars[name] = value
	}
	return json.Marshal(vars)
}

// sendTimes returns the time at which notifyd must send and the time at which the notification
// expires. If sendAt is nil, notifyd sends at once. If stopAt is nil, the notification does not
// expire.
func (o *sendOptions) sendTimes(now time.Time) (sendAt, stopAt *time.Time, err error) {
	begin := now
	if sendAt, err = o.later.resolveFuture(now, o.key != "" || o.campaign != ""); err != nil {
		return nil, nil, err
	}
	if sendAt != nil {
		begin = *sendAt
	}
	switch {
	case o.ttl != "" && o.until != "":
		return nil, nil, term.Usage("--ttl and --expires-at both say when to stop trying; use one of them")
	case o.until != "":
		if stopAt, err = o.later.parseMoment("--expires-at", o.until, now); err != nil {
			return nil, nil, err
		}
		if !stopAt.After(begin) {
			return nil, nil, term.Usage("--expires-at %s must be after the time of sending", o.until)
		}
	case o.ttl != "":
		d, err := parseSpan(o.ttl)
		if err != nil {
			return nil, nil, err
		}
		if d == 0 {
			return nil, nil, term.Usage("--ttl must be above 0")
		}
		t := begin.Add(d).UTC().Truncate(time.Millisecond)
		stopAt = &t
	}
	return sendAt, stopAt, nil
}

// dryRunRequest is a request in the form in which --dry-run prints it. It does not contain the
// token.
type dryRunRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    any               `json:"body"`
}

func printRequest(p *program, url, key string, body any) error {
	r := dryRunRequest{Method: "POST", URL: url, Headers: map[string]string{"Content-Type": api.TypeJSON}, Body: body}
	if key != "" {
		r.Headers[api.HeaderIdempotencyKey] = key
	}
	pr := p.printer()
	if pr.Format != "table" || pr.JQ != "" {
		return pr.Print(r, nil)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(body); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "%s %s\nContent-Type: %s\n", r.Method, r.URL, api.TypeJSON)
	if key != "" {
		fmt.Fprintf(p.out, "%s: %s\n", api.HeaderIdempotencyKey, key)
	}
	_, err := fmt.Fprintf(p.out, "\n%s", b.Bytes())
	p.note("nothing was sent")
	return err
}

// openInput opens a file, or standard input for "-". The result size is in bytes, or -1 if it is
// not known.
func openInput(p *program, name string) (f inputFile, size int64, err error) {
	if name == "-" {
		if p.inTerminal {
			p.note("reading standard input; end it with Ctrl-D")
		}
		return inputFile{p.in, func() error { return nil }}, -1, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return f, 0, &term.Error{Exit: term.ExitUsage, Err: err}
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder", name)
	}
	if err != nil {
		return f, 0, &term.Error{Exit: term.ExitUsage, Err: errors.Join(err, file.Close())}
	}
	size = -1
	if info.Mode().IsRegular() {
		size = info.Size()
	}
	return inputFile{file, file.Close}, size, nil
}
