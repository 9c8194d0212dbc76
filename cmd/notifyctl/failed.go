package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

type failedOptions struct {
	follow bool
	after  uint64
	limit  int
}

func newFailed(p *program) *cobra.Command {
	var o failedOptions
	c := &cobra.Command{
		Use: "failed", Short: "Read the caller's own feed of failed notifications, oldest first", Args: cobra.NoArgs,
		Long: `failed prints the notifications of the token's caller that failed for good, and
codes, alerts and transactional ones that are UNKNOWN (class ambiguous): they may have
arrived. Each has a place in the feed (SEQ); --after goes on behind one, so that a service can
read each exactly once. --follow waits for more until Ctrl-C.`,
		RunE: func(c *cobra.Command, _ []string) error { return runFailed(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "wait for more, until Ctrl-C")
	f.Uint64Var(&o.after, "after", 0, "begin behind this place of the feed")
	f.IntVar(&o.limit, "limit", 50, "how many at most, without --follow")
	return c
}

func runFailed(ctx context.Context, p *program, o *failedOptions) error {
	if o.limit < 1 {
		return term.Usage("--limit %d: it is above 0", o.limit)
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	if o.follow {
		return followFailed(ctx, p, cl, o.after)
	}
	out := api.FailedPage{Items: []api.DeadLetter{}, After: o.after}
	for len(out.Items) < o.limit {
		page, err := cl.Failed(ctx, out.After, 0, min(o.limit-len(out.Items), maxPage))
		if err != nil {
			return err
		}
		if len(page.Items) == 0 {
			break
		}
		out.Items, out.After = append(out.Items, page.Items...), page.After
	}
	cols := columns[api.DeadLetter]{head: "SEQ  NOTIFICATION  CHANNEL  CATEGORY  USER  CLASS  CODE  ATTEMPTS  FAILED", row: func(d *api.DeadLetter) []string {
		return []string{fmt.Sprint(d.Seq), d.NotificationID, d.Channel, d.Category, d.UserID, d.Class, d.Code, fmt.Sprint(d.Attempts), p.when(d.LastFailedAt)}
	}}
	if err := printList(p, out, out.Items, &cols); err != nil {
		return err
	}
	if len(out.Items) == 0 {
		p.note("none")
		return nil
	}
	p.note("go on with: notifyctl failed --after %d", out.After)
	return nil
}

func followFailed(ctx context.Context, p *program, cl *api.Client, after uint64) error {
	wait := min(p.global.timeout/2, 25*time.Second) // the request must outlast the server's wait
	pr := p.printer()
	for {
		page, err := cl.Failed(ctx, after, wait, maxPage)
		if ctx.Err() != nil {
			return &term.Error{Exit: term.ExitInterrupt, Err: fmt.Errorf("interrupted behind place %d", after), Next: []string{fmt.Sprintf("notifyctl failed --follow --after %d", after)}}
		}
		if err != nil {
			return err
		}
		for i := range page.Items {
			d := &page.Items[i]
			if err := pr.Line(d, func() string {
				return fmt.Sprintf("%d  %s  %s  %s %s to %s: %s %s after %d attempts", d.Seq, p.clock(d.LastFailedAt),
					d.NotificationID, d.Category, d.Channel, term.Clean(d.UserID), d.Class, d.Code, d.Attempts)
			}); err != nil {
				return err
			}
		}
		after = page.After
	}
}
