package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/term"
)

func newSchedule(p *program) *cobra.Command {
	var o sendOptions
	c := &cobra.Command{
		Use: "schedule", Short: "Send at a later time, and list what is scheduled", Args: cobra.NoArgs,
		Long: `schedule sends a notification or a fan-out at a later time. It takes the flags of send,
and prints which time it understood. Preferences and addresses are looked up when the
notification is due, so an opt-out before that time applies.

A local time that a change to or from summer time skips or repeats is refused. Until
4.5 s before the due time, "notifyctl cancel ID" cancels it for good and
"notifyctl reschedule ID" moves it.`,
		Example: `  notifyctl schedule --at 'tomorrow 09:00' --tz Europe/Berlin --channel push --user ann --body 'Good morning'
  notifyctl schedule --in 10m --channel sms --category alert --user ann --body 'Your table is ready'
  notifyctl schedule --at 2026-12-24T17:00:00Z --channel push --category marketing --title Sale --fanout users.csv
  notifyctl schedule ls
  notifyctl schedule forecast --from 'tomorrow 08:00'`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !o.later.given() {
				return term.Usage("give a time with --at or --in; \"notifyctl send\" sends now")
			}
			o.noteGivenFlags(c)
			return runSend(c.Context(), p, &o)
		},
	}
	o.add(c)
	c.AddCommand(newScheduleList(p), newForecast(p))
	return c
}

func newScheduleList(p *program) *cobra.Command {
	var q api.ScheduleQuery
	c := newListing(p, &cobra.Command{
		Short: "List scheduled notifications, newest request first",
		Example: `  notifyctl schedule ls
  notifyctl schedule ls --status CANCELLED --limit 1000 -o jsonl --jq .notification_id`,
	}, &listing[api.Scheduled]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (api.ScheduledPage, error) {
			q.Status, q.Cursor, q.Limit = strings.ToUpper(q.Status), after, n
			return cl.Schedules(ctx, q)
		},
		columns: columns[api.Scheduled]{
			head: "NOTIFICATION  STATUS  DUE  CHANNEL  CATEGORY  USER  RECEIVERS  CALLER", optional: []string{"CALLER", "CATEGORY"},
			row: func(s *api.Scheduled) []string {
				due := p.timeText(s.ScheduledAt)
				if s.Status == "CANCELLED" { // a cancelled notification never becomes due
					due = ""
				}
				return []string{s.NotificationID, s.Status, due, s.Channel, s.Category, s.UserID, count(int(s.Receivers)), s.Caller}
			},
		},
	})
	f := c.Flags()
	f.StringVar(&q.Status, "status", "", "only this status: SCHEDULED or CANCELLED")
	f.StringVar(&q.User, "user", "", "only notifications for this user")
	f.StringVar(&q.Caller, "caller", "", "only this caller's (operators)")
	completeFlag(c, "status", []string{"SCHEDULED", "CANCELLED"})
	return c
}

type forecastOptions struct{ from, to, zone string }

func newForecast(p *program) *cobra.Command {
	var o forecastOptions
	c := &cobra.Command{
		Use: "forecast", Short: "Count what becomes due per minute and channel", Args: cobra.NoArgs,
		Long: `forecast counts what becomes due per minute and channel, for every caller: receivers of
scheduled notifications, parked retries, and triggers. A trigger that was cancelled or
moved is counted at its first time until that time has passed. It needs the scope
observe.`,
		Example: `  notifyctl schedule forecast
  notifyctl schedule forecast --from 'tomorrow 08:00' --to 'tomorrow 12:00' --tz Europe/Berlin`,
		RunE: func(c *cobra.Command, _ []string) error { return runForecast(c.Context(), p, &o) },
	}
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "start of the period; default: now")
	f.StringVar(&o.to, "to", "", "end of the period, at most 7 days after --from; default: one hour after --from")
	f.StringVar(&o.zone, "tz", "", "time zone of --from and --to; default: this machine's")
	return c
}

func runForecast(ctx context.Context, p *program, o *forecastOptions) error {
	loc, err := (&laterOptions{zone: o.zone}).location()
	if err != nil {
		return err
	}
	var bounds [2]time.Time
	for i, s := range []string{o.from, o.to} {
		if s == "" {
			continue
		}
		t, err := (&laterOptions{at: s, zone: o.zone}).resolve(p.now())
		if err != nil {
			return err
		}
		bounds[i] = *t
	}
	cl, err := p.client()
	if err != nil {
		return err
	}
	out, err := cl.Forecast(ctx, bounds[0], bounds[1])
	if err != nil {
		return err
	}
	most := int64(0)
	for _, m := range out.Minutes {
		most = max(most, m.Count)
	}
	t := term.Table{{"MINUTE (" + out.From.In(loc).Format("MST") + ")", "WHAT", "COUNT", ""}}
	for _, m := range out.Minutes {
		t = append(t, []string{m.Minute.In(loc).Format("Mon 15:04"), m.What, count(int(m.Count)), strings.Repeat("#", int(1+29*m.Count/max(most, 1)))})
	}
	if err := p.printer().Print(out, t); err != nil {
		return err
	}
	p.note("%s due from %s to %s", count(int(out.Total)), out.From.In(loc).Format("2006-01-02 15:04"), out.To.In(loc).Format("2006-01-02 15:04 MST"))
	if !out.Complete {
		p.note("the counts are not complete: the period has more than the server reads at once; choose a shorter one")
	}
	return nil
}

func newReschedule(p *program) *cobra.Command {
	var o laterOptions
	c := &cobra.Command{
		Use: "reschedule ID", Short: "Move a scheduled notification, fan-out or trigger to another time", Args: term.Exact("an id"),
		Long: `reschedule moves a scheduled notification, a whole fan-out (its id without an index) or
a trigger to another time. The id stays the same. From 4.5 s before the due time on, it
is too late: exit 6.`,
		Example: `  notifyctl reschedule ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS --at 'monday 09:00' --tz Europe/Berlin
  notifyctl reschedule ntf_01KAJ8Q2T5E7V9XCB3M4N6P8RS --at now`,
		RunE: func(c *cobra.Command, args []string) error { return runReschedule(c.Context(), p, args[0], &o) },
	}
	o.add(c.Flags())
	return c
}

func runReschedule(ctx context.Context, p *program, id string, o *laterOptions) error {
	trigger := strings.HasPrefix(id, "trg_")
	if _, err := notify.ParseID(id); err != nil && !trigger {
		return err
	}
	at, err := o.resolveFuture(p.now(), false)
	switch {
	case err != nil:
		return err
	case at == nil:
		return term.Usage("give a time with --at or --in")
	case trigger:
		return confirmAndChange(p, changes, "reschedule "+id, "", func(cl *api.Client) (api.TriggerStatus, error) {
			return cl.RescheduleTrigger(ctx, id, *at)
		}, func(out *api.TriggerStatus) error {
			defer o.printDue(p, out.FireAt)
			return printTrigger(p, out)
		})
	}
	return confirmAndChange(p, changes, "reschedule "+id, "", func(cl *api.Client) (api.Scheduled, error) {
		return cl.Reschedule(ctx, id, *at)
	}, func(out *api.Scheduled) error {
		defer o.printDue(p, out.ScheduledAt)
		return p.printer().Record(out, term.Table{
			{"notification", out.NotificationID}, {"status", out.Status}, {"due", out.ScheduledAt.UTC().Format("2006-01-02T15:04:05.000Z")},
			{"receivers", count(int(out.Receivers))}, {"generation", strconv.Itoa(int(out.Generation))},
		})
	})
}
