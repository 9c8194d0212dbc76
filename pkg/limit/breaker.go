package limit

import (
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Outcome is what the result of a call shows about the health of the provider.
type Outcome uint8

const (
	// Healthy: the provider answered, even if it refused this message.
	Healthy Outcome = iota
	// Unhealthy: 5xx, a refused connection, a timeout.
	Unhealthy
	// Misconfigured: 401 or 403. More calls only make the situation worse.
	Misconfigured
	// Neutral: a rate limit of the provider or of notifyd, which shows nothing about health.
	Neutral
)

// OutcomeOf returns the outcome for a class of the provider's answer.
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
	HalfOpen                     // a few probes pass, and their outcomes decide
)

func (s BreakerState) String() string { return [...]string{"closed", "open", "half_open"}[s%3] }

// Reason is why a breaker is not closed.
type Reason uint8

// The reasons. ReasonConfig needs an operator, because only a person can correct the credentials or
// settings.
const (
	ReasonNone   Reason = iota
	ReasonErrors        // too many errors
	ReasonConfig        // the provider refused notifyd's credentials or settings
)

func (r Reason) String() string { return [...]string{"", "errors", "config"}[r%3] }

// Hold is the state in which an operator keeps a breaker.
type Hold uint8

// The values of Hold.
const (
	NotHeld    Hold = iota // the outcomes of calls decide the state
	HeldOpen               // no call is made, whatever the outcomes
	HeldClosed             // every call is made
)

// holdRecheck is how soon callers should call Allow again while the breaker is held open.
const holdRecheck = 30 * time.Second

// BreakerConfig tunes a Breaker. The zero value means the defaults.
type BreakerConfig struct {
	Window time.Duration `default:"30s"` // period over which errors are counted
	// MinVolume is how many calls the window must contain before the share of errors (Ratio) may
	// open the breaker. Without MinVolume the first calls of a process could open the breaker by
	// chance.
	MinVolume int `default:"20"`
	// If the window contains no success, the breaker also opens at AllBad failures. So one
	// message that is retried opens the breaker before its attempts are used up.
	AllBad        int           `default:"3"`
	Ratio         float64       `default:"0.5"` // the breaker opens at this share of errors, 0 to 1
	OpenFor       time.Duration `default:"5s"`  // time until the first probes; doubles each time the probes fail
	MaxOpenFor    time.Duration `default:"30s"`
	ConfigOpenFor time.Duration `default:"5m"` // OpenFor after a config error; does not double
	Probes        int           `default:"3"`  // calls let through in the half-open state; all must be healthy
	// ProbeTimeout is how long the breaker waits for the answers of probes before it allows new
	// probes. Healthy answers that already arrived still count.
	ProbeTimeout time.Duration `default:"30s"`
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	c = setting.Fill(c)
	c.MaxOpenFor = max(c.MaxOpenFor, c.OpenFor)
	return c
}

func (c BreakerConfig) validate() error {
	switch {
	case c.Window < 0 || c.OpenFor < 0 || c.MaxOpenFor < 0 || c.ConfigOpenFor < 0 || c.ProbeTimeout < 0:
		return notify.Invalid("bad_duration", "breaker", "window, open_for, max_open_for, config_open_for and probe_timeout must not be negative")
	case c.MinVolume < 0 || c.AllBad < 0 || c.Probes < 0:
		return notify.Invalid("bad_count", "breaker", "min_volume, all_bad and probes must not be negative")
	case !(c.Ratio >= 0 && c.Ratio <= 1):
		return notify.Invalid("bad_ratio", "breaker.ratio", "must lie between 0 and 1")
	}
	return nil
}

// Breaker is a circuit breaker. It stops calls to a provider, or to one of its accounts, while the
// provider or the account is in trouble.
//
//	closed ──errors or config error──> open ──time──> half-open ──all probes healthy──> closed
//	                                    ^                  └──one is not──┐
//	                                    └─────────────────────────────────┘
//
// Probes pass in rounds. The first round has BreakerConfig.Probes calls, and each later round has
// one call for each healthy answer that is still missing. A probe with the outcome Neutral decides
// nothing, and another call may replace it. If a probe is never answered (its worker died), a new
// round begins after ProbeTimeout. So a lost answer cannot keep a breaker open. Healthy answers
// also count in the next round, so that the breaker closes even with low traffic. To close, a
// breaker needs as many healthy answers as BreakerConfig.Probes says, without an unhealthy answer
// between them, in any number of rounds.
type Breaker struct {
	cfg BreakerConfig

	mu        sync.Mutex
	state     BreakerState // Open becomes HalfOpen when the first call is allowed
	reason    Reason
	since     time.Time // when the breaker last left Closed, or last closed
	until     time.Time // Open: when the first probes pass; HalfOpen: end of the round
	openFor   time.Duration
	granted   int // probes of this round that were let through, plus the healthy probes of earlier rounds
	healthy   int // probes that succeeded since the breaker became half-open
	window    outcomeWindow
	hold      Hold
	heldSince time.Time
}

// NewBreaker returns a closed breaker. It returns notify.KindInvalid if cfg is not valid.
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

// probeRecheck is how soon callers should call Allow again while probes are not answered. The
// answers may arrive at any moment.
const probeRecheck = 100 * time.Millisecond

// Allow reports whether a call may be made now. If the result ok is false, retryAt is the time at
// which to call Allow again. In the half-open state each call that Allow permits is a probe, and
// the caller must report its outcome.
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
	case !inTime && b.state == Open: // the time to stay open has passed
		b.state, b.healthy = HalfOpen, 0
		b.newRound(now)
	case !inTime: // stop waiting for the probes without an answer
		b.newRound(now)
	}
	b.granted++
	return true, time.Time{}
}

// newRound begins a round of probes. The breaker needs cfg.Probes healthy answers to close. The
// round allows one probe for each answer that is still missing, which is at least one.
func (b *Breaker) newRound(now time.Time) {
	b.granted, b.until = b.healthy, now.Add(b.cfg.ProbeTimeout)
}

// Report counts the outcome of one call.
func (b *Breaker) Report(now time.Time, o Outcome) { b.ReportN(now, o, 1) }

// ReportN counts the same outcome n times, for example once for each message of one provider
// call.
func (b *Breaker) ReportN(now time.Time, o Outcome, n int) {
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case o == Neutral:
		if b.state == HalfOpen {
			b.granted = max(b.granted-1, b.healthy) // keep all healthy probes counted
		}
	case o == Misconfigured:
		b.open(now, ReasonConfig, b.cfg.ConfigOpenFor)
	case b.state == Open:
		// This answer belongs to a call made before the breaker opened. It changes nothing.
	case b.state == HalfOpen && o == Unhealthy:
		b.openFor = min(2*b.openFor, b.cfg.MaxOpenFor)
		b.open(now, ReasonErrors, b.openFor)
	case b.state == HalfOpen:
		// One call is one probe, however many messages the call carried.
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

// OpenWithoutSuccess opens a closed breaker if the window contains failures and no success. A
// worker calls it after it has reported a failure that would end a message for good. Without this
// call, the breaker might never see AllBad failures in one window while the traffic is low. For
// example, after a restart the window is empty, and during a long Retry-After the failures drop
// out of the window.
func (b *Breaker) OpenWithoutSuccess(now time.Time) {
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
	case Open: // a config error reported while the breaker is already open
		if until.Before(b.until) {
			until = b.until
		}
	}
	b.state, b.reason, b.until = Open, why, until
}

// Hold keeps the breaker open or closed until Hold is called with NotHeld. In the meantime the
// breaker still counts outcomes.
func (b *Breaker) Hold(since time.Time, h Hold) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold, b.heldSince = h, since
}

// BreakerStatus is the state of a breaker as operators see it.
type BreakerStatus struct {
	State  BreakerState
	Hold   Hold      // NotHeld, or the state in which an operator keeps the breaker
	Reason Reason    // why the breaker is not closed
	Since  time.Time // when the breaker closed, left Closed, or was held
	Until  time.Time // Open and not held: when the first probes pass
}

// State returns the breaker's state at the time now.
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
