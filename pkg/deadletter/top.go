package deadletter

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
)

const maxGroups = 10_000

// group is how letters failed: those with the same one are counted together.
type group struct{ channel, provider, class, code, template string }

// Top reads the index once. Of more than 10,000 ways to fail those met first are
// counted one by one.
func (m *Manager) Top(ctx context.Context, f api.LetterFilter, most int) (api.LetterTop, error) {
	match, err := NewMatcher(&f)
	if err != nil {
		return api.LetterTop{}, err
	}
	upTo, err := m.cfg.Letters.Last(ctx)
	if err != nil {
		return api.LetterTop{}, err
	}
	now := time.Now().UnixMilli()
	hour := time.Hour.Milliseconds()
	groups := map[group]*api.LetterGroup{}
	out := api.LetterTop{States: map[string]int{}, Channels: map[string]int{}, Callers: map[string]int{}}
	err = m.cfg.Letters.Walk(ctx, 0, upTo, func(d *engine.DeadLetter) error {
		ok, err := match.Matches(ctx, d)
		if err != nil || !ok {
			return err
		}
		out.Total++
		count(out.States, d.State)
		count(out.Channels, d.Channel)
		count(out.Callers, d.Caller)
		soon := d.State == engine.LetterDead && d.Until-now < endsSoon.Milliseconds()
		if d.State == engine.LetterDead && (out.Next == 0 || d.Until < out.Next) {
			out.Next = d.Until
		}
		if soon {
			out.EndsSoon++
		}
		if out.Oldest == 0 || d.LastFailed < out.Oldest {
			out.Oldest = d.LastFailed
		}
		provider, _, _ := strings.Cut(d.Provider, ":") // not each of its accounts
		key := group{d.Channel, provider, d.Class, d.Code, d.Template}
		g := groups[key]
		if g == nil {
			if len(groups) >= maxGroups {
				out.Other++
				return nil
			}
			g = &api.LetterGroup{
				Channel: d.Channel, Provider: provider, Class: d.Class, Code: d.Code, Template: d.Template,
				First: d.LastFailed, Callers: map[string]int{},
			}
			groups[key] = g
		}
		g.Count++
		g.First, g.Last = min(g.First, d.LastFailed), max(g.Last, d.LastFailed)
		count(g.Callers, d.Caller)
		g.Sample = LetterID(d)
		if soon {
			g.EndsSoon++
		}
		switch age := now - d.LastFailed; {
		case age < hour:
			g.LastHour++
		case age < 2*hour:
			g.HourAgo++
		}
		return nil
	})
	if err != nil {
		return api.LetterTop{}, err
	}
	out.Groups = make([]api.LetterGroup, 0, len(groups))
	for _, g := range groups {
		out.Groups = append(out.Groups, *g)
	}
	slices.SortFunc(out.Groups, func(a, b api.LetterGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Provider, b.Provider),
			cmp.Compare(a.Class, b.Class), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Template, b.Template))
	})
	for _, g := range out.Groups[min(most, len(out.Groups)):] {
		out.Other += g.Count
	}
	out.Groups = out.Groups[:min(most, len(out.Groups))]
	return out, nil
}
