package ops

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Group is dead letters that failed alike.
type Group struct {
	Channel     string         `json:"channel"`
	Provider    string         `json:"provider,omitempty"`
	Class       string         `json:"class"`
	Code        string         `json:"code"`
	Template    string         `json:"template,omitempty"`
	Count       int            `json:"count"`
	First       int64          `json:"first_failed_ms"`
	Last        int64          `json:"last_failed_ms"`
	EndsSoon    int            `json:"ends_soon"` // retention takes them within a day
	Callers     map[string]int `json:"callers"`
	Sample      string         `json:"sample"`      // an id
	LastHour    int            `json:"last_hour"`   // of Count
	HourAgo     int            `json:"hour_before"` // in the hour before that
	fingerprint string
}

// Top is the dead letters of a filter by how they failed, the most frequent
// first, and what they sum to.
type Top struct {
	Groups   []Group        `json:"groups"`
	Total    int            `json:"total"`
	States   map[string]int `json:"states"`
	Channels map[string]int `json:"channels"`
	Callers  map[string]int `json:"callers"`
	Oldest   int64          `json:"oldest_ms,omitempty"`
	EndsSoon int            `json:"ends_soon"`
	Next     int64          `json:"next_end_ms,omitempty"` // when retention takes the first of them
	Other    int            `json:"other"`                 // not in Groups
}

const maxGroups = 10_000

// Top reads the index once. Of more than 10,000 ways to fail those met first are
// counted one by one.
func (m *Manager) Top(ctx context.Context, f Filter, most int) (Top, error) {
	match, err := f.compile()
	if err != nil {
		return Top{}, err
	}
	upTo, err := m.cfg.Letters.Last(ctx)
	if err != nil {
		return Top{}, err
	}
	now := time.Now().UnixMilli()
	hour := time.Hour.Milliseconds()
	groups := map[string]*Group{}
	out := Top{States: map[string]int{}, Channels: map[string]int{}, Callers: map[string]int{}}
	err = m.cfg.Letters.Walk(ctx, 0, upTo, func(d *engine.DeadLetter) error {
		ok, err := match.matches(ctx, d)
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
		key := d.Channel + "\x00" + provider + "\x00" + d.Class + "\x00" + d.Code + "\x00" + d.Template
		g := groups[key]
		if g == nil {
			if len(groups) >= maxGroups {
				out.Other++
				return nil
			}
			g = &Group{
				Channel: d.Channel, Provider: provider, Class: d.Class, Code: d.Code, Template: d.Template,
				First: d.LastFailed, Callers: map[string]int{}, fingerprint: key,
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
		return Top{}, err
	}
	out.Groups = make([]Group, 0, len(groups))
	for _, g := range groups {
		out.Groups = append(out.Groups, *g)
	}
	slices.SortFunc(out.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.fingerprint, b.fingerprint))
	})
	for _, g := range out.Groups[min(most, len(out.Groups)):] {
		out.Other += g.Count
	}
	out.Groups = out.Groups[:min(most, len(out.Groups))]
	return out, nil
}
