package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

type tailOptions struct {
	follow   bool
	caller   string
	channel  string
	category string
	status   string
	max      int
}

func newTail(p *program) *cobra.Command {
	var o tailOptions
	c := &cobra.Command{
		Use: "tail", Short: "Watch outcomes as they happen, until Ctrl-C", Args: cobra.NoArgs,
		Long: `tail prints outcomes as they happen: those of the token's caller or, with the scope
operate, those of --caller ("*" for all callers). It shows no earlier outcomes. With -f
it reconnects when the connection to the server is lost.

With several processes it shows the outcomes of all of them, whichever it is connected
to, with the process in front. Outcomes of the other processes begin after some seconds;
on a terminal it says which processes are shown. It always names a process that does not
answer. All processes together send at most 2,000 outcomes per second; the rest are
counted as a gap. --channel, --category, --status and --caller filter before that limit.`,
		RunE: func(c *cobra.Command, _ []string) error { return runTail(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "reconnect when the stream ends")
	f.StringVar(&o.caller, "caller", "", `only this caller's outcomes (operators); "*": all callers'`)
	f.StringVar(&o.channel, "channel", "", "only this channel")
	f.StringVar(&o.category, "category", "", "only this category")
	f.StringVar(&o.status, "status", "", "only this status, e.g. FAILED")
	f.IntVarP(&o.max, "max", "n", 0, "end after this many outcomes; 0: never")
	completeKinds(c)
	return c
}

// errEnough ends the stream when --max outcomes were printed.
var errEnough = errors.New("enough")

func runTail(ctx context.Context, p *program, o *tailOptions) error {
	if err := checkKinds(o.channel, o.category); err != nil {
		return err
	}
	f := api.TailFilter{Caller: o.caller, Channel: o.channel, Category: o.category}
	var err error
	if f.Status, err = checkState(o.status); err != nil {
		return err
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	cl.HTTPClient = &http.Client{Transport: api.NewTransport(1)} // no timeout, because the stream does not end
	if p.errTerminal {
		p.note("watching outcomes; Ctrl-C ends")
	}
	pr, shown := p.printer(), 0
	show := func(e api.Event) error {
		switch {
		case e.Type == api.EventGap && e.Process != "":
			p.note("gap: %s outcomes of %s were not shown, because they exceeded the limit of a tail", count(e.Dropped), e.Process)
			return nil
		case e.Type == api.EventGap:
			p.note("gap: %s outcomes were not shown, because this client was too slow", count(e.Dropped))
			return nil
		case e.Type == api.EventProcesses:
			if p.errTerminal && len(e.Processes) > 0 {
				p.note("showing the outcomes of %s", strings.Join(e.Processes, ", "))
			}
			p.noteMissing(e.Missing)
			return nil
		case e.Type != api.EventOutcome:
			return nil
		}
		if err := pr.Line(e, func() string { return eventLine(p, &e) }); err != nil {
			return err
		}
		if shown++; shown == o.max {
			return errEnough
		}
		return nil
	}
	for {
		err := cl.Tail(ctx, f, show)
		switch {
		case errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (!o.follow || notify.KindOf(err) != notify.KindUnavailable):
			return err
		case !o.follow:
			p.note("the server ended the stream; with -f, tail reconnects")
			return nil
		}
		p.note("the stream ended; reconnecting")
		if !notify.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

func eventLine(p *program, e *api.Event) string {
	status := e.Status
	if p.coloured() {
		status = paint(status, false)
	}
	pad := strings.Repeat(" ", max(0, 10-len(e.Status)))
	line := fmt.Sprintf("%s  %s%s  %-5s  %-13s  %s", p.localTimeText(e.At), status, pad, e.Channel, e.Category, e.NotificationID)
	if e.Process != "" {
		line = fmt.Sprintf("%-12s  %s", e.Process, line)
	}
	if e.Receivers > 1 {
		line += fmt.Sprintf("  %s receivers", count(e.Receivers))
	}
	for _, extra := range []string{e.Provider, e.Code} {
		if extra != "" {
			line += "  " + extra
		}
	}
	return line
}

type failedOptions struct {
	follow bool
	after  uint64
	limit  int
}

func newFailed(p *program) *cobra.Command {
	var o failedOptions
	c := &cobra.Command{
		Use: "failed", Short: "Read the caller's own feed of failed notifications, oldest first", Args: cobra.NoArgs,
		Long: `failed prints the notifications of the token's caller that failed for good. It includes
otp, alert and transactional notifications that are UNKNOWN (class ambiguous), which may
have arrived. Each has a position in the feed (SEQ). --after continues after a position,
so that a service can read each entry exactly once. --follow waits for more until
Ctrl-C.`,
		RunE: func(c *cobra.Command, _ []string) error { return runFailed(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "wait for more, until Ctrl-C")
	f.Uint64Var(&o.after, "after", 0, "start after this position in the feed")
	f.IntVar(&o.limit, "limit", 50, "how many at most, without --follow")
	return c
}

func runFailed(ctx context.Context, p *program, o *failedOptions) error {
	if o.limit < 1 {
		return term.Usage("--limit %d must be above 0", o.limit)
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
		return []string{fmt.Sprint(d.Seq), d.NotificationID, d.Channel, d.Category, d.UserID, d.Class, d.Code, fmt.Sprint(d.Attempts), p.timeText(d.LastFailedAt)}
	}}
	if err := printList(p, out, out.Items, &cols); err != nil {
		return err
	}
	if len(out.Items) == 0 {
		p.note("none")
		return nil
	}
	p.note("for the next ones: notifyctl failed --after %d", out.After)
	return nil
}

func followFailed(ctx context.Context, p *program, cl *api.Client, after uint64) error {
	wait := min(p.global.timeout/2, 25*time.Second) // less than the timeout of the request
	pr := p.printer()
	for {
		page, err := cl.Failed(ctx, after, wait, maxPage)
		if ctx.Err() != nil {
			return &term.Error{Exit: term.ExitInterrupt, Err: fmt.Errorf("interrupted after position %d", after), Next: []string{fmt.Sprintf("notifyctl failed --follow --after %d", after)}}
		}
		if err != nil {
			return err
		}
		for i := range page.Items {
			d := &page.Items[i]
			if err := pr.Line(d, func() string {
				return fmt.Sprintf("%d  %s  %s  %s %s to %s: %s %s after %d attempts", d.Seq, p.localTimeText(d.LastFailedAt),
					d.NotificationID, d.Category, d.Channel, term.Clean(d.UserID), d.Class, d.Code, d.Attempts)
			}); err != nil {
				return err
			}
		}
		after = page.After
	}
}
