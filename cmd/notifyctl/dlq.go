package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/cli"
)

type dlqOptions struct {
	query        api.DeadLetterQuery
	since, until string
	limit        int
}

func newDLQ(p *program) *cobra.Command {
	c := &cobra.Command{Use: "dlq", Short: "Look at dead letters of every caller (scope operate)", Aliases: []string{"dead-letters"}}
	c.AddCommand(newDLQList(p), newDLQShow(p))
	return c
}

func newDLQList(p *program) *cobra.Command {
	var o dlqOptions
	c := &cobra.Command{
		Use: "ls", Short: "List dead letters, newest first", Args: cobra.NoArgs, Aliases: []string{"list"},
		Example: `  notifyctl dlq ls --channel push --since -2h
  notifyctl dlq ls --class permanent --caller shop -o jsonl --limit 10000`,
		RunE: func(c *cobra.Command, _ []string) error { return runDLQList(c.Context(), p, &o) },
	}
	f, q := c.Flags(), &o.query
	f.StringVar(&q.Class, "class", "", "only this class of error")
	f.StringVar(&q.Code, "code", "", "only this code")
	f.StringVar(&q.Channel, "channel", "", "only this channel")
	f.StringVar(&q.Category, "category", "", "only this category")
	f.StringVar(&q.Caller, "caller", "", "only this caller's")
	f.StringVar(&q.Provider, "provider", "", "only this provider's")
	f.StringVar(&q.Template, "template", "", "only this template")
	f.StringVar(&q.State, "state", "", "dead, replayed or discarded; default: all")
	f.StringVar(&o.since, "since", "", "failed at or after: a time, or a distance such as -2h")
	f.StringVar(&o.until, "until", "", "failed before")
	f.IntVar(&o.limit, "limit", 50, "how many at most")
	f.StringVar(&q.Cursor, "cursor", "", "go on where an earlier list ended")
	completeKinds(c)
	complete(c, "state", []string{"dead", "replayed", "discarded"})
	return c
}

func runDLQList(ctx context.Context, p *program, o *dlqOptions) (err error) {
	q := o.query
	if err := checkKinds(q.Channel, q.Category); err != nil {
		return err
	}
	if o.limit < 1 {
		return cli.Usage("--limit %d: it is above 0", o.limit)
	}
	if o.since != "" {
		if q.Since, err = parseTime(o.since, p.now()); err != nil {
			return err
		}
	}
	if o.until != "" {
		if q.Until, err = parseTime(o.until, p.now()); err != nil {
			return err
		}
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	out := api.DeadLetterPage{Items: []api.DeadLetter{}, Cursor: q.Cursor}
	for len(out.Items) < o.limit {
		q.Limit, q.Cursor = min(o.limit-len(out.Items), maxPage), out.Cursor
		page, err := cl.DeadLetters(ctx, q)
		if err != nil {
			return err
		}
		out.Items, out.Cursor = append(out.Items, page.Items...), page.Cursor
		if page.Cursor == "" {
			break
		}
	}
	if err := printPage(p, out, out.Items, func() cli.Table {
		t := cli.Table{{"NOTIFICATION", "CALLER", "CHANNEL", "CATEGORY", "PROVIDER", "CLASS", "CODE", "ATTEMPTS", "STATE", "FAILED"}}
		for i := range out.Items {
			d := &out.Items[i]
			t = append(t, []string{
				d.NotificationID, d.Caller, d.Channel, d.Category, d.Provider, d.Class, d.Code,
				fmt.Sprint(d.Attempts), d.State, p.when(d.LastFailedAt),
			})
		}
		return t
	}); err != nil {
		return err
	}
	p.more(len(out.Items), out.Cursor, "the same command with")
	return nil
}

func newDLQShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show one dead letter", Args: cli.Exact("a notification id"),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := p.client()
			if err != nil {
				return err
			}
			d, err := cl.DeadLetter(c.Context(), args[0])
			if err != nil {
				return err
			}
			return p.printer().Record(d, func() cli.Table { return p.deadLetterFields(&d) })
		},
	}
}

func (p *program) deadLetterFields(d *api.DeadLetter) cli.Table {
	t := cli.Table{
		{"notification", d.NotificationID}, {"state", d.State}, {"class", d.Class}, {"code", d.Code},
		{"provider", d.Provider}, {"attempts", fmt.Sprint(d.Attempts)}, {"caller", d.Caller}, {"campaign", d.Campaign},
		{"channel", d.Channel}, {"category", d.Category}, {"user", d.UserID}, {"template", d.Template},
		{"first failed", p.when(d.FirstFailedAt)}, {"last failed", p.when(d.LastFailedAt)}, {"expires", p.whenever(d.ExpiresAt)},
	}
	if d.Epoch > 0 {
		t = append(t, []string{"epoch", fmt.Sprint(d.Epoch)})
	}
	for _, k := range slices.Sorted(maps.Keys(d.Extra)) {
		t = append(t, []string{k, fmt.Sprint(d.Extra[k])})
	}
	return t
}
