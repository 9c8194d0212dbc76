package trigger

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// breakerConfig returns the breaker configuration for callers. The breaker opens for 60 s if more
// than half of at least MinVolume calls in 30 s fail. Then 3 probes decide whether it closes.
func breakerConfig(c limit.BreakerConfig, timeout time.Duration) limit.BreakerConfig {
	c.MinVolume = cmp.Or(c.MinVolume, 10)
	c.AllBad = cmp.Or(c.AllBad, c.MinVolume) // turns AllBad off; it is only useful for providers
	c.Ratio = cmp.Or(c.Ratio, math.Nextafter(0.5, 1))
	c.OpenFor = cmp.Or(c.OpenFor, time.Minute)
	c.MaxOpenFor = cmp.Or(c.MaxOpenFor, c.OpenFor) // no doubling: the retry schedule of the trigger already has growing waits
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, timeout+5*time.Second)
	return c
}

// healthOf returns what a call of this class says about the health of its receiver.
func healthOf(class string) limit.Outcome {
	switch class {
	case ClassOK, ClassPermanent, ClassRejected, ClassRedirect:
		return limit.Healthy // the receiver answered
	case ClassThrottled, ClassDenied:
		return limit.Neutral // a rate limit, or nothing was sent
	}
	return limit.Unhealthy
}

// Circuit is the state of a caller's breaker and of its limit of calls in progress, in this
// process.
type Circuit struct {
	Caller string
	limit.BreakerStatus
	InFlight int // calls in progress
	Limit    int // calls that may be in progress at the same time
	Queued   int // messages in memory that wait for their call
}

func (l *lane) circuit(now time.Time) Circuit {
	return Circuit{Caller: l.caller, BreakerStatus: l.breaker.State(now), InFlight: l.inFlight, Limit: l.limit, Queued: l.waiting() + len(l.lines[lineOnTime].unread) + len(l.lines[lineBacklog].unread)}
}

// Circuits returns the circuits of callers, sorted by the name of the caller. It includes every
// caller whose triggers this process has dispatched, and every caller for which HoldCircuit or
// ResetCircuit was called.
func (d *Dispatcher) Circuits() []Circuit {
	now := time.Now()
	d.lanes.mu.Lock()
	defer d.lanes.mu.Unlock()
	out := make([]Circuit, 0, len(d.lanes.byCaller))
	for _, l := range d.lanes.byCaller {
		out = append(out, l.circuit(now))
	}
	slices.SortFunc(out, func(a, b Circuit) int { return cmp.Compare(a.Caller, b.Caller) })
	return out
}

// HoldCircuit keeps the breaker of a caller open or closed until ResetCircuit is called. While the
// breaker is held open, messages wait without using up attempts. To end a hold, call ResetCircuit:
// HoldCircuit returns notify.KindInvalid for limit.NotHeld.
func (d *Dispatcher) HoldCircuit(caller string, hold limit.Hold) (Circuit, error) {
	if hold != limit.HeldOpen && hold != limit.HeldClosed {
		return Circuit{}, notify.Invalid("unknown_state", "state", "must be \"open\" or \"closed\"")
	}
	return d.changeCircuit(caller, func(l *lane, now time.Time) { l.breaker.Hold(now, hold) }), nil
}

// ResetCircuit ends a hold. The breaker is then closed, and its counts are 0.
func (d *Dispatcher) ResetCircuit(caller string) Circuit {
	return d.changeCircuit(caller, func(l *lane, now time.Time) { l.resetBreaker(now, d.cfg.Breaker) })
}

func (d *Dispatcher) changeCircuit(caller string, change func(l *lane, now time.Time)) Circuit {
	now := time.Now()
	d.lanes.mu.Lock()
	defer d.lanes.mu.Unlock()
	l := d.lanes.laneOfLocked(caller)
	change(l, now)
	after := l.circuit(now)
	d.launch(d.lanes.pumpLocked(l, now))
	return after
}
