package limit

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Outcome is what a call says about the health of whom it called.
type Outcome uint8

const (
	// Healthy: it answered, be it with a refusal of this one message.
	Healthy Outcome = iota
	// Unhealthy: 5xx, a refused connection, a timeout.
	Unhealthy
	// Misconfigured: 401 or 403. Trying on only makes it worse.
	Misconfigured
	// Neutral says nothing: a rate limit has its own remedy, the blocked account.
	Neutral
)

// OutcomeOf returns what a provider's answer says about its health.
func OutcomeOf(c notify.Class) Outcome {
	switch c {
	case notify.ClassUnavailable, notify.ClassAmbiguous:
		return Unhealthy
	case notify.ClassConfig:
		return Misconfigured
	case notify.ClassThrottled, notify.ClassBusy:
		return Neutral
	}
	return Healthy
}

// BreakerState is where a breaker stands.
type BreakerState uint8

// The states of a breaker.
const (
	Closed   BreakerState = iota // calls pass
	Open                         // calls are refused until a time
	HalfOpen                     // a few probes pass and decide
)

func (s BreakerState) String() string { return [...]string{"closed", "open", "half_open"}[s%3] }

// Reason is why a breaker is not closed.
type Reason uint8

// The reasons. ReasonConfig needs a person: it pages.
const (
	ReasonNone   Reason = iota
	ReasonErrors        // too many errors
	ReasonConfig        // the provider refused our credentials or settings
)

func (r Reason) String() string { return [...]string{"", "errors", "config"}[r%3] }

// Hold is what an operator holds a breaker to.
type Hold uint8

// The holds.
const (
	NotHeld    Hold = iota // calls decide
	HeldOpen               // no call is made, whatever they would say
	HeldClosed             // every call is made
)

// holdRecheck is when to ask again about a breaker that is held open.
const holdRecheck = 30 * time.Second

// BreakerConfig tunes a Breaker. The zero value means the defaults.
type BreakerConfig struct {
	Window        time.Duration `default:"30s"` // errors are counted over this
	MinVolume     int           `default:"20"`  // calls in the window before Ratio may open it: the first calls of a process must not open it by chance
	AllBad        int           `default:"3"`   // it also opens after so many calls in the window none of which succeeded: a retried single message opens it before its attempts are used up
	Ratio         float64       `default:"0.5"` // opens at this share of errors, 0 to 1
	OpenFor       time.Duration `default:"5s"`  // until the first probes; doubles each time they fail
	MaxOpenFor    time.Duration `default:"30s"`
	ConfigOpenFor time.Duration `default:"5m"`  // the same after a config error, without doubling
	Probes        int           `default:"3"`   // calls let through to decide, all of which must succeed
	ProbeTimeout  time.Duration `default:"30s"` // probes without an answer by then are given up and new ones let through; the healthy answers still count
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	c = setting.Fill(c)
	c.MaxOpenFor = max(c.MaxOpenFor, c.OpenFor)
	return c
}

func (c BreakerConfig) validate() error {
	switch {
	case c.Window < 0 || c.OpenFor < 0 || c.MaxOpenFor < 0 || c.ConfigOpenFor < 0 || c.ProbeTimeout < 0:
		return notify.Invalid("bad_duration", "breaker", "durations must not be negative")
	case c.MinVolume < 0 || c.AllBad < 0 || c.Probes < 0:
		return notify.Invalid("bad_count", "breaker", "min_volume, all_bad and probes must not be negative")
	case !(c.Ratio >= 0 && c.Ratio <= 1):
		return notify.Invalid("bad_ratio", "breaker.ratio", "must lie between 0 and 1")
	}
	return nil
}

// Breaker keeps calls away from a provider, or one of its accounts, that is in
// trouble.
//
//	closed ──errors or config error──> open ──time──> half-open ──all probes healthy──> closed
//	                                    ^                  └──one is not──┐
//	                                    └─────────────────────────────────┘
//
// Probes are let through in rounds of Probes calls. One that is answered with
// Neutral decided nothing: another call may take its place. A probe whose answer
// never comes (its worker died) is not waited for: after ProbeTimeout a new round
// begins, so no lost answer can keep a breaker from closing. Healthy answers count
// on in the next round, so that low traffic closes it too: Probes healthy answers
// without an unhealthy one between them, however far apart.
type Breaker struct {
	cfg BreakerConfig

	mu      sync.Mutex
	state   BreakerState // Open turns into HalfOpen with the first call allowed
	reason  Reason
	since   time.Time // when it left Closed, or closed again
	until   time.Time // Open: first probes; HalfOpen: end of the round
	openFor time.Duration
	granted int // probes of this round that were let through, and the healthy probes of earlier rounds
	healthy int // probes that succeeded since it became half-open
	window  window
	hold    Hold
	held    time.Time // since when
}

// NewBreaker returns a closed breaker; the error is a notify.KindInvalid.
func NewBreaker(now time.Time, cfg BreakerConfig) (*Breaker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newBreaker(now, cfg), nil
}

func newBreaker(now time.Time, cfg BreakerConfig) *Breaker {
	cfg = cfg.withDefaults()
	return &Breaker{cfg: cfg, since: now, window: window{width: max(cfg.Window/windowParts, 1)}}
}

// probeRecheck is when to ask again while probes are out: their answers may come
// any moment.
const probeRecheck = 100 * time.Millisecond

// Allow reports whether a call may be made now; if it may not, retryAt is when
// to ask again. In the half-open state each true is one probe: report how it
// went.
func (b *Breaker) Allow(now time.Time) (ok bool, retryAt time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.hold == HeldOpen:
		return false, now.Add(holdRecheck)
	case b.hold == HeldClosed, b.state == Closed:
		return true, time.Time{}
	}
	switch inTime := now.Before(b.until); {
	case inTime && b.state == Open:
		return false, b.until
	case inTime && b.granted == b.cfg.Probes:
		if at := now.Add(probeRecheck); at.Before(b.until) {
			return false, at
		}
		return false, b.until
	case !inTime && b.state == Open: // it was open long enough
		b.state, b.healthy = HalfOpen, 0
		b.newRound(now)
	case !inTime: // the missing probes are given up
		b.newRound(now)
	}
	b.granted++
	return true, time.Time{}
}

// newRound lets through as many probes as healthy answers are still missing. At
// least one is: with the last of them the breaker closes.
func (b *Breaker) newRound(now time.Time) {
	b.granted, b.until = b.healthy, now.Add(b.cfg.ProbeTimeout)
}

// Report counts the outcome of one call.
func (b *Breaker) Report(now time.Time, o Outcome) { b.ReportN(now, o, 1) }

// ReportN counts n calls with the same outcome, e.g. those of a claim window.
func (b *Breaker) ReportN(now time.Time, o Outcome, n int) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case o == Neutral:
		if b.state == HalfOpen {
			b.granted = max(b.granted-1, b.healthy) // never below the probes that had their say
		}
	case o == Misconfigured:
		b.open(now, ReasonConfig, b.cfg.ConfigOpenFor)
	case b.state == Open:
		// Calls from before it opened; they have had their say.
	case b.state == HalfOpen && o == Unhealthy:
		b.openFor = min(2*b.openFor, b.cfg.MaxOpenFor)
		b.open(now, ReasonErrors, b.openFor)
	case b.state == HalfOpen:
		// One call is one probe, however many messages it carried.
		if b.healthy++; b.healthy >= b.cfg.Probes {
			b.state, b.reason, b.since, b.until = Closed, ReasonNone, now, time.Time{}
			b.window.reset()
		}
	default:
		b.window.add(now, o, n)
		all, bad := b.window.sum(now)
		most := all >= b.cfg.MinVolume && float64(bad) >= b.cfg.Ratio*float64(all)
		if o == Unhealthy && (most || bad == all && bad >= b.cfg.AllBad) {
			b.open(now, ReasonErrors, b.cfg.OpenFor)
		}
	}
}

// OpenUnproven opens a closed breaker if the window holds failures and no success. It is
// called after the report of a failure that would end a message for good. AllBad
// failures may not come together when traffic is low: after a restart the window is
// empty, and a long Retry-After lets it run empty between two calls.
func (b *Breaker) OpenUnproven(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if all, bad := b.window.sum(now); b.state == Closed && bad > 0 && bad == all {
		b.open(now, ReasonErrors, b.cfg.OpenFor)
	}
}

func (b *Breaker) open(now time.Time, why Reason, d time.Duration) {
	until := now.Add(d)
	switch b.state {
	case Closed:
		b.since, b.openFor = now, b.cfg.OpenFor
	case Open: // a config error among the answers still on their way
		if until.Before(b.until) {
			until = b.until
		}
	}
	b.state, b.reason, b.until = Open, why, until
}

// Hold makes the breaker stay open or closed until it is called with NotHeld. Outcomes
// are counted meanwhile.
func (b *Breaker) Hold(since time.Time, h Hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold, b.held = h, since
}

// BreakerStatus is what an operator sees of a breaker.
type BreakerStatus struct {
	State  BreakerState
	Hold   Hold      // whose State it is, unless NotHeld
	Reason Reason    // why it is not closed
	Since  time.Time // since when it is closed, or is not, or is held
	Until  time.Time // Open and not held: when the first probes pass
}

// State returns where the breaker stands at now.
func (b *Breaker) State(now time.Time) BreakerStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := BreakerStatus{State: b.state, Hold: b.hold, Reason: b.reason, Since: b.since}
	switch {
	case b.hold == HeldOpen:
		s.State, s.Since = Open, b.held
	case b.hold == HeldClosed:
		s.State, s.Since = Closed, b.held
	case b.state == Open && now.Before(b.until):
		s.Until = b.until
	case b.state == Open:
		s.State = HalfOpen
	}
	return s
}
