package trigger

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Pin is an operator's hold on a breaker.
type Pin uint8

// The pins.
const (
	Unpinned     Pin = iota // calls decide
	PinnedOpen              // no call is made, whatever they would say
	PinnedClosed            // every call is made
)

// breakerConfig is the breaker of a caller: more than half of at least MinVolume
// calls in 30 s failing opens it for 60 s, then 3 probes decide.
func breakerConfig(c limit.BreakerConfig, timeout time.Duration) limit.BreakerConfig {
	c.MinVolume = cmp.Or(c.MinVolume, 10)
	c.AllBad = cmp.Or(c.AllBad, c.MinVolume) // that rule is for providers
	c.Ratio = cmp.Or(c.Ratio, math.Nextafter(0.5, 1))
	c.OpenFor = cmp.Or(c.OpenFor, time.Minute)
	c.MaxOpenFor = cmp.Or(c.MaxOpenFor, c.OpenFor) // the trigger's own schedule backs off
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, timeout+5*time.Second)
	return c
}

// health says what a call tells of its receiver.
func health(class string) limit.Outcome {
	switch class {
	case ClassOK, ClassPermanent, ClassRejected, ClassRedirect:
		return limit.Healthy // it answers
	case ClassThrottled, ClassDenied:
		return limit.Neutral // a limit, or nothing was sent
	}
	return limit.Unhealthy
}

// circuit is a breaker that an operator may pin. The Dispatcher's lock guards
// it.
type circuit struct {
	cfg     limit.BreakerConfig
	breaker *limit.Breaker
	pin     Pin
	since   time.Time // of the pin
	// ramp bounds the calls at a time after the breaker closed: as many as
	// succeed are added, so that a receiver that has just come back does not
	// get everything that waited for it at once.
	ramp int
	last limit.BreakerState
}

func newCircuit(now time.Time, cfg limit.BreakerConfig) (*circuit, error) {
	b, err := limit.NewBreaker(now, cfg)
	return &circuit{cfg: cfg, breaker: b, ramp: math.MaxInt, last: limit.Closed}, err
}

// pinnedRecheck is when messages held back by a pin are looked at again.
const pinnedRecheck = 30 * time.Second

// allow reports whether a call may be made, and if not when to ask again.
func (c *circuit) allow(now time.Time) (ok bool, retryAt time.Time) {
	switch c.pin {
	case PinnedOpen:
		return false, now.Add(pinnedRecheck)
	case PinnedClosed:
		return true, time.Time{}
	}
	return c.breaker.Allow(now)
}

// report counts a call.
func (c *circuit) report(now time.Time, o limit.Outcome) {
	was := c.breaker.State(now).State
	c.breaker.Report(now, o)
	switch {
	case was != limit.Closed && c.breaker.State(now).State == limit.Closed:
		c.ramp = 1
	case o == limit.Healthy && c.ramp < math.MaxInt:
		c.ramp++
	}
}

// moved reports whether the breaker's state is another one than when it was
// last asked.
func (c *circuit) moved(now time.Time) (limit.BreakerState, bool) {
	is := c.breaker.State(now).State
	was := c.last
	c.last = is
	return is, is != was
}

// Circuit is what an operator sees of a caller's breaker and bulkhead, in the
// process that is asked.
type Circuit struct {
	Caller   string
	State    limit.BreakerState
	Pin      Pin
	Since    time.Time // since when it is in that state, or pinned
	Until    time.Time // open: when the first probes pass
	InFlight int       // calls under way
	Limit    int       // calls at a time
	Queued   int       // messages that wait in memory for a place
}

func (l *lane) circuit(now time.Time) Circuit {
	s := l.brk.breaker.State(now)
	c := Circuit{Caller: l.caller, State: s.State, Pin: l.brk.pin, Since: s.Since, Until: s.Until, InFlight: l.inFlight, Limit: l.limit, Queued: l.waiting()}
	switch c.Pin {
	case PinnedOpen:
		c.State, c.Since, c.Until = limit.Open, l.brk.since, time.Time{}
	case PinnedClosed:
		c.State, c.Since, c.Until = limit.Closed, l.brk.since, time.Time{}
	}
	return c
}

// Circuits returns every caller this process has made calls for, by name.
func (d *Dispatcher) Circuits() []Circuit {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Circuit, 0, len(d.lanes))
	for _, l := range d.lanes {
		out = append(out, l.circuit(now))
	}
	slices.SortFunc(out, func(a, b Circuit) int { return cmp.Compare(a.Caller, b.Caller) })
	return out
}

// PinCircuit holds the breaker of a caller open or closed until it is reset.
// What waits for an open one keeps its attempts. notify.KindInvalid for
// Unpinned: that is ResetCircuit.
func (d *Dispatcher) PinCircuit(caller string, pin Pin) (Circuit, error) {
	if pin != PinnedOpen && pin != PinnedClosed {
		return Circuit{}, notify.Invalid("unknown_state", "state", "open or closed")
	}
	return d.setCircuit(caller, pin), nil
}

// ResetCircuit takes a pin away and closes the breaker with nothing counted.
func (d *Dispatcher) ResetCircuit(caller string) Circuit { return d.setCircuit(caller, Unpinned) }

func (d *Dispatcher) setCircuit(caller string, pin Pin) Circuit {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.laneLocked(caller)
	before := l.circuit(now).State
	if pin == Unpinned {
		l.brk, _ = newCircuit(now, l.brk.cfg) // the settings were checked
	}
	l.brk.pin, l.brk.since = pin, now
	after := l.circuit(now)
	if after.State != before {
		d.cfg.Events.breaker(caller, after.State)
	}
	d.pumpLocked(l, now)
	return after
}
