package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

// columns say how a list is shown as a table.
type columns[T any] struct {
	head     string   // the headers, two spaces or more between them
	optional []string // headers of columns that are left out, the first named first, where the terminal is narrow
	row      func(*T) []string
}

var betweenHeaders = regexp.MustCompile(` {2,}`)

// table returns the table of a list.
func (c *columns[T]) table(list []T) term.Table {
	t := term.Table{betweenHeaders.Split(c.head, -1)}
	for i := range list {
		t = append(t, c.row(&list[i]))
	}
	return t
}

// printList writes a list for people as a table, in jsonl a line for each item, and else
// whole, which holds the items.
func printList[T any](p *program, whole any, items []T, c *columns[T]) error {
	pr := p.printer()
	pr.Optional = c.optional
	if pr.Format == "jsonl" {
		whole = items
	}
	return pr.Print(whole, c.table(items))
}

// listing is a command that lists.
type listing[T any] struct {
	columns[T]
	// get returns at most n items behind a cursor.
	get func(ctx context.Context, cl *api.Client, after string, n int) (api.List[T], error)
	// process returns whose an item is; nil: items are of no process.
	process func(*T) string
	whole   bool // get returns all there are: there is no --limit, and no --cursor
	once    bool // get returns the latest n, and no cursor
}

// newListing completes c, which has the flags that filter, to a command that lists.
func newListing[T any](p *program, c *cobra.Command, l *listing[T]) *cobra.Command {
	if c.Use == "" {
		c.Use, c.Args = "ls", cobra.NoArgs
	}
	if strings.HasPrefix(c.Use, "ls") {
		c.Aliases = []string{"list"}
	}
	limit, cursor := maxPage, ""
	if !l.whole {
		c.Flags().IntVar(&limit, "limit", 50, "how many at most")
		if !l.once {
			c.Flags().StringVar(&cursor, "cursor", "", "go on where an earlier list ended")
		}
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return l.print(c.Context(), p, limit, cursor) }
	return c
}

// maxPage is the largest page the server gives.
const maxPage = 1000

// print reads a list page by page and prints it as one.
func (l *listing[T]) print(ctx context.Context, p *program, limit int, cursor string) error {
	if limit < 1 {
		return term.Usage("--limit %d: it is above 0", limit)
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	out := api.List[T]{Items: []T{}, Cursor: cursor}
	for more := true; more && len(out.Items) < limit; more = out.Cursor != "" {
		page, err := l.get(ctx, cl, out.Cursor, min(limit-len(out.Items), maxPage))
		if err != nil {
			return err
		}
		out.Items, out.Cursor, out.Missing, out.Omits = append(out.Items, page.Items...), page.Cursor, page.Missing, page.Omits
	}
	cols := l.columns
	if l.process != nil {
		cols.addProcess(out.Items, l.process)
	}
	if err := printList(p, out, out.Items, &cols); err != nil {
		return err
	}
	p.more(len(out.Items), out.Cursor)
	p.absent(out.Missing)
	if slices.Contains(out.Omits, api.OmitsFanouts) {
		p.note("fan-outs are left out: the server keeps no row by user for their receivers (cassandra.every_receiver)")
	}
	return nil
}

// addProcess adds the column PROCESS in front, if an item names its process.
func (c *columns[T]) addProcess(items []T, of func(*T) string) {
	if !slices.ContainsFunc(items, func(v T) bool { return of(&v) != "" }) {
		return
	}
	row := c.row
	c.head, c.row = "PROCESS  "+c.head, func(v *T) []string { return append([]string{of(v)}, row(v)...) }
}

// absent says which processes did not answer.
func (p *program) absent(ps []api.Process) {
	for i := range ps {
		p.note("%s", term.Clean(ps[i].Absence()))
	}
}

// all makes a get of a call that returns everything.
func all[T any](get func(*api.Client, context.Context) (api.List[T], error)) func(context.Context, *api.Client, string, int) (api.List[T], error) {
	return func(ctx context.Context, cl *api.Client, _ string, _ int) (api.List[T], error) { return get(cl, ctx) }
}

// newGet completes c to a command that shows what its argument names.
func newGet[T any](p *program, c *cobra.Command, get func(*api.Client, context.Context, string) (T, error), fields func(*T) term.Table) *cobra.Command {
	c.RunE = p.call(func(ctx context.Context, cl *api.Client, args []string) error {
		v, err := get(cl, ctx, args[0])
		if err != nil {
			return err
		}
		return p.printer().Record(v, fields(&v))
	})
	return c
}

// change makes a change once the person agrees to it, and prints what became of it. what
// says it in words, reason is for the audit log.
func change[T any](p *program, d danger, what, reason string, do func(*api.Client) (T, error), show func(*T) error) error {
	cl, err := p.confirmed(d, what, reason)
	if err != nil {
		return err
	}
	out, err := do(cl)
	if err != nil {
		return err
	}
	return show(&out)
}

// reasonFlag adds --reason.
func reasonFlag(c *cobra.Command) *string {
	return c.Flags().String("reason", "", "why; kept in the audit log")
}

// more says how to get the next page: the command as it was given, and a cursor.
func (p *program) more(n int, cursor string) {
	switch {
	case n == 0:
		p.note("none")
	case cursor != "":
		p.note("there are more: %s --cursor %s", givenLine(p.running, p.args), term.Quote(cursor))
	}
}

// givenLine writes a command line for a shell, with its arguments and the flags that were
// given, but for --cursor.
func givenLine(c *cobra.Command, args []string) string {
	words := []string{c.CommandPath()}
	for _, a := range args {
		words = append(words, term.Quote(a))
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "cursor" {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			switch {
			case f.NoOptDefVal != "" && v == f.NoOptDefVal:
				words = append(words, "--"+f.Name)
			case f.NoOptDefVal != "" || strings.HasPrefix(v, "-"): // else it reads as another flag
				words = append(words, "--"+f.Name+"="+term.Quote(v))
			default:
				words = append(words, "--"+f.Name, term.Quote(v))
			}
		}
	})
	return strings.Join(words, " ")
}

func newList(p *program) *cobra.Command {
	var q api.NotificationQuery
	var since, until string
	c := newListing(p, &cobra.Command{
		Use: "ls [USER]", Short: "List what was sent, newest first", Args: cobra.MaximumNArgs(1),
		Long: `ls lists the notifications of a user, or of all users: those of the token's caller, and
with the scope observe or operate those of every caller. What waits for its time is in
"notifyctl schedule ls". A server whose history is in Cassandra lists one user at a
time.`,
		Example: `  notifyctl ls ann
  notifyctl ls --status FAILED --since 10m
  notifyctl ls --caller shop --channel sms --template t1 --since yesterday -o jsonl --limit 1000`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				if q.User != "" && q.User != args[0] {
					return term.Usage("--user %q and %q: one user at a time", q.User, args[0])
				}
				q.User = args[0]
			}
			if err := checkKinds(q.Channel, ""); err != nil {
				return err
			}
			var err error
			if q.Status, err = checkState(q.Status); err != nil {
				return err
			}
			q.Since, q.Until, err = p.window(since, until)
			return err
		},
	}, &listing[api.Status]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.UserHistory, error) {
			q.Cursor, q.Limit = after, n
			return cl.Notifications(ctx, q)
		},
		columns: columns[api.Status]{
			head:     "NOTIFICATION  STATUS  CHANNEL  CATEGORY  USER  CALLER  ACCEPTED  CODE",
			optional: []string{"CATEGORY", "CALLER", "CHANNEL", "USER"},
			row: func(s *api.Status) []string {
				return []string{s.NotificationID, s.Status, s.Channel, s.Category, s.UserID, s.Caller, p.when(s.AcceptedAt), s.Code}
			},
		},
	})
	f := c.Flags()
	f.StringVar(&q.User, "user", "", "the user, as the argument")
	f.StringVar(&q.Channel, "channel", "", "only this channel: push, sms, email")
	f.StringVar(&q.Status, "status", "", "only what stands so now, e.g. DELIVERED, FAILED, DEFERRED")
	f.StringVar(&q.Code, "code", "", "only this code, e.g. twilio_21211; notifyctl explain tells what codes mean")
	f.StringVar(&q.Caller, "caller", "", "only this caller's; for operators")
	f.StringVar(&q.Template, "template", "", "only this template")
	f.StringVar(&q.Campaign, "campaign", "", "only this campaign")
	f.StringVar(&since, "since", "", "accepted at or after: a time, a distance such as 2h, or yesterday, 'today 09:00'")
	f.StringVar(&until, "until", "", "accepted before")
	complete(c, "channel", channelNames())
	complete(c, "status", stateNames())
	return c
}

func stateNames() (names []string) {
	for state := notify.State(1); int(state) < notify.States; state++ {
		names = append(names, state.String())
	}
	return names
}

// window resolves --since and --until once: what is shown and done is the same. An
// empty one is the zero time.
func (p *program) window(since, until string) (from, to time.Time, err error) {
	if since != "" {
		if d, bare := parseSpan(since); bare == nil { // as kubectl and journalctl have it
			from = p.now().Add(-d)
		} else if from, err = parseTime(since, p.now()); err != nil {
			return from, to, term.Usage("--since: %v", err)
		}
	}
	if until != "" {
		if to, err = parseTime(until, p.now()); err != nil {
			return from, to, term.Usage("--until: %v", err)
		}
	}
	return from, to, nil
}
