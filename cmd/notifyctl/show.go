package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/notifyd/notifyd/pkg/tool/codes"
)

func newShow(p *program) *cobra.Command {
	var content, full bool
	c := &cobra.Command{
		Use: "show ID", Short: "Show the state of a notification, a fan-out or a campaign", Args: term.Exact("an id"),
		Long: `show prints the state of a notification (ntf_..., or ntf_...-7 for one receiver of a
fan-out). For a fan-out or a campaign (cmp_...) it counts the receivers by state.

--content prints the content of the notification and its addresses, masked. Only the
caller that sent it and operators may read it; the audit log records operators' reads.`,
		Example: `  notifyctl show ntf_01K3ZV7Q0N8M2D4R6T8W0Y2A4C
  notifyctl show cmp_01K3ZV7Q0N8M2D4R6T8W0Y2A4C -o json --jq .counts
  notifyctl show ntf_01K3ZV7Q0N8M2D4R6T8W0Y2A4C --content`,
		RunE: func(c *cobra.Command, args []string) error {
			if content || full {
				address := ""
				if full {
					address = api.FullAddress
				}
				return showContent(c.Context(), p, args[0], address)
			}
			return runShow(c.Context(), p, args[0])
		},
	}
	c.Flags().BoolVar(&content, "content", false, "show its content and its addresses")
	c.Flags().BoolVar(&full, "full-address", false, "with --content: do not mask addresses")
	return c
}

func showContent(ctx context.Context, p *program, id, address string) error {
	if err := checkID(id); err != nil {
		return err
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	c, err := cl.NotificationContent(ctx, id, address)
	if err != nil {
		return err
	}
	to := strings.Join(c.Addresses, ", ")
	if c.FromProfile {
		to += "  (from the profile as it is now)"
	}
	return p.printer().Record(c, term.Table{
		{"notification", c.NotificationID}, {"channel", c.Channel}, {"caller", c.Caller}, {"user", c.UserID}, {"address", to},
		{"from", c.Content.From}, {"template", c.Content.Template}, {"title", c.Content.Title}, {"body", c.Content.Body}, {"html", c.Content.HTML},
		{"variables", string(c.Content.Variables)}, {"receiver's variables", string(c.Variables)}, {"data", string(c.Content.Data)}, {"collapse key", c.Content.CollapseKey},
	})
}

func runShow(ctx context.Context, p *program, id string) error {
	if strings.HasPrefix(id, "trg_") {
		return showTrigger(ctx, p, id)
	}
	campaign := strings.HasPrefix(id, "cmp_")
	if err := checkID(id); err != nil && !campaign {
		return err
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	if campaign {
		return showCampaign(ctx, p, cl, id)
	}
	s, err := cl.Notification(ctx, id)
	if err != nil {
		return err
	}
	if s.Status == "" { // id is the id of a whole fan-out, and the answer was a summary
		return printTotal(ctx, p, func(page api.Page) (api.Summary, error) { return cl.Summary(ctx, id, page) })
	}
	return p.printer().Record(s, statusFields(p, &s))
}

// checkID returns an error if id cannot be the id of a notification.
func checkID(id string) error {
	if _, err := notify.ParseID(id); err != nil {
		if strings.HasPrefix(id, "ntf_") {
			return term.Usage("%q is not an id: ntf_ must be followed by 26 letters and digits, and by -NUMBER for a receiver of a fan-out; maybe the copied text is not complete", id)
		}
		return term.Usage("%q is not an id: ids begin with ntf_ (notification), cmp_ (campaign) or trg_ (trigger)", id)
	}
	return nil
}

func showCampaign(ctx context.Context, p *program, cl *api.Client, id string) error {
	return printTotal(ctx, p, func(page api.Page) (api.Summary, error) { return cl.Campaign(ctx, id, page) })
}

// printTotal prints the sum of all pages. The function get returns one page, with the counts of
// some of the receivers.
func printTotal(ctx context.Context, p *program, get func(api.Page) (api.Summary, error)) error {
	sum, err := sumPages(ctx, get)
	if err != nil {
		return err
	}
	return p.printer().Record(sum, summaryFields(p, &sum))
}

// sumPages returns the sum of all pages. The function get returns one page, with the counts of some
// of the receivers.
func sumPages(ctx context.Context, get func(api.Page) (api.Summary, error)) (api.Summary, error) {
	sum, err := get(api.Page{})
	for page := sum; err == nil && !page.Complete && page.Next != ""; {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		if page, err = get(api.Page{After: page.Next}); err != nil {
			break
		}
		sum.Counted += page.Counted
		sum.Complete, sum.Next = page.Complete, page.Next
		for state, n := range page.Counts {
			sum.Counts[state] += n
		}
	}
	if sum.Pending != nil {
		left := sum.Accepted - sum.Counted
		sum.Pending = &left
	}
	return sum, err
}

func summaryFields(p *program, s *api.Summary) term.Table {
	t := term.Table{
		{"campaign", s.CampaignID}, {"fan-out", s.NotificationID}, {"caller", s.Caller},
		{"channel", s.Channel}, {"category", s.Category}, {"created", p.timeText(s.CreatedAt)},
		{"due", p.optionalTimeText(s.ScheduledAt)}, {"cancelled", p.optionalTimeText(s.CancelledAt)}, {"trace", s.TraceID},
	}
	if s.Hold != nil {
		t = append(t, []string{"hold", holdText(s.Hold)}, []string{"  by", s.Hold.By}, []string{"  why", s.Hold.Reason})
	}
	if s.Parts > 0 {
		t = append(t, []string{"parts", count(s.Parts)})
	}
	if s.Accepted > 0 {
		t = append(t, []string{"accepted", count(s.Accepted)})
	}
	if s.Rejected > 0 {
		t = append(t, []string{"rejected", count(s.Rejected)})
	}
	t = append(t, []string{"counted", count(s.Counted)})
	for state := notify.State(1); int(state) < notify.States; state++ {
		if n := s.Counts[state.String()]; n > 0 {
			t = append(t, []string{"  " + state.String(), fmt.Sprintf("%s  (%s)", count(n), percentOf(int64(n), s.Counted))})
		}
	}
	if s.Pending != nil && *s.Pending != 0 {
		what := "not counted yet"
		if s.Complete {
			what = "accepted, but without a row: run notifyctl doctor"
		}
		t = append(t, []string{"pending", fmt.Sprintf("%s  (%s)", count(*s.Pending), what)})
	}
	return t
}

// percentOf returns the share of n in total, in percent. It returns 100% only if n is equal to
// total.
func percentOf(n, total int64) string {
	pc := 100 * float64(n) / float64(max(total, 1))
	switch {
	case n == total:
		return "100%"
	case pc > 99.9:
		return ">99.9%"
	case pc < 0.1:
		return "<0.1%"
	}
	return fmt.Sprintf("%.1f%%", pc)
}

func statusFields(p *program, s *api.Status) term.Table {
	t := term.Table{
		{"notification", s.NotificationID}, {"status", s.Status}, {"code", s.Code},
		{"channel", s.Channel}, {"category", s.Category}, {"user", s.UserID},
		{"caller", s.Caller}, {"campaign", s.Campaign},
	}
	if s.Attempts > 0 {
		t = append(t, []string{"attempts", fmt.Sprint(s.Attempts)})
	}
	if s.Epoch > 0 {
		t = append(t, []string{"epoch", fmt.Sprintf("%d (replayed)", s.Epoch)})
	}
	due, expires := "due", "expires"
	if isTerminal(s.Status) { // the notification may have ended before it was due or before it would expire
		due, expires = "was due", "would expire"
	}
	return append(t, []string{"accepted", p.timeText(s.AcceptedAt)}, []string{due, p.optionalTimeText(s.ScheduledAt)},
		[]string{"updated", p.optionalTimeText(s.UpdatedAt)}, []string{expires, p.optionalTimeText(s.ExpiresAt)}, []string{"trace", s.TraceID})
}

func newCancel(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "Cancel a notification, fan-out, campaign or trigger", Args: term.Exact("an id"),
		Long: `cancel stops the calls that have not started yet, of one notification (ntf_...), one
receiver of a fan-out (ntf_...-7), a whole fan-out, a campaign (cmp_...) with its later
parts, or a trigger (trg_...). A waiting trigger is cancelled for good. So is a
scheduled notification or fan-out until 4.5 s before it is due; from then until it is
released, cancel is refused (exit 6). Of everything else, cancel stops the calls that
start a second later or after that; calls that have started by then continue. A campaign
is only cancelled after confirmation.`,
		Example: `  notifyctl cancel ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS
  notifyctl cancel trg_01KAJ8Q2T5E7V9XCB3M4N6P8RS
  notifyctl cancel cmp_01KAJ8Q2T5E7V9XCB3M4N6P8RS --yes`,
		RunE: func(c *cobra.Command, args []string) error { return runCancel(c.Context(), p, args[0]) },
	}
}

func runCancel(ctx context.Context, p *program, id string) error {
	d, cancel := changes, (*api.Client).Cancel
	switch {
	case strings.HasPrefix(id, "trg_"):
		return cancelTrigger(ctx, p, id)
	case strings.HasPrefix(id, "cmp_"):
		d, cancel = confirmAlways, (*api.Client).CancelCampaign
	default:
		if err := checkID(id); err != nil {
			return err
		}
	}
	return confirmAndChange(p, d, "cancel "+id, "", func(cl *api.Client) (api.Cancelled, error) {
		return cancel(cl, ctx, id)
	}, func(out *api.Cancelled) error {
		then := []string{"stops calls from", p.localTimeText(out.BindsAt)}
		if out.Final {
			then = []string{"final", "it was not due yet: no call will be made"}
		}
		return p.printer().Record(out, term.Table{{"cancelled", out.Scope}, {"at", p.timeText(out.CancelledAt)}, then})
	})
}

func newWhy(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "why ID", Short: "Show what happened to a notification, and what happens next", Args: term.Exact("a notification id"),
		Long: `why prints the timeline of a notification: one line per event with the time since the
event before, and then one sentence about what happens next.`,
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
		to := cmp.Or(t.UserID, "an address")
		fmt.Fprintf(p.out, "%s is %s: %s %s to %s, from %s\n", term.Clean(t.NotificationID), term.Clean(t.Status.Status), term.Clean(t.Category), term.Clean(t.Channel), term.Clean(to), term.Clean(t.Caller))
		if t.TraceID != "" {
			fmt.Fprintf(p.out, "trace %s\n", term.Clean(t.TraceID))
		}
		fmt.Fprintln(p.out)
	}
	if err := pr.Print(t, timelineTable(p, t.Events)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "\n%s\n", term.Clean(t.Next))
	if found := codes.Find(t.Status.Code); err == nil && t.Status.Code != "" && len(found) > 0 {
		e := &found[0]
		_, err = fmt.Fprintf(p.out, "%s: %s. %s\n", term.Clean(t.Status.Code), strings.TrimSuffix(e.Meaning, "."), codeAdvice(e, &t))
	}
	return err
}

// codeAdvice returns what a person can do about a code. notifyd does not retry a notification that
// has ended, even if it normally retries after this code.
func codeAdvice(e *codes.Entry, t *api.Timeline) string {
	if e.Retry != "itself" || !isTerminal(t.Status.Status) {
		return e.Do
	}
	if !slices.ContainsFunc(t.Events, func(ev api.TimelineEvent) bool { return ev.Type == "dead_letter" }) {
		return "It is not retried."
	}
	return "It is not retried; once the cause is repaired: notifyctl dlq replay --id " + t.NotificationID
}

// timelineTable returns a line for each event. The times are never relative to now, because only
// the time between events matters here.
func timelineTable(p *program, events []api.TimelineEvent) term.Table {
	t := term.Table{{"TIME", "AFTER", "EVENT", "STATE", "DETAIL"}}
	var before *time.Time
	for i := range events {
		e := &events[i]
		row := []string{"", "", e.Type, e.State, eventDetail(p, e)}
		if e.At != nil {
			row[0] = p.eventTimeText(*e.At)
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

func eventDetail(p *program, e *api.TimelineEvent) string {
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
		add("until %s", p.eventTimeText(*e.Until))
	}
	if e.Epoch > 0 {
		add("epoch %d", e.Epoch)
	}
	switch {
	case e.Log != nil: // here Detail would only repeat the topic
		parts = append(parts, fmt.Sprintf("%s/%d@%d", e.Log.Topic, e.Log.Partition, e.Log.Offset))
	case e.Detail != "":
		add("%s", e.Detail)
	}
	return strings.Join(parts, ", ")
}
