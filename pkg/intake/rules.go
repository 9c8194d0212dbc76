package intake

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/request"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// Limits that only intake uses, in bytes.
const (
	maxCollapseKey = 64  // APNs' limit of apns-collapse-id
	maxFrom        = 320 // the longest e-mail address
	// Room for both trace fields in a record.
	traceRoom = request.MaxTrace + request.MaxTraceState + 8
	// The end of the year 9999 in ms since 1970. RFC 3339 has no later time.
	maxMoment = 253_402_300_799_999
)

// terms contains the fields that all receivers of a request share.
type terms struct {
	channel   notify.Channel
	category  notify.Category
	content   notify.Content
	scheduled int64 // ms since 1970; 0: now
	expires   int64 // ms since 1970; 0: never
}

func (t *terms) lane() notify.Lane { return notify.LaneOf(t.channel, t.category) }

// rules contains the rules of admission that are configured.
type rules struct {
	refused  [len(notify.Channels) + 1][len(notify.Categories) + 1]bool
	sms      [len(notify.Categories) + 1]bool
	off      switches // one bit for each combination that the fields refused and sms exclude
	later    bool
	clock    Gate // nil: the clock is always right
	maxDelay time.Duration
	jitter   time.Duration
}

// switches has one bit for each pair of channel and category that the configuration refuses. A
// batch stores its switches in its reservation. So a repeat refuses and accepts the same items
// as the first request, even if the configuration has changed. A single request or a fan-out
// needs no stored switches. If it has a reservation, it was accepted, so its repeat refuses
// nothing.
type switches uint16

// frozenSwitches is set in stored switches, so that the stored value is never 0.
const frozenSwitches switches = 1 << 15

const _ = uint(15 - len(notify.Channels)*len(notify.Categories)) // the bits end below bit 15

func switchOf(ch notify.Channel, cat notify.Category) switches {
	return 1 << (uint(ch-1)*uint(len(notify.Categories)) + uint(cat-1))
}

// switchesFor returns the switches that apply to a single request or a fan-out: none for a resumed
// request.
func switchesFor(s *Service, l request.Basis) switches {
	if l.Resumed {
		return 0
	}
	return s.rules.off
}

func newRules(cfg Config) rules {
	r := rules{maxDelay: cfg.MaxDelay, jitter: cfg.Jitter}
	for ch, cats := range cfg.Refuse {
		for _, cat := range cats {
			r.refused[ch][cat] = true
		}
	}
	for _, cat := range cfg.SMS {
		r.sms[cat] = true
	}
	for _, ch := range notify.Channels {
		for _, cat := range notify.Categories {
			if r.refused[ch][cat] || ch == notify.SMS && !r.sms[cat] {
				r.off |= switchOf(ch, cat)
			}
		}
	}
	return r
}

// admit checks the terms of a request that is accepted at the time now (ms since 1970). The
// parameter off contains the pairs of channel and category to refuse. For a resumed batch these are
// the pairs of its first acceptance, and for any other resumed request there are none, because some
// of its records may already be in the log.
//
// If the result depends on a clock that is not reliable, admit returns the error of the clock gate
// (notify.KindUnavailable). Otherwise a wrong clock could make a scheduled notification due at
// once, or make admit refuse a notification that another process would accept. admit does not check
// the clock if the notification is not scheduled and has not expired by this clock.
func (r *rules) admit(t *terms, now int64, off switches) error {
	if t.scheduled != 0 || t.expires != 0 && t.expires <= now {
		if err := checkGate(r.clock); err != nil {
			return err
		}
	}
	refused := off&switchOf(t.channel, t.category) != 0
	switch {
	case refused && t.channel == notify.SMS && (!r.sms[t.category] || !r.refused[t.channel][t.category]):
		return invalid("category_not_for_channel", "category", t.category.String()+" notifications cannot be sent by sms")
	case refused:
		return invalid("category_refused", "category", "the setting intake.refuse refuses "+t.category.String()+" notifications by "+t.channel.String())
	case t.expires != 0 && t.expires <= now:
		return invalid("expires_in_past", "expires_at", "must lie in the future")
	case t.expires > maxMoment: // only a protobuf body can contain such a time
		return invalid("out_of_range", "expires_at", "must be at the latest in the year 9999")
	}
	if t.scheduled > now {
		switch {
		case !r.later:
			return invalid("scheduling_disabled", "scheduled_at", "this server cannot schedule notifications; omit scheduled_at to send the notification now")
		case t.scheduled-now > r.maxDelay.Milliseconds():
			return invalid("scheduled_too_far", "scheduled_at", fmt.Sprintf("must be at most %.0f days in the future", r.maxDelay.Hours()/24))
		case t.expires != 0 && t.expires <= t.scheduled:
			return invalid("expires_before_scheduled", "expires_at", "must be after scheduled_at")
		}
	}
	return checkContent(t.channel, &t.content)
}

// fireTime returns the time at which an admitted request is due, in ms since 1970; 0 means now.
// Jitter only makes the time later, by at most a tenth of the delay, and never later than the
// expiry. The same base and the same time now always give the same result.
func (r *rules) fireTime(t *terms, base notify.Base, now int64) int64 {
	if t.scheduled <= now {
		return 0
	}
	spread := min(r.jitter.Milliseconds(), (t.scheduled-now)/10)
	if t.expires != 0 {
		spread = min(spread, t.expires-t.scheduled-1)
	}
	if spread <= 0 || t.category.Critical() {
		return t.scheduled
	}
	return t.scheduled + int64(notify.HashUser(base[:])%uint64(spread+1))
}

func checkContent(ch notify.Channel, c *notify.Content) error {
	if len(c.Template) > notify.MaxTemplate || len(c.Title) > notify.MaxTitle || len(c.Body) > notify.MaxBody ||
		len(c.HTML) > notify.MaxHTML || len(c.Variables) > notify.MaxVariables || len(c.Data) > notify.MaxData ||
		len(c.CollapseKey) > maxCollapseKey || len(c.From) > maxFrom {
		return tooLongIn(c)
	}
	if err := checkNames(c); err != nil {
		return err
	}
	not := func(field string) error {
		return invalid("not_for_channel", "content."+field, "cannot be used with the channel "+ch.String())
	}
	switch {
	case c.HTML != "" && ch != notify.Email:
		return not("html")
	case len(c.Data) > 0 && ch != notify.Push:
		return not("data")
	case c.CollapseKey != "" && ch != notify.Push:
		return not("collapse_key")
	case c.From != "" && ch == notify.Push:
		return not("from")
	case c.Title != "" && ch == notify.SMS:
		return not("title")
	case c.Template != "" && ch == notify.Push: // neither APNs nor FCM has templates
		return not("template")
	case c.From != "":
		if err := checkSender(ch, c.From); err != nil {
			return err
		}
	case len(c.Data) > 0:
		if err := checkData(c.Data); err != nil {
			return err
		}
	}
	if c.Template != "" {
		return nil
	}
	switch ch {
	case notify.Push:
		if c.Title == "" && c.Body == "" {
			return invalid("content_required", "content", "push needs a title or a body")
		}
	case notify.Email:
		if c.Title == "" {
			return invalid("content_required", "content.title", "email needs a title (its subject), or a template")
		}
		if c.Body == "" && c.HTML == "" {
			return invalid("content_required", "content.body", "email needs a body or html, or a template")
		}
	case notify.SMS:
		if c.Body == "" {
			return invalid("content_required", "content.body", "sms needs a body or a template")
		}
	}
	return nil
}

// tooLongIn returns the error for the first field of c that is too long.
func tooLongIn(c *notify.Content) error {
	for _, f := range [...]struct {
		name string
		n    int
		max  int
	}{
		{"content.template", len(c.Template), notify.MaxTemplate},
		{"content.title", len(c.Title), notify.MaxTitle},
		{"content.body", len(c.Body), notify.MaxBody},
		{"content.html", len(c.HTML), notify.MaxHTML},
		{"content.variables", len(c.Variables), notify.MaxVariables},
		{"content.data", len(c.Data), notify.MaxData},
		{"content.collapse_key", len(c.CollapseKey), maxCollapseKey},
		{"content.from", len(c.From), maxFrom},
	} {
		if f.n > f.max {
			return tooLong(f.name, f.n, f.max)
		}
	}
	return nil
}

// A reason says why one receiver is refused. The zero reason means that the receiver is not
// refused.
type reason struct {
	code, field, detail string
}

var (
	noReason         = reason{}
	reasonNoUser     = reason{"user_id_required", "user_id", "a receiver must have a user_id"}
	reasonLongUser   = reason{"user_id_too_long", "user_id", fmt.Sprintf("must have at most %d bytes", notify.MaxUserID)}
	reasonLongAddr   = reason{"address_too_long", "address", fmt.Sprintf("must have at most %d bytes", notify.MaxAddress)}
	reasonLongVars   = reason{"variables_too_long", "variables", fmt.Sprintf("must have at most %d bytes", notify.MaxVariables)}
	reasonForbidden  = reason{"user_forbidden", "user_id", "the token is restricted to other users"}
	reasonSecondTime = reason{"duplicate_user", "user_id", "the user is already in this request"}
)

// checkReceiver returns why a receiver is refused, or noReason. The user id must begin with the
// given prefix. The method addPlain does not call checkReceiver for plain user ids.
func checkReceiver(ch notify.Channel, prefix string, user, address, vars []byte) reason {
	switch {
	case prefix != "" && !bytes.HasPrefix(user, []byte(prefix)):
		return reasonForbidden
	case len(user) == 0:
		return reasonNoUser
	case len(user) > notify.MaxUserID:
		return reasonLongUser
	case plainEnd(user, 0) < len(user), user[0] == '.', user[0] == '/': // CheckUserID accepts all other user ids
		if rule := notify.CheckUserID(alias(user)); rule != "" {
			return reason{"bad_user_id", "user_id", rule}
		}
	}
	switch {
	case len(vars) > notify.MaxVariables:
		return reasonLongVars
	case len(address) == 0:
		return noReason
	}
	return checkAddress(ch, address)
}

// checkAddress checks the form of an address, not whether it exists. The same rules apply to stored
// addresses.
func checkAddress(ch notify.Channel, a []byte) reason {
	if len(a) > notify.MaxAddress {
		return reasonLongAddr
	}
	if err := users.ValidateAddress(ch, alias(a)); err != nil {
		return reason{"bad_address", "address", err.Error()}
	}
	return noReason
}

func invalid(code, field, msg string) error { return notify.Invalid(code, field, msg) }

func tooLong(field string, n, limit int) error {
	return &notify.Error{Kind: notify.KindTooLarge, Code: "too_long", Field: field, Msg: fmt.Sprintf("has %d bytes; the maximum is %d bytes", n, limit)}
}

// given reports whether r is a reason, and not noReason. A comparison with noReason would be a
// function call, which takes 7 ns for each receiver.
func (r reason) given() bool { return r.code != "" }

func (r reason) err(prefix string) error {
	e := notify.Invalid(r.code, prefix+r.field, r.detail)
	if r == reasonLongUser || r == reasonLongAddr || r == reasonLongVars {
		e.Kind = notify.KindTooLarge
	}
	return e
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" {
		return e.Code
	}
	return notify.KindOf(err).String()
}
