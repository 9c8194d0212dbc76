package limit

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Outcome is what a call says about the health of the provider.
type Outcome uint8

const (
	// Healthy: the provider answered, even if it refused this one message.
	Healthy Outcome = iota
	// Unhealthy: 5xx, a refused connection, a timeout.
	Unhealthy
	// Misconfigured: 401 or 403. More calls only make it worse.
	Misconfigured
	// Neutral: a rate limit, which says nothing about health. Blocking the account handles it.
	Neutral
)

// OutcomeOf returns what the class of a provider's answer says about its health.
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

// BreakerState is the state of a circuit breaker.
type BreakerState uint8

// The states of a breaker.
const (
	Closed   BreakerState = iota // calls pass
	Open                         // calls are refused until BreakerStatus.Until
	HalfOpen                     // a few probes pass and decide
)

func (s BreakerState) String() string { return [...]string{"closed", "open", "half_open"}[s%3] }

// Reason is why a breaker is not closed.
type Reason uint8

// The reasons. ReasonConfig needs a person to act, so it pages.
const (
	ReasonNone   Reason = iota
	ReasonErrors        // too many errors
	ReasonConfig        // the provider refused notifyd's credentials or settings
)

func (r Reason) String() string { return [...]string{"", "errors", "config"}[r%3] }

// Hold is the state in which an operator holds a breaker.
type Hold uint8

// The holds.
const (
	NotHeld    Hold = iota // outcomes of calls decide
	HeldOpen               // no call is made, whatever the outcomes
	HeldClosed             // every call is made
)

// holdRecheck is how soon Allow tells callers to ask again while the breaker is held open.
const holdRecheck = 30 * time.Second

// BreakerConfig tunes a Breaker. The zero value means the defaults.
type BreakerConfig struct {
	Window        time.Duration `default:"30s"` // period over which errors are counted
	MinVolume     int           `default:"20"`  // calls in the window before Ratio may open it, so that the first calls of a process do not open it by chance
	AllBad        int           `default:"3"`   // it also opens after this many calls in the window if none succeeded, so that a single message that is retried opens it before its attempts are used up
	Ratio         float64       `default:"0.5"` // opens at this share of errors, 0 to 1
	OpenFor       time.Duration `default:"5s"`  // time until the first probes; doubles each time they fail
	MaxOpenFor    time.Duration `default:"30s"`
	ConfigOpenFor time.Duration `default:"5m"`  // the same after a config error; does not double
	Probes        int           `default:"3"`   // calls let through to decide; all must succeed
	ProbeTimeout  time.Duration `default:"30s"` // after this, unanswered probes are given up and new ones let through; healthy answers still count
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

// Breaker is a circuit breaker: it keeps calls away from a provider, or from one of its accounts,
// that is in trouble.
//
//	closed ──errors or config error──> open ──time──> half-open ──all probes healthy──> closed
//	                                    ^                  └──one is not──┐
//	                                    └─────────────────────────────────┘
//
// Probes pass in rounds of Probes calls. A probe answered with Neutral decides nothing: another
// call may take its place. If the answer to a probe never comes (its worker died), a new round
// begins after ProbeTimeout, so a lost answer cannot keep a breaker open. Healthy answers carry
// over to the next round, so that low traffic closes the breaker too: it needs Probes healthy
// answers without an unhealthy one between them, however far apart.
type Breaker struct {
	cfg BreakerConfig

	mu        sync.Mutex
	state     BreakerState // Open becomes HalfOpen with the first call that is allowed
	reason    Reason
	since     time.Time // when it left Closed, or closed again
	until     time.Time // Open: when the first probes pass; HalfOpen: end of the round
	openFor   time.Duration
	granted   int // probes of this round that were let through, plus the healthy probes of earlier rounds
	healthy   int // probes that succeeded since it became half-open
	window    outcomeWindow
	hold      Hold
	heldSince time.Time
}

// NewBreaker returns a closed breaker. Its errors are of notify.KindInvalid.
func NewBreaker(now time.Time, cfg BreakerConfig) (*Breaker, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newBreaker(now, cfg), nil
}

func newBreaker(now time.Time, cfg BreakerConfig) *Breaker {
	cfg = cfg.withDefaults()
	return &Breaker{cfg: cfg, since: now, window: outcomeWindow{width: max(cfg.Window/windowParts, 1)}}
}

// probeRecheck is how soon Allow tells callers to ask again while probes are out: their answers may
// come at any moment.
const probeRecheck = 100 * time.Millisecond

// Allow reports whether a call may be made now. If not, retryAt is when to ask again. In the
// half-open state each true is one probe, whose outcome the caller must report.
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
	case !inTime: // give up the missing probes
		b.newRound(now)
	}
	b.granted++
	return true, time.Time{}
}

// newRound lets through as many probes as healthy answers are still missing. That is at least one:
// the breaker closes when none is missing.
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
			b.granted = max(b.granted-1, b.healthy) // never below the number of healthy probes
		}
	case o == Misconfigured:
		b.open(now, ReasonConfig, b.cfg.ConfigOpenFor)
	case b.state == Open:
		// An answer to a call made before the breaker opened. It changes nothing.
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
		b.window.addOutcomes(now, o, n)
		all, bad := b.window.totals(now)
		most := all >= b.cfg.MinVolume && float64(bad) >= b.cfg.Ratio*float64(all)
		if o == Unhealthy && (most || bad == all && bad >= b.cfg.AllBad) {
			b.open(now, ReasonErrors, b.cfg.OpenFor)
		}
	}
}

// OpenUnproven opens a closed breaker if the window holds failures and no success. The worker calls
// it after it has reported a failure that would end a message for good. Low traffic may never bring
// AllBad failures together: after a restart the window is empty, and a long Retry-After lets it run
// empty between two calls.
func (b *Breaker) OpenUnproven(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if all, bad := b.window.totals(now); b.state == Closed && bad > 0 && bad == all {
		b.open(now, ReasonErrors, b.cfg.OpenFor)
	}
}

func (b *Breaker) open(now time.Time, why Reason, d time.Duration) {
	until := now.Add(d)
	switch b.state {
	case Closed:
		b.since, b.openFor = now, b.cfg.OpenFor
	case Open: // a config error among answers to earlier calls
		if until.Before(b.until) {
			until = b.until
		}
	}
	b.state, b.reason, b.until = Open, why, until
}

// Hold keeps the breaker open or closed until Hold is called with NotHeld. Outcomes are still
// counted in the meantime.
func (b *Breaker) Hold(since time.Time, h Hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold, b.heldSince = h, since
}

// BreakerStatus is what an operator sees of a breaker.
type BreakerStatus struct {
	State  BreakerState
	Hold   Hold      // what an operator holds State to, unless NotHeld
	Reason Reason    // why it is not closed
	Since  time.Time // when it closed, left Closed, or was held
	Until  time.Time // Open and not held: when the first probes pass
}

// State returns the breaker's state at now.
func (b *Breaker) State(now time.Time) BreakerStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := BreakerStatus{State: b.state, Hold: b.hold, Reason: b.reason, Since: b.since}
	switch {
	case b.hold == HeldOpen:
		s.State, s.Since = Open, b.heldSince
	case b.hold == HeldClosed:
		s.State, s.Since = Closed, b.heldSince
	case b.state == Open && now.Before(b.until):
		s.Until = b.until
	case b.state == Open:
		s.State = HalfOpen
	}
	return s
}
