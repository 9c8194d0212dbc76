package main

import (
	"context"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
	"github.com/spf13/cobra"
)

func newList(p *program) *cobra.Command {
	var q api.NotificationQuery
	var since, until string
	c := newListing(p, &cobra.Command{
		Use: "ls [USER]", Short: "List what was sent, newest first", Args: cobra.MaximumNArgs(1),
		Long: `ls lists the notifications of a user, or of all users: those of the token's caller, and
with the scope observe or operate those of every caller. What waits for its time is in
"notifyctl schedule ls". A server whose history is in Cassandra lists one user at a
time.`,
		Example: `  notifyctl ls ann
  notifyctl ls --status FAILED --since 10m
  notifyctl ls --caller shop --channel sms --template t1 --since yesterday -o jsonl --limit 1000`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				if q.User != "" && q.User != args[0] {
					return term.Usage("--user %q and %q: one user at a time", q.User, args[0])
				}
				q.User = args[0]
			}
			if err := checkKinds(q.Channel, ""); err != nil {
				return err
			}
			given := q.Status
			q.Status = strings.ToUpper(given)
			if _, ok := notify.ParseState(q.Status); q.Status != "" && !ok {
				return term.Usage("--status %q: states are %s%s", given, strings.Join(stateNames(), ", "), nearest(q.Status, stateNames()))
			}
			var err error
			q.Since, q.Until, err = p.window(since, until)
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
				return []string{s.NotificationID, s.Status, s.Channel, s.Category, s.UserID, s.Caller, p.when(s.AcceptedAt), s.Code}
			},
		},
	})
	f := c.Flags()
	f.StringVar(&q.User, "user", "", "the user, as the argument")
	f.StringVar(&q.Channel, "channel", "", "only this channel: push, sms, email")
	f.StringVar(&q.Status, "status", "", "only what stands so now, e.g. DELIVERED, FAILED, DEFERRED")
	f.StringVar(&q.Code, "code", "", "only this code, e.g. twilio_21211; notifyctl explain tells what codes mean")
	f.StringVar(&q.Caller, "caller", "", "only this caller's; for operators")
	f.StringVar(&q.Template, "template", "", "only this template")
	f.StringVar(&q.Campaign, "campaign", "", "only this campaign")
	f.StringVar(&since, "since", "", "accepted at or after: a time, a distance such as 2h, or yesterday, 'today 09:00'")
	f.StringVar(&until, "until", "", "accepted before")
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

// window resolves --since and --until once: what is shown and done is the same. An
// empty one is the zero time.
func (p *program) window(since, until string) (from, to time.Time, err error) {
	if since != "" {
		if d, bare := parseSpan(since); bare == nil { // as kubectl and journalctl have it
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
