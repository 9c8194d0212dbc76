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

// columns describes the table of a list.
type columns[T any] struct {
	head string // the headers, separated by two or more spaces
	// optional contains headers of columns that are omitted on a narrow terminal, in the order in
	// which they are omitted.
	optional []string
	row      func(*T) []string
}

var betweenHeaders = regexp.MustCompile(` {2,}`)

// table returns a list as a table: the line of headers, then one row for each item.
func (c *columns[T]) table(list []T) term.Table {
	t := term.Table{betweenHeaders.Split(c.head, -1)}
	for i := range list {
		t = append(t, c.row(&list[i]))
	}
	return t
}

// printList prints a list. As a table or jsonl it prints only the items. In every other format it
// prints the complete answer that contains the items, which is the parameter whole.
func printList[T any](p *program, whole any, items []T, c *columns[T]) error {
	pr := p.printer()
	pr.Optional = c.optional
	if pr.Format == "jsonl" {
		whole = items
	}
	return pr.Print(whole, c.table(items))
}

// listing describes a command that prints a list.
type listing[T any] struct {
	columns[T]
	// get returns at most n items after a cursor.
	get func(ctx context.Context, cl *api.Client, after string, n int) (api.List[T], error)
	// process returns the process of an item; nil: items belong to no process.
	process func(*T) string
	whole   bool // get returns all items: the command has no --limit and no --cursor
	once    bool // get returns the latest n items and no cursor: there is no --cursor
}

// newListing adds to c the code and the flags of a command that prints a list. The flags that
// filter the list must be in c already.
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
			c.Flags().StringVar(&cursor, "cursor", "", "continue where an earlier list ended")
		}
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return l.print(c.Context(), p, limit, cursor) }
	return c
}

// maxPage is the largest page that the server returns.
const maxPage = 1000

// print reads a list page by page and prints all pages as one list.
func (l *listing[T]) print(ctx context.Context, p *program, limit int, cursor string) error {
	if limit < 1 {
		return term.Usage("--limit %d must be above 0", limit)
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
	p.noteNextPage(len(out.Items), out.Cursor)
	p.noteMissing(out.Missing)
	if slices.Contains(out.Omits, api.OmitsFanouts) {
		p.note("fan-outs are not listed: the server stores no row per user for their receivers (cassandra.every_receiver)")
	}
	return nil
}

// addProcess adds the column PROCESS as the first column if at least one item has a process.
func (c *columns[T]) addProcess(items []T, of func(*T) string) {
	if !slices.ContainsFunc(items, func(v T) bool { return of(&v) != "" }) {
		return
	}
	row := c.row
	c.head, c.row = "PROCESS  "+c.head, func(v *T) []string { return append([]string{of(v)}, row(v)...) }
}

// noteMissing prints the processes that did not answer.
func (p *program) noteMissing(ps []api.Process) {
	for i := range ps {
		p.note("%s", term.Clean(ps[i].Absence()))
	}
}

// wholeList turns a client method that returns all items at once into a function for listing.get.
func wholeList[T any](get func(*api.Client, context.Context) (api.List[T], error)) func(context.Context, *api.Client, string, int) (api.List[T], error) {
	return func(ctx context.Context, cl *api.Client, _ string, _ int) (api.List[T], error) { return get(cl, ctx) }
}

// newShowCommand adds to c the code of a command that shows one item. The argument of the command
// is the name of the item.
func newShowCommand[T any](p *program, c *cobra.Command, get func(*api.Client, context.Context, string) (T, error), fields func(*T) term.Table) *cobra.Command {
	c.RunE = p.withClient(func(ctx context.Context, cl *api.Client, args []string) error {
		v, err := get(cl, ctx, args[0])
		if err != nil {
			return err
		}
		return p.printer().Record(v, fields(&v))
	})
	return c
}

// confirmAndChange asks the person to confirm a change, makes the change, and prints the result.
// The parameter description says what will be changed. The audit log stores the reason.
func confirmAndChange[T any](p *program, d confirmLevel, description, reason string, do func(*api.Client) (T, error), show func(*T) error) error {
	cl, err := p.confirmedClient(d, description, reason)
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

// noteNextPage prints the command for the next page, which is the current command with a cursor. If
// the list has no items, it prints "none".
func (p *program) noteNextPage(n int, cursor string) {
	switch {
	case n == 0:
		p.note("none")
	case cursor != "":
		p.note("for the next page: %s --cursor %s", givenLine(p.running, p.args), term.Quote(cursor))
	}
}

// givenLine returns the current command line with its arguments and flags, without --cursor.
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
			case f.NoOptDefVal != "" || strings.HasPrefix(v, "-"): // otherwise the value would be read as an argument or as another flag
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
		Long: `ls lists the notifications of one user or of all users. It shows those of the token's
caller, or of every caller with the scope observe or operate. Scheduled notifications
are in "notifyctl schedule ls". A server that keeps its history in Cassandra lists one
user at a time.`,
		Example: `  notifyctl ls ann
  notifyctl ls --status FAILED --since 10m
  notifyctl ls --caller shop --channel sms --template t1 --since yesterday -o jsonl --limit 1000`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				if q.User != "" && q.User != args[0] {
					return term.Usage("--user %q and the argument %q name two users; give one user", q.User, args[0])
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
			q.Since, q.Until, err = p.parsePeriod(since, until)
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
				return []string{s.NotificationID, s.Status, s.Channel, s.Category, s.UserID, s.Caller, p.timeText(s.AcceptedAt), s.Code}
			},
		},
	})
	f := c.Flags()
	f.StringVar(&q.User, "user", "", "the user; the same as the argument")
	f.StringVar(&q.Channel, "channel", "", "only this channel: push, sms, email")
	f.StringVar(&q.Status, "status", "", "only notifications in this state now, e.g. DELIVERED, FAILED, DEFERRED")
	f.StringVar(&q.Code, "code", "", "only this code, e.g. twilio_21211; notifyctl explain says what codes mean")
	f.StringVar(&q.Caller, "caller", "", "only this caller's (operators)")
	f.StringVar(&q.Template, "template", "", "only this template")
	f.StringVar(&q.Campaign, "campaign", "", "only this campaign")
	f.StringVar(&since, "since", "", "accepted at or after this time: RFC 3339, 2h (ago), yesterday, 'today 09:00'")
	f.StringVar(&until, "until", "", "accepted before this time")
	completeFlag(c, "channel", channelNames())
	completeFlag(c, "status", stateNames())
	return c
}

func stateNames() (names []string) {
	for state := notify.State(1); int(state) < notify.States; state++ {
		names = append(names, state.String())
	}
	return names
}

// parsePeriod parses --since and --until. It computes relative times only once, so that all steps
// of the command use the same times. An empty flag gives the zero time.
func (p *program) parsePeriod(since, until string) (from, to time.Time, err error) {
	if since != "" {
		if d, bare := parseSpan(since); bare == nil { // "2h" means 2h ago, as in kubectl and journalctl
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
