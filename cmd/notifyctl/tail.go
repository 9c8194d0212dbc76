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
		Long: `tail prints outcomes as they happen: the token's own caller's, or with scope
operate those of --caller, "*" for all. It begins now; with -f it connects again
when the server goes away.`,
		RunE: func(c *cobra.Command, _ []string) error { return runTail(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "connect again when the stream ends")
	f.StringVar(&o.caller, "caller", "", `whose outcomes (operators); "*": everybody's`)
	f.StringVar(&o.channel, "channel", "", "only this channel")
	f.StringVar(&o.category, "category", "", "only this category")
	f.StringVar(&o.status, "status", "", "only this status, e.g. FAILED")
	f.IntVarP(&o.max, "max", "n", 0, "end after so many; 0: never")
	completeKinds(c)
	return c
}

// errEnough ends a stream that showed what was asked for.
var errEnough = errors.New("enough")

func runTail(ctx context.Context, p *program, o *tailOptions) error {
	if err := checkKinds(o.channel, o.category); err != nil {
		return err
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	cl.HTTPClient = &http.Client{Transport: api.NewTransport(1)} // a stream has no end
	if p.errTerminal {
		p.note("watching outcomes from now on; Ctrl-C ends it")
	}
	pr, shown := p.printer(), 0
	show := func(e api.Event) error {
		switch {
		case e.Type == api.EventGap:
			p.note("gap: %s outcomes were not shown, because this end was too slow", count(e.Dropped))
			return nil
		case e.Type != api.EventOutcome || !o.wants(&e):
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
		err := cl.Tail(ctx, o.caller, show)
		switch {
		case errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (!o.follow || notify.KindOf(err) != notify.KindUnavailable):
			return err
		case !o.follow:
			p.note("the server ended the stream; -f connects again")
			return nil
		}
		p.note("the stream ended; connecting again")
		if !notify.Sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

func (o *tailOptions) wants(e *api.Event) bool {
	return (o.channel == "" || o.channel == e.Channel) && (o.category == "" || o.category == e.Category) &&
		(o.status == "" || strings.EqualFold(o.status, e.Status))
}

func eventLine(p *program, e *api.Event) string {
	status := e.Status
	if p.coloured() {
		status = paint(status, false)
	}
	pad := strings.Repeat(" ", max(0, 10-len(e.Status)))
	line := fmt.Sprintf("%s  %s%s  %-5s  %-13s  %s", p.clock(e.At), status, pad, e.Channel, e.Category, e.NotificationID)
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
