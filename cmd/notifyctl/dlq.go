package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

func newDLQ(p *program) *cobra.Command {
	c := &cobra.Command{Use: "dlq", Short: "List dead letters of every caller, and replay them", Aliases: []string{"dead-letters"},
		Long: `A dead letter is a notification or trigger that failed for good. Dead letters are kept
for 30 days; ls and stats show which are removed next. Reading needs the scope observe,
changing needs operate.`}
	c.AddCommand(newDLQList(p), newShowCommand(p, &cobra.Command{
		Use: "show ID", Short: "Show one dead letter", Args: term.Exact("a notification id"),
	}, (*api.Client).DeadLetter, withProgram(p, deadLetterFields)), newDLQTop(p), newDLQStats(p),
		newDLQJob(p, "replay", "Send dead letters again, in a job of the server", `replay makes a plan, shows it, asks for confirmation, and starts a job. Only the failed
receiver is sent to again, under the same id. The job first sends a canary, a few
letters, and waits for their outcomes. It stops by itself if too many fail again or a
circuit is open (exit 10); "notifyctl job resume" continues it. A dead letter that was
replayed is not replayed again.

Ctrl-C pauses the job and prints how to continue it.`, `  notifyctl dlq replay --channel sms --class permanent --template t1 --dry-run
  notifyctl dlq replay --caller shop --since -2h --rate 200/s --canary 20 --yes
  notifyctl dlq replay --code twilio_21610 --plan-out plan.json; notifyctl dlq replay --plan plan.json --yes`),
		newDLQJob(p, "discard", "Exclude dead letters from replays for good, in a job of the server", "discard marks the selected dead letters: later replays skip them. Retention removes them.", `  notifyctl dlq discard --class permanent --code apns_unregistered --reason 'dead devices'`),
		newDLQJob(p, "export", "Copy dead letters to a file, in a job of the server", "export writes the selected dead letters into the job's report: --report FILE, or notifyctl job report.", `  notifyctl dlq export --caller shop --report letters.jsonl`))
	return c
}

func newDLQList(p *program) *cobra.Command {
	var letters letterFlags
	var f api.LetterFilter
	c := newListing(p, &cobra.Command{
		Short: "List dead letters, newest first",
		Example: `  notifyctl dlq ls --channel push --since -2h
  notifyctl dlq ls --class permanent --caller shop -o jsonl --limit 10000`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if ch := letters.f.Channel; ch != "trigger" {
				if err := checkKinds(ch, letters.f.Category); err != nil {
					return err
				}
			}
			f, err = letters.filter(p)
			return err
		},
	}, &listing[api.DeadLetter]{
		get: func(ctx context.Context, cl *api.Client, after string, n int) (out api.DeadLetterPage, err error) {
			for _, id := range f.IDs {
				d, err := cl.DeadLetter(ctx, id)
				if err != nil {
					return out, err
				}
				out.Items = append(out.Items, d)
			}
			if len(f.IDs) > 0 {
				return out, nil
			}
			if f.Where != "" || f.Attempts != "" {
				n = maxPage
			}
			return cl.DeadLetters(ctx, f, after, n)
		},
		columns: columns[api.DeadLetter]{
			head: "NOTIFICATION  CALLER  CHANNEL  CATEGORY  PROVIDER  CLASS  CODE  ATTEMPTS  STATE  FAILED  KEPT",
			row: func(d *api.DeadLetter) []string {
				return []string{
					d.NotificationID, d.Caller, d.Channel, d.Category, d.Provider, d.Class, d.Code,
					fmt.Sprint(d.Attempts), d.State, p.timeText(d.LastFailedAt), p.optionalTimeText(d.KeptUntil),
				}
			},
		},
	})
	letters.add(c)
	c.Flags().StringVar(&letters.f.State, "state", "", "dead, replayed or discarded; default: all")
	completeFlag(c, "state", []string{"dead", "replayed", "discarded"})
	return c
}

func deadLetterFields(p *program, d *api.DeadLetter) term.Table {
	t := term.Table{
		{"notification", d.NotificationID}, {"state", d.State}, {"class", d.Class}, {"code", d.Code},
		{"provider", d.Provider}, {"attempts", fmt.Sprint(d.Attempts)}, {"caller", d.Caller}, {"campaign", d.Campaign},
		{"channel", d.Channel}, {"category", d.Category}, {"user", d.UserID}, {"template", d.Template},
		{"first failed", p.timeText(d.FirstFailedAt)}, {"last failed", p.timeText(d.LastFailedAt)}, {"expires", p.optionalTimeText(d.ExpiresAt)}, {"kept until", p.optionalTimeText(d.KeptUntil)}, {"origin", d.Origin}, {"job", d.Job}, {"trace", d.TraceID},
	}
	if d.Epoch > 0 {
		t = append(t, []string{"epoch", fmt.Sprint(d.Epoch)})
	}
	for _, k := range slices.Sorted(maps.Keys(d.Extra)) {
		t = append(t, []string{k, fmt.Sprint(d.Extra[k])})
	}
	return t
}

func newDLQTop(p *program) *cobra.Command {
	var l letterFlags
	var limit int
	c := &cobra.Command{
		Use: "top", Short: "Group dead letters by how they failed, the most frequent first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			top, err := l.top(c.Context(), p, "dead", limit)
			if err != nil {
				return err
			}
			return showTop(p, &top)
		},
	}
	l.add(c)
	c.Flags().IntVar(&limit, "limit", 20, "how many groups at most")
	return c
}

// top requests the selected letters, grouped by the way in which they failed. If no flag gives a
// state, the parameter state selects the letters ("": letters in any state).
func (l *letterFlags) top(ctx context.Context, p *program, state string, limit int) (api.LetterTop, error) {
	cl, err := p.client()
	if err != nil {
		return api.LetterTop{}, err
	}
	f, err := l.filter(p)
	if err != nil {
		return api.LetterTop{}, err
	}
	f.State = cmp.Or(f.State, state)
	return cl.TopDeadLetters(ctx, f, limit)
}

func showTop(p *program, top *api.LetterTop) error {
	cols := columns[api.LetterGroup]{
		head: "COUNT  LAST HOUR  CHANNEL  PROVIDER  CLASS  CODE  TEMPLATE  CALLERS  FIRST  LAST  SAMPLE",
		row: func(g *api.LetterGroup) []string {
			trend := count(g.LastHour)
			switch {
			case g.LastHour > g.HourAgo:
				trend += " up"
			case g.LastHour < g.HourAgo:
				trend += " down"
			}
			return []string{
				count(g.Count), trend, g.Channel, g.Provider, g.Class, g.Code, g.Template, countsText(g.Callers),
				p.timeText(time.UnixMilli(g.First)), p.timeText(time.UnixMilli(g.Last)), g.Sample,
			}
		},
	}
	if err := p.printer().Print(top, cols.table(top.Groups)); err != nil {
		return err
	}
	p.noteNextPage(len(top.Groups), "")
	if len(top.Groups) > 0 {
		g := &top.Groups[0]
		args := []string{"notifyctl dlq replay", "--channel " + term.Quote(g.Channel), "--class " + term.Quote(g.Class), "--code " + term.Quote(g.Code)}
		if g.Template != "" {
			args = append(args, "--template "+term.Quote(g.Template))
		}
		p.note("to replay the first group: %s --dry-run", strings.Join(args, " "))
	}
	if top.EndsSoon > 0 {
		p.note("%s will be removed within a day", count(top.EndsSoon))
	}
	return nil
}

func newDLQStats(p *program) *cobra.Command {
	var l letterFlags
	c := &cobra.Command{
		Use: "stats", Short: "Count dead letters, and show when they are removed", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			top, err := l.top(c.Context(), p, "", 1)
			if err != nil {
				return err
			}
			at := func(ms int64) string {
				if ms == 0 {
					return ""
				}
				return p.timeText(time.UnixMilli(ms))
			}
			return p.printer().Record(top, term.Table{
				{"dead letters", count(top.Total)}, {"by state", countsText(top.States)}, {"by channel", countsText(top.Channels)}, {"by caller", countsText(top.Callers)},
				{"oldest failed", at(top.Oldest)}, {"next removed", at(top.Next)}, {"within a day", count(top.EndsSoon)},
			})
		},
	}
	l.add(c)
	return c
}
