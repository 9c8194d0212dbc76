package deadletter

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/itchyny/gojq"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// ChannelTrigger is the channel of the dead letters of triggers.
const ChannelTrigger = "trigger"

// MaxIDs is how many ids a filter may list.
const MaxIDs = 10_000

// Matcher is a filter whose fields have been checked. It is not safe for concurrent use.
type Matcher struct {
	filter      api.LetterFilter
	ids         map[string]bool // nil: any id
	minAttempts int
	maxAttempts int
	where       *gojq.Code    // nil: the filter has no expression
	evaluated   int           // for how many letters the expression was evaluated
	evalTime    time.Duration // total time of these evaluations
}

// NewMatcher checks a filter and compiles its expression. If the filter is wrong, it returns
// notify.KindInvalid with the name of the wrong field.
func NewMatcher(f *api.LetterFilter) (*Matcher, error) {
	if _, ok := notify.ParseChannel(f.Channel); f.Channel != "" && f.Channel != ChannelTrigger && !ok {
		return nil, notify.Invalid("unknown_channel", "channel", "must be push, sms, email or trigger, not "+strconv.Quote(f.Channel))
	}
	if _, ok := notify.ParseCategory(f.Category); f.Category != "" && !ok {
		return nil, notify.Invalid("unknown_category", "category", "must be otp, alert, transactional, marketing or digest, not "+strconv.Quote(f.Category))
	}
	if !slices.Contains([]string{"", engine.LetterDead, engine.LetterReplayed, engine.LetterDiscarded}, f.State) {
		return nil, notify.Invalid("bad_state", "state", "must be dead, replayed or discarded, not "+strconv.Quote(f.State))
	}
	if f.Since < 0 || f.Until < 0 || f.Until != 0 && f.Since >= f.Until {
		return nil, notify.Invalid("bad_time", "until", `must be later than "since"`)
	}
	m := &Matcher{filter: *f}
	if len(f.IDs) > MaxIDs {
		return nil, notify.Invalid("too_many", "ids", "lists "+strconv.Itoa(len(f.IDs))+" ids; the maximum is "+strconv.Itoa(MaxIDs))
	}
	if len(f.IDs) > 0 {
		m.ids = make(map[string]bool, len(f.IDs))
		for _, id := range f.IDs {
			if _, err := ParseLetterID(id); err != nil {
				return nil, err
			}
			m.ids[id] = true
		}
	}
	var err error
	if m.minAttempts, m.maxAttempts, err = parseAttempts(f.Attempts); err != nil {
		return nil, err
	}
	if f.Where != "" {
		m.where, err = compileWhere(f.Where)
	}
	return m, err
}

// parseAttempts returns the range of attempts for a filter such as ">=3".
func parseAttempts(s string) (least, most int, err error) {
	const open = 1<<31 - 1
	if s == "" {
		return 0, open, nil
	}
	op := strings.TrimRight(s, "0123456789 ")
	n, err := strconv.Atoi(strings.TrimSpace(s[len(op):]))
	if err != nil || n > open-1 {
		return 0, 0, badAttempts(s)
	}
	switch strings.TrimSpace(op) {
	case "", "=", "==":
		return n, n, nil
	case ">=":
		return n, open, nil
	case ">":
		return n + 1, open, nil
	case "<=":
		return 0, n, nil
	case "<":
		return 0, n - 1, nil
	}
	return 0, 0, badAttempts(s)
}

func badAttempts(s string) error {
	return notify.Invalid("bad_attempts", "attempts", "must be a number like 3, or a comparison with >=, <=, > or < like >=3, not "+strconv.Quote(s))
}

// Named reports whether the texts and times of the filter match a letter. It does not check the
// attempts, the ids and the expression of the filter; Matches does.
func (m *Matcher) Named(d *engine.DeadLetter) bool {
	f := &m.filter
	for _, p := range [...][2]string{
		{f.Caller, d.Caller}, {f.Channel, d.Channel}, {f.Category, d.Category}, {f.Class, d.Class},
		{f.Code, d.Code}, {f.Template, d.Template}, {f.State, d.State},
	} {
		if p[0] != "" && p[0] != p[1] {
			return false
		}
	}
	if f.Provider != "" && f.Provider != d.Provider && !strings.HasPrefix(d.Provider, f.Provider+":") { // the provider itself or one of its accounts
		return false
	}
	return (f.Since == 0 || d.LastFailed >= f.Since) && (f.Until == 0 || d.LastFailed < f.Until)
}

// Matches reports whether the filter selects a letter. It returns an error if the filter's
// expression fails or takes too long.
func (m *Matcher) Matches(ctx context.Context, d *engine.DeadLetter) (bool, error) {
	if !m.Named(d) || d.Attempts < m.minAttempts || d.Attempts > m.maxAttempts || m.ids != nil && !m.ids[LetterID(d)] {
		return false, nil
	}
	if m.where == nil {
		return true, nil
	}
	return m.evalWhere(ctx, d)
}

// walkSelected reads the index up to the position upTo. It calls fn with each letter that the
// filter selects and for which eligible returns true. It evaluates the filter's expression only for
// eligible letters.
func walkSelected(ctx context.Context, letters engine.DeadLetters, f *api.LetterFilter, upTo uint64, eligible func(*engine.DeadLetter) bool, fn func(*engine.DeadLetter) error) error {
	m, err := NewMatcher(f)
	if err != nil {
		return err
	}
	return letters.Walk(ctx, 0, upTo, func(d *engine.DeadLetter) error {
		if !eligible(d) {
			return nil
		}
		ok, err := m.Matches(ctx, d)
		if err != nil || !ok {
			return err
		}
		return fn(d)
	})
}

// LetterID returns the id of the notification or trigger that failed.
func LetterID(d *engine.DeadLetter) string {
	if d.Channel == ChannelTrigger {
		return triggerPrefix + d.ID.Base.String()
	}
	return d.ID.String()
}

const triggerPrefix = "trg_"

// ParseLetterID parses a text that LetterID has made.
func ParseLetterID(s string) (notify.ID, error) {
	if rest, ok := strings.CutPrefix(s, triggerPrefix); ok {
		base, err := notify.ParseBase(rest)
		if err != nil {
			return notify.ID{}, notify.Invalid("bad_id", "id", "the id of a trigger must be trg_<ULID>")
		}
		return notify.ID{Base: base}, nil
	}
	return notify.ParseID(s)
}

const maxGroups = 10_000

// letterGroupKey describes how a letter failed. Top counts all letters with the same key as one
// group.
type letterGroupKey struct{ channel, provider, class, code, template string }

// Top reads the index once and counts the letters by letterGroupKey. It makes groups for the first
// 10,000 keys and counts all other letters together. It returns the largest groups, at most limit
// of them.
func (m *Manager) Top(ctx context.Context, f api.LetterFilter, limit int) (api.LetterTop, error) {
	upTo, err := m.cfg.Letters.Last(ctx)
	if err != nil {
		return api.LetterTop{}, err
	}
	now := time.Now().UnixMilli()
	hour := time.Hour.Milliseconds()
	groups := map[letterGroupKey]*api.LetterGroup{}
	out := api.LetterTop{States: map[string]int{}, Channels: map[string]int{}, Callers: map[string]int{}}
	err = walkSelected(ctx, m.cfg.Letters, &f, upTo, func(*engine.DeadLetter) bool { return true }, func(d *engine.DeadLetter) error {
		out.Total++
		countKind(out.States, d.State)
		countKind(out.Channels, d.Channel)
		countKind(out.Callers, d.Caller)
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
		provider, _, _ := strings.Cut(d.Provider, ":") // the provider without the account
		key := letterGroupKey{d.Channel, provider, d.Class, d.Code, d.Template}
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
		countKind(g.Callers, d.Caller)
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
	for _, g := range out.Groups[min(limit, len(out.Groups)):] {
		out.Other += g.Count
	}
	out.Groups = out.Groups[:min(limit, len(out.Groups))]
	return out, nil
}
