package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
)

type listOptions struct {
	user   string
	limit  int
	cursor string
}

func newList(p *program) *cobra.Command {
	var o listOptions
	c := &cobra.Command{
		Use: "ls USER", Short: "List what a user was sent, newest first", Args: cobra.MaximumNArgs(1), Aliases: []string{"list"},
		Example: `  notifyctl ls ann
  notifyctl ls --user ann --limit 1000 -o jsonl --jq 'select(.status == "FAILED") | .notification_id'`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				if o.user != "" && o.user != args[0] {
					return cli.Usage("--user %q and %q: one user at a time", o.user, args[0])
				}
				o.user = args[0]
			}
			return runList(c.Context(), p, &o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.user, "user", "", "the user, as the argument")
	f.IntVar(&o.limit, "limit", 50, "how many at most")
	f.StringVar(&o.cursor, "cursor", "", "go on where an earlier list ended")
	return c
}

// maxPage is the largest page the server gives.
const maxPage = 1000

func runList(ctx context.Context, p *program, o *listOptions) error {
	if o.user == "" {
		return cli.Usage("a user is missing: whose notifications?")
	}
	if o.limit < 1 {
		return cli.Usage("--limit %d: it is above 0", o.limit)
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	out := api.UserHistory{Items: []api.Status{}, Cursor: o.cursor}
	for len(out.Items) < o.limit {
		page, err := cl.UserNotifications(ctx, o.user, out.Cursor, min(o.limit-len(out.Items), maxPage))
		if err != nil {
			return err
		}
		out.Items, out.Cursor = append(out.Items, page.Items...), page.Cursor
		if page.Cursor == "" {
			break
		}
	}
	if err := printWide(p, out, out.Items, []string{"CATEGORY", "CHANNEL"}, func() cli.Table {
		t := cli.Table{{"NOTIFICATION", "STATUS", "CHANNEL", "CATEGORY", "ACCEPTED", "CODE"}}
		for i := range out.Items {
			s := &out.Items[i]
			t = append(t, []string{s.NotificationID, s.Status, s.Channel, s.Category, p.when(s.AcceptedAt), s.Code})
		}
		return t
	}); err != nil {
		return err
	}
	p.more(len(out.Items), out.Cursor)
	return nil
}

// printPage writes a page: as its items where one line is one thing.
func printPage[P, T any](p *program, page P, items []T, table func() cli.Table) error {
	return printWide(p, page, items, nil, table)
}

// printWide is printPage for a table that leaves columns out, the first named
// first, until it fits the terminal.
func printWide[P, T any](p *program, page P, items []T, optional []string, table func() cli.Table) error {
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
