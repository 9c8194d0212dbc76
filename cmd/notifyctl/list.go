package main

import (
	"context"
	"regexp"
	"strings"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	get   func(ctx context.Context, cl *api.Client, after string, n int) (api.List[T], error)
	whole bool // get returns all there are: there is no --limit, and no --cursor
	once  bool // get returns the latest n, and no cursor
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
		out.Items, out.Cursor = append(out.Items, page.Items...), page.Cursor
	}
	if err := printList(p, out, out.Items, &l.columns); err != nil {
		return err
	}
	p.more(len(out.Items), out.Cursor)
	return nil
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
		p.note("there are more: %s --cursor %s", givenLine(p.running, p.args), quote(cursor))
	}
}

// givenLine writes a command line for a shell, with its arguments and the flags that were
// given, but for --cursor.
func givenLine(c *cobra.Command, args []string) string {
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

// quote writes a word as a POSIX shell reads it back.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,~", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 && word[0] != '~' {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
