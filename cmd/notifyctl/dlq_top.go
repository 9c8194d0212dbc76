package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/term"
)

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
			return p.showTop(&top)
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
	f.State = first(f.State, state)
	return cl.TopDeadLetters(ctx, f, limit)
}

func (p *program) showTop(top *api.LetterTop) error {
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
		args := []string{"notifyctl dlq replay", "--channel " + quote(g.Channel), "--class " + quote(g.Class), "--code " + quote(g.Code)}
		if g.Template != "" {
			args = append(args, "--template "+quote(g.Template))
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
