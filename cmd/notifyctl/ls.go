package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

type listOptions struct {
	query        api.NotificationQuery
	since, until string
	limit        int
}

func newList(p *program) *cobra.Command {
	var o listOptions
	c := &cobra.Command{
		Use: "ls [USER]", Short: "List what was sent, newest first", Args: cobra.MaximumNArgs(1), Aliases: []string{"list"},
		Long: `ls lists the notifications of a user, or of all users: those of the token's caller, and
with the scope observe or operate those of every caller. What waits for its time is in
"notifyctl schedule ls". A server whose history is in Cassandra lists one user at a
time.`,
		Example: `  notifyctl ls ann
  notifyctl ls --status FAILED --since 10m
  notifyctl ls --caller shop --channel sms --template t1 --since yesterday -o jsonl --limit 1000`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				if o.query.User != "" && o.query.User != args[0] {
					return term.Usage("--user %q and %q: one user at a time", o.query.User, args[0])
				}
				o.query.User = args[0]
			}
			return runList(c.Context(), p, &o)
		},
	}
	f, q := c.Flags(), &o.query
	f.StringVar(&q.User, "user", "", "the user, as the argument")
	f.StringVar(&q.Channel, "channel", "", "only this channel: push, sms, email")
	f.StringVar(&q.Status, "status", "", "only what stands so now, e.g. DELIVERED, FAILED, DEFERRED")
	f.StringVar(&q.Code, "code", "", "only this code, e.g. twilio_21211; notifyctl explain tells what codes mean")
	f.StringVar(&q.Caller, "caller", "", "only this caller's; for operators")
	f.StringVar(&q.Template, "template", "", "only this template")
	f.StringVar(&q.Campaign, "campaign", "", "only this campaign")
	f.StringVar(&o.since, "since", "", "accepted at or after: a time, a distance such as 2h, or yesterday, 'today 09:00'")
	f.StringVar(&o.until, "until", "", "accepted before")
	f.IntVar(&o.limit, "limit", 50, "how many at most")
	f.StringVar(&q.Cursor, "cursor", "", "go on where an earlier list ended")
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

// maxPage is the largest page the server gives.
const maxPage = 1000

func runList(ctx context.Context, p *program, o *listOptions) error {
	q := o.query
	if err := checkKinds(q.Channel, ""); err != nil {
		return err
	}
	q.Status = strings.ToUpper(q.Status)
	if _, ok := notify.ParseState(q.Status); q.Status != "" && !ok {
		return term.Usage("--status %q: states are %s%s", o.query.Status, strings.Join(stateNames(), ", "), nearest(q.Status, stateNames()))
	}
	var err error
	if q.Since, q.Until, err = p.window(o.since, o.until); err != nil {
		return err
	}
	return runPages(p, &pages[api.Status]{
		limit: o.limit, cursor: q.Cursor,
		get: func(cl *api.Client, after string, n int) (api.UserHistory, error) {
			q.Cursor, q.Limit = after, n
			return cl.Notifications(ctx, q)
		},
		head:     []string{"NOTIFICATION", "STATUS", "CHANNEL", "CATEGORY", "USER", "CALLER", "ACCEPTED", "CODE"},
		optional: []string{"CATEGORY", "CALLER", "CHANNEL", "USER"},
		row: func(s *api.Status) []string {
			return []string{s.NotificationID, s.Status, s.Channel, s.Category, s.UserID, s.Caller, p.when(s.AcceptedAt), s.Code}
		},
	})
}

// pages is a list that a command reads page by page, and prints as one table.
type pages[T any] struct {
	limit    int
	cursor   string // where it begins
	get      func(cl *api.Client, after string, n int) (api.List[T], error)
	head     []string
	optional []string // columns that are left out, the first named first, where the terminal is narrow
	row      func(*T) []string
}

func runPages[T any](p *program, l *pages[T]) error {
	if l.limit < 1 {
		return term.Usage("--limit %d: it is above 0", l.limit)
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	out := api.List[T]{Items: []T{}, Cursor: l.cursor}
	for len(out.Items) < l.limit {
		page, err := l.get(cl, out.Cursor, min(l.limit-len(out.Items), maxPage))
		if err != nil {
			return err
		}
		out.Items, out.Cursor = append(out.Items, page.Items...), page.Cursor
		if page.Cursor == "" {
			break
		}
	}
	if err := printWide(p, out, out.Items, l.optional, func() term.Table {
		t := term.Table{l.head}
		for i := range out.Items {
			t = append(t, l.row(&out.Items[i]))
		}
		return t
	}); err != nil {
		return err
	}
	p.more(len(out.Items), out.Cursor)
	return nil
}

// window resolves --since and --until once: what is shown and done is the same. An
// empty one is the zero time.
func (p *program) window(since, until string) (from, to time.Time, err error) {
	for _, t := range []struct {
		flag, in string
		to       *time.Time
	}{{"since", since, &from}, {"until", until, &to}} {
		if t.in == "" {
			continue
		}
		if *t.to, err = parseTime(t.in, p.now()); t.flag == "since" {
			if d, bare := parseSpan(t.in); bare == nil { // as kubectl and journalctl have it
				*t.to, err = p.now().Add(-d), nil
			}
		}
		if err != nil {
			return from, to, term.Usage("--%s: %v", t.flag, err)
		}
	}
	return from, to, nil
}

// printPage writes a page: as its items where one line is one thing.
func printPage[P, T any](p *program, page P, items []T, table func() term.Table) error {
	return printWide(p, page, items, nil, table)
}

// printWide is printPage for a table that leaves columns out, the first named
// first, until it fits the terminal.
func printWide[P, T any](p *program, page P, items []T, optional []string, table func() term.Table) error {
	pr := p.printer()
	pr.Optional = optional
	if pr.Format == "jsonl" {
		for i := range items {
			if err := pr.Line(items[i], nil); err != nil {
				return err
			}
		}
		return nil
	}
	return pr.Print(page, table)
}

// more says how to get the next page: the command as it was given, and a cursor.
func (p *program) more(n int, cursor string) {
	switch {
	case n == 0:
		p.note("none")
	case cursor != "":
		p.note("there are more: %s --cursor %s", commandLine(p.running, p.args), quote(cursor))
	}
}

// commandLine writes a command line for a shell, with its arguments and the flags
// that were given, but for --cursor.
func commandLine(c *cobra.Command, args []string) string {
	words := []string{c.CommandPath()}
	for _, a := range args {
		words = append(words, quote(a))
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
				words = append(words, "--"+f.Name+"="+quote(v))
			default:
				words = append(words, "--"+f.Name, quote(v))
			}
		}
	})
	return strings.Join(words, " ")
}
