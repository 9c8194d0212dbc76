package trigger

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Limits of a retry schedule.
const (
	maxWaits = 20
	minWait  = time.Second
	maxWait  = 24 * time.Hour
)

// Create contains the fields of one trigger to register.
type Create struct {
	URL     string
	Payload []byte // at most MaxPayload bytes
	Form    engine.PayloadForm
	When
	// Schedule has 1 to 20 waits between attempts, 1 s to 24 h each. nil: the default schedule. A
	// trigger has one attempt more than its schedule has waits.
	Schedule []time.Duration
	// How long after the fire time a call may start, if Late is "drop" or "dead_letter". 0: no
	// limit.
	MaxLateness time.Duration
	Late        string // "fire" (also ""), "drop" or "dead_letter"
}

// When is the time of the first attempt: after Delay, or at FireAt. Exactly one of the two must be
// set. A time in the past means now.
type When struct {
	Delay  *time.Duration
	FireAt *time.Time
	// Jitter is the longest delay that is added to the time of the first attempt. The id of the
	// trigger determines the actual delay. nil: the configured jitter. Exact means no jitter.
	Jitter *time.Duration
	Exact  bool
}

// resolveFireTime returns the fire time of a trigger, including jitter, in ms since 1970. The
// parameter now is the time of the request, in ms since 1970.
func (s *Service) resolveFireTime(w *When, base notify.Base, gen uint32, now int64) (int64, error) {
	var at int64
	switch {
	case w.Delay != nil && w.FireAt != nil:
		return 0, notify.Invalid("time_twice", "fire_at", "delay_seconds and fire_at cannot be used together")
	case w.Delay == nil && w.FireAt == nil:
		return 0, notify.Invalid("required", "delay_seconds", "delay_seconds or fire_at must be set")
	case w.Delay != nil:
		if *w.Delay < 0 {
			return 0, notify.Invalid("out_of_range", "delay_seconds", "must not be negative")
		}
		if *w.Delay > s.cfg.MaxDelay {
			return 0, s.tooFar("delay_seconds")
		}
		at = ceilMillis(time.UnixMilli(now).Add(*w.Delay))
	default:
		// Compare times, because the difference to the year 9999 does not fit into a duration.
		if w.FireAt.After(time.UnixMilli(now).Add(s.cfg.MaxDelay)) {
			return 0, s.tooFar("fire_at")
		}
		at = max(ceilMillis(*w.FireAt), now)
	}
	jitter := min(s.cfg.Jitter, time.Duration(max(at-now, 0))*time.Millisecond/10)
	if w.Jitter != nil {
		if jitter = *w.Jitter; jitter < 0 || jitter > s.cfg.MaxJitter {
			return 0, notify.Invalid("out_of_range", "jitter_seconds", fmt.Sprintf("must be from 0 to %.0f seconds", s.cfg.MaxJitter.Seconds()))
		}
		if w.Exact && jitter > 0 {
			return 0, notify.Invalid("exact_with_jitter", "jitter_seconds", "exact and jitter_seconds cannot be used together")
		}
	}
	if w.Exact {
		jitter = 0
	}
	return at + jitterOf(base, gen, jitter).Milliseconds(), nil
}

func (s *Service) tooFar(field string) error {
	return notify.Invalid("too_far", field, fmt.Sprintf("must be at most %.0f days in the future", s.cfg.MaxDelay.Hours()/24))
}

// checkCreate checks a trigger of a caller. It returns the URL in canonical form.
func (s *Service) checkCreate(c *Create, owner *engine.Caller) (u *callbackURL, late engine.LatePolicy, err error) {
	if u, err = s.checkURL(c.URL, owner); err != nil {
		return nil, 0, err
	}
	if late, err = checkTerms(c); err != nil {
		return nil, 0, err
	}
	return u, late, nil
}

func checkTerms(c *Create) (late engine.LatePolicy, err error) {
	field := "payload"
	if c.Form == engine.PayloadBase64 {
		field = "payload_base64"
	}
	switch {
	case len(c.Payload) > MaxPayload:
		return 0, &notify.Error{Kind: notify.KindTooLarge, Code: "payload_too_large", Field: field, Msg: tooLarge(len(c.Payload))}
	case c.Form > engine.PayloadBase64:
		return 0, notify.Invalid("out_of_range", field, "the form of the payload must be text, JSON or base64")
	case c.Form == engine.PayloadText && !utf8.Valid(c.Payload):
		return 0, notify.Invalid("bad_utf8", field, "must be valid UTF-8")
	case c.Form == engine.PayloadJSON && !jsontext.Value(c.Payload).IsValid():
		return 0, notify.Invalid("bad_json", field, "is not valid JSON")
	case c.Schedule != nil && (len(c.Schedule) < 1 || len(c.Schedule) > maxWaits):
		return 0, notify.Invalid("out_of_range", "retry_schedule_seconds", fmt.Sprintf("must have 1 to %d waits", maxWaits))
	case c.MaxLateness < 0:
		return 0, notify.Invalid("out_of_range", "max_lateness_seconds", "must not be negative")
	}
	for i, w := range c.Schedule {
		if w < minWait || w > maxWait {
			return 0, notify.Invalid("out_of_range", fmt.Sprintf("retry_schedule_seconds[%d]", i), "must be from 1 second to 24 hours")
		}
	}
	switch c.Late {
	case "", "fire":
		late = engine.LateFire
	case "drop":
		late = engine.LateDrop
	case "dead_letter":
		late = engine.LateDeadLetter
	default:
		return 0, notify.Invalid("unknown_policy", "late_policy", "must be \"fire\", \"drop\" or \"dead_letter\"")
	}
	if late != engine.LateFire && c.MaxLateness == 0 {
		return 0, notify.Invalid("required", "max_lateness_seconds", "must be above 0 if late_policy is "+strconv.Quote(c.Late))
	}
	return late, nil
}
