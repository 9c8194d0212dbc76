package ops

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/itchyny/gojq"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// ChannelTrigger is the channel of the dead letters of triggers.
const ChannelTrigger = "trigger"

// Filter selects dead letters; empty fields select all. It is part of a plan's
// digest.
type Filter struct {
	Channel  string   `json:"channel,omitempty"` // push, sms, email, trigger
	Category string   `json:"category,omitempty"`
	Class    string   `json:"class,omitempty"`
	Code     string   `json:"code,omitempty"`
	Provider string   `json:"provider,omitempty"`
	Caller   string   `json:"caller,omitempty"`
	Template string   `json:"template,omitempty"`
	State    string   `json:"state,omitempty"`    // dead, replayed, discarded
	Since    int64    `json:"since_ms,omitempty"` // failed last in [Since, Until), ms since 1970
	Until    int64    `json:"until_ms,omitempty"`
	IDs      []string `json:"ids,omitempty"`      // at most MaxIDs
	Attempts string   `json:"attempts,omitempty"` // a number, or one behind >=, <=, > or <
	Where    string   `json:"where,omitempty"`    // a jq expression over the letter's JSON that only selects (where.go); true does
	All      bool     `json:"all,omitempty"`      // says that an empty filter is meant
}

// MaxIDs is how many ids a filter may list.
const MaxIDs = 10_000

// Empty reports whether f selects every dead letter.
func (f *Filter) Empty() bool {
	return f.Channel == "" && f.Category == "" && f.Class == "" && f.Code == "" && f.Provider == "" && f.Caller == "" &&
		f.Template == "" && f.State == "" && f.Since == 0 && f.Until == 0 && len(f.IDs) == 0 && f.Attempts == "" && f.Where == ""
}

// matcher is a Filter that was checked.
type matcher struct {
	engine   engine.DeadLetterFilter
	provider string
	ids      map[string]bool
	least    int
	most     int
	where    *gojq.Code
	looked   int           // letters that where was asked about
	spent    time.Duration // and how long it took
}

// compile checks a filter. notify.KindInvalid names the field.
func (f *Filter) compile() (*matcher, error) {
	if _, ok := notify.ParseChannel(f.Channel); f.Channel != "" && f.Channel != ChannelTrigger && !ok {
		return nil, notify.Invalid("unknown_channel", "channel", "push, sms, email or trigger")
	}
	if _, ok := notify.ParseCategory(f.Category); f.Category != "" && !ok {
		return nil, notify.Invalid("unknown_category", "category", "otp, alert, transactional, marketing or digest")
	}
	if !slices.Contains([]string{"", engine.LetterDead, engine.LetterReplayed, engine.LetterDiscarded}, f.State) {
		return nil, notify.Invalid("bad_state", "state", "dead, replayed or discarded")
	}
	if f.Since < 0 || f.Until < 0 || f.Until != 0 && f.Since >= f.Until {
		return nil, notify.Invalid("bad_time", "until", "must be after since")
	}
	m := &matcher{engine: engine.DeadLetterFilter{
		Channel: f.Channel, Category: f.Category, Class: f.Class, Code: f.Code,
		Caller: f.Caller, Template: f.Template, State: f.State, Since: f.Since, Until: f.Until,
	}, provider: f.Provider}
	if len(f.IDs) > MaxIDs {
		return nil, notify.Invalid("too_many", "ids", "at most "+strconv.Itoa(MaxIDs)+" ids")
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
	if m.least, m.most, err = attempts(f.Attempts); err != nil {
		return nil, err
	}
	if f.Where != "" {
		m.where, err = where(f.Where)
	}
	return m, err
}

// Matcher checks a filter and returns what selects by it.
func (f *Filter) Matcher() (func(context.Context, *engine.DeadLetter) (bool, error), error) {
	m, err := f.compile()
	if err != nil {
		return nil, err
	}
	return m.matches, nil
}

func attempts(s string) (least, most int, err error) {
	const open = 1<<31 - 1
	if s == "" {
		return 0, open, nil
	}
	op := strings.TrimRight(s, "0123456789 ")
	n, err := strconv.Atoi(strings.TrimSpace(s[len(op):]))
	if err != nil || n > open-1 {
		return 0, 0, notify.Invalid("bad_attempts", "attempts", "a number, or one behind >=, <=, > or <")
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
	return 0, 0, notify.Invalid("bad_attempts", "attempts", "a number, or one behind >=, <=, > or <")
}

// matches reports whether a letter is selected; not for use by several at a time.
func (m *matcher) matches(ctx context.Context, d *engine.DeadLetter) (bool, error) {
	if m.provider != "" && m.provider != d.Provider && !strings.HasPrefix(d.Provider, m.provider+":") { // or one of its accounts
		return false, nil
	}
	if !m.engine.Matches(d) || d.Attempts < m.least || d.Attempts > m.most || m.ids != nil && !m.ids[LetterID(d)] {
		return false, nil
	}
	if m.where == nil {
		return true, nil
	}
	return m.selects(ctx, d)
}

// LetterID is the id of what failed: of a notification, or of a trigger.
func LetterID(d *engine.DeadLetter) string {
	if d.Channel == ChannelTrigger {
		return triggerPrefix + d.ID.Base.String()
	}
	return d.ID.String()
}

const triggerPrefix = "trg_"

// ParseLetterID is the inverse of LetterID.
func ParseLetterID(s string) (notify.ID, error) {
	if rest, ok := strings.CutPrefix(s, triggerPrefix); ok {
		base, err := notify.ParseBase(rest)
		if err != nil {
			return notify.ID{}, notify.Invalid("bad_id", "id", "the id of a trigger is trg_ and a ULID")
		}
		return notify.ID{Base: base}, nil
	}
	return notify.ParseID(s)
}
