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
	c := &cobra.Command{Use: "dlq", Short: "Look at dead letters of every caller, and send them again", Aliases: []string{"dead-letters"},
		Long: `Dead letters are what failed for good, of every channel and of triggers. They are kept
for 30 days; ls and stats say what ages out next. Looking needs the scope observe,
changing operate.`}
	c.AddCommand(newDLQList(p), newGet(p, &cobra.Command{
		Use: "show ID", Short: "Show one dead letter", Args: term.Exact("a notification id"),
	}, (*api.Client).DeadLetter, bind(p, deadLetterFields)), newDLQTop(p), newDLQStats(p),
		newDLQJob(p, "replay", "Send dead letters again, as a job of the server", `replay makes a plan, shows it, asks, and starts a job. The failed receiver alone is sent
again, under the same id. A canary goes first, and its outcomes are awaited; the job
stops by itself when too many fail again or a circuit is open (exit 10), and is
resumed with "notifyctl job resume". What was replayed is not replayed again.

Ctrl-C pauses the job and prints how to go on.`, `  notifyctl dlq replay --channel sms --class permanent --template t1 --dry-run
  notifyctl dlq replay --caller shop --since -2h --rate 200/s --canary 20 --yes
  notifyctl dlq replay --code twilio_21610 --plan-out plan.json; notifyctl dlq replay --plan plan.json --yes`),
		newDLQJob(p, "discard", "Put dead letters aside for good, as a job of the server", "discard leaves what it selects out of later replays. Retention removes it.", `  notifyctl dlq discard --class permanent --code apns_unregistered --reason 'dead devices'`),
		newDLQJob(p, "export", "Copy dead letters to a file, as a job of the server", "export writes what it selects into the job's report: --report FILE, or notifyctl job report.", `  notifyctl dlq export --caller shop --report letters.jsonl`))
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
					fmt.Sprint(d.Attempts), d.State, p.when(d.LastFailedAt), p.whenever(d.KeptUntil),
				}
			},
		},
	})
	letters.add(c)
	c.Flags().StringVar(&letters.f.State, "state", "", "dead, replayed or discarded; default: all")
	complete(c, "state", []string{"dead", "replayed", "discarded"})
	return c
}

func deadLetterFields(p *program, d *api.DeadLetter) term.Table {
	t := term.Table{
		{"notification", d.NotificationID}, {"state", d.State}, {"class", d.Class}, {"code", d.Code},
		{"provider", d.Provider}, {"attempts", fmt.Sprint(d.Attempts)}, {"caller", d.Caller}, {"campaign", d.Campaign},
		{"channel", d.Channel}, {"category", d.Category}, {"user", d.UserID}, {"template", d.Template},
		{"first failed", p.when(d.FirstFailedAt)}, {"last failed", p.when(d.LastFailedAt)}, {"expires", p.whenever(d.ExpiresAt)}, {"kept until", p.whenever(d.KeptUntil)}, {"origin", d.Origin}, {"job", d.Job}, {"trace", d.TraceID},
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
		Use: "top", Short: "How they failed, the most frequent first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			top, err := l.top(c.Context(), p, "dead", limit)
			if err != nil {
				return err
			}
			return showTop(p, &top)
		},
	}
	l.add(c)
	c.Flags().IntVar(&limit, "limit", 20, "how many at most")
	return c
}

// top counts the letters of the flags by how they failed; where these name no
// state, those in state ("": in any).
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
				count(g.Count), trend, g.Channel, g.Provider, g.Class, g.Code, g.Template, sums(g.Callers),
				p.when(time.UnixMilli(g.First)), p.when(time.UnixMilli(g.Last)), g.Sample,
			}
		},
	}
	if err := p.printer().Print(top, cols.table(top.Groups)); err != nil {
		return err
	}
	p.more(len(top.Groups), "")
	if len(top.Groups) > 0 {
		g := &top.Groups[0]
		args := []string{"notifyctl dlq replay", "--channel " + term.Quote(g.Channel), "--class " + term.Quote(g.Class), "--code " + term.Quote(g.Code)}
		if g.Template != "" {
			args = append(args, "--template "+term.Quote(g.Template))
		}
		p.note("the first: %s --dry-run", strings.Join(args, " "))
	}
	if top.EndsSoon > 0 {
		p.note("%s age out within a day", count(top.EndsSoon))
	}
	return nil
}

func newDLQStats(p *program) *cobra.Command {
	var l letterFlags
	c := &cobra.Command{
		Use: "stats", Short: "Count dead letters, and say when they age out", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			top, err := l.top(c.Context(), p, "", 1)
			if err != nil {
				return err
			}
			at := func(ms int64) string {
				if ms == 0 {
					return ""
				}
				return p.when(time.UnixMilli(ms))
			}
			return p.printer().Record(top, term.Table{
				{"dead letters", count(top.Total)}, {"by state", sums(top.States)}, {"by channel", sums(top.Channels)}, {"by caller", sums(top.Callers)},
				{"oldest failed", at(top.Oldest)}, {"next ages out", at(top.Next)}, {"within a day", count(top.EndsSoon)},
			})
		},
	}
	l.add(c)
	return c
}
