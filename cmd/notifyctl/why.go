package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/codes"
)

func newWhy(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "why ID", Short: "Tell what happened to a notification, and what happens next", Args: term.Exact("a notification id"),
		Long: `why prints the timeline of a notification, one line an event with the time since
the event before, and then one sentence about what happens next.`,
		Aliases: []string{"timeline"},
		RunE:    func(c *cobra.Command, args []string) error { return runWhy(c.Context(), p, args[0]) },
	}
}

func runWhy(ctx context.Context, p *program, id string) error {
	if strings.HasPrefix(id, "trg_") {
		return showTrigger(ctx, p, id)
	}
	if err := checkID(id); err != nil {
		return err
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	t, err := cl.Timeline(ctx, id)
	if err != nil {
		return err
	}
	pr := p.printer()
	if pr.Format != "table" || pr.JQ != "" {
		return pr.Print(t, nil)
	}
	if !p.global.noHeaders {
		to := t.UserID
		if to == "" {
			to = "an address"
		}
		fmt.Fprintf(p.out, "%s is %s: %s %s to %s, from %s\n", term.Clean(t.NotificationID), term.Clean(t.Status.Status), term.Clean(t.Category), term.Clean(t.Channel), term.Clean(to), term.Clean(t.Caller))
		if t.TraceID != "" {
			fmt.Fprintf(p.out, "trace %s\n", term.Clean(t.TraceID))
		}
		fmt.Fprintln(p.out)
	}
	if err := pr.Print(t, p.story(t.Events)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "\n%s\n", term.Clean(t.Next))
	if found := codes.Of(t.Status.Code); err == nil && t.Status.Code != "" && len(found) > 0 {
		e := &found[0]
		_, err = fmt.Fprintf(p.out, "%s: %s. %s\n", term.Clean(t.Status.Code), strings.TrimSuffix(e.Meaning, "."), advice(e, &t))
	}
	return err
}

// advice is what to do about a code. What notifyd tries again by itself is not tried
// again once the notification has ended.
func advice(e *codes.Entry, t *api.Timeline) string {
	if e.Retry != "itself" || !terminal(t.Status.Status) {
		return e.Do
	}
	if !slices.ContainsFunc(t.Events, func(ev api.TimelineEvent) bool { return ev.Type == "dead_letter" }) {
		return "It is not tried again."
	}
	return "It is not tried again; once the cause is gone: notifyctl dlq replay --id " + t.NotificationID
}

// story is a line an event. Moments are written in full whatever the format of
// times: what counts here is their distance.
func (p *program) story(events []api.TimelineEvent) term.Table {
	t := term.Table{{"TIME", "AFTER", "EVENT", "STATE", "DETAIL"}}
	var before *time.Time
	for i := range events {
		e := &events[i]
		row := []string{"", "", e.Type, e.State, detail(p, e)}
		if e.At != nil {
			row[0] = p.moment(*e.At)
			if before != nil && !e.At.Before(*before) {
				row[1] = "+" + span(e.At.Sub(*before))
			}
			before = e.At
		}
		if e.Attempt > 0 {
			row[2] = fmt.Sprintf("%s %d", e.Type, e.Attempt)
		}
		t = append(t, row)
	}
	return t
}

func detail(p *program, e *api.TimelineEvent) string {
	var parts []string
	add := func(format string, v any) { parts = append(parts, fmt.Sprintf(format, v)) }
	if e.Addresses > 1 {
		parts = append(parts, fmt.Sprintf("address %d of %d", e.Address+1, e.Addresses))
	}
	if e.Provider != "" {
		add("by %s", e.Provider)
	}
	if e.Code != "" {
		add("%s", e.Code)
	}
	if e.Class != "" && e.Class != "accepted" {
		add("answer %s", e.Class)
	}
	if e.ProviderMessageID != "" {
		add("as %s", e.ProviderMessageID)
	}
	if e.Until != nil {
		add("until %s", p.moment(*e.Until))
	}
	if e.Epoch > 0 {
		add("epoch %d", e.Epoch)
	}
	switch {
	case e.Log != nil: // its topic is the detail
		parts = append(parts, fmt.Sprintf("%s/%d@%d", e.Log.Topic, e.Log.Partition, e.Log.Offset))
	case e.Detail != "":
		add("%s", e.Detail)
	}
	return strings.Join(parts, ", ")
}
