package trigger

import (
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// Why a call was put off without being made: the causes of a deferral.
const (
	CauseEarly    = "early"    // its time has not come by this machine's clock
	CauseBulkhead = "bulkhead" // its caller has as many calls under way as it may
	CauseBreaker  = "breaker"  // its caller's breaker is open
	CauseShutdown = "shutdown" // this process is stopping
	CauseCaller   = "caller"   // its caller is disabled, has no secret, or cannot be read
	CauseLeased   = "leased"   // somebody else's claim has not run out
	CauseNewer    = "newer"    // a newer release wrote it or its row
	CauseClock    = "clock"    // this process's clock is off
	CauseOrphan   = "orphan"   // its state row, or its generation, is not there yet
)

// Events are callbacks for metrics; each may be nil. They run on the goroutines
// of the work and must not block.
type Events struct {
	// Created: n triggers of a caller are durable.
	Created func(caller string, n int)
	// Rescheduled: a trigger got another time.
	Rescheduled func(caller string)
	// Ended: a trigger became terminal; reason is its row's.
	Ended func(caller string, state engine.TriggerState, reason string)
	// Attempt: a call came to an end, or could not be made, after took.
	Attempt func(caller, class string, took time.Duration)
	// Late: a first attempt starts that long after its fire time; never below 0.
	Late func(caller string, late time.Duration)
	// Deferred: n calls were put off, which is no attempt.
	Deferred func(cause string, n int)
	// Breaker: the breaker of a caller changed.
	Breaker func(caller string, state limit.BreakerState)
	// InFlight: a caller's calls under way are now n.
	InFlight func(caller string, n int)
	// ClaimLost: a claim, or the outcome of a call, met a row that somebody else
	// had changed.
	ClaimLost func(n int)
	// Dropped: messages of triggers that are over, cancelled, rescheduled or
	// never were.
	Dropped func(cause string, n int)
	// Swapped: n state rows were swapped; with Ended it gives swaps per fire.
	Swapped func(n int)
	// DeadLettered: n records went to triggers-dlq.
	DeadLettered func(n int)
}

func (e *Events) created(caller string, n int)                { tellSome(e.Created, caller, n) }
func (e *Events) deferred(cause string, n int)                { tellSome(e.Deferred, cause, n) }
func (e *Events) dropped(cause string, n int)                 { tellSome(e.Dropped, cause, n) }
func (e *Events) swaps(n int)                                 { tellCount(e.Swapped, n) }
func (e *Events) claimLost(n int)                             { tellCount(e.ClaimLost, n) }
func (e *Events) deadLettered(n int)                          { tellCount(e.DeadLettered, n) }
func (e *Events) late(caller string, late time.Duration)      { tell(e.Late, caller, late) }
func (e *Events) breaker(caller string, s limit.BreakerState) { tell(e.Breaker, caller, s) }
func (e *Events) inFlight(caller string, n int)               { tell(e.InFlight, caller, n) }

func (e *Events) rescheduled(caller string) {
	if e.Rescheduled != nil {
		e.Rescheduled(caller)
	}
}

func (e *Events) ended(caller string, state engine.TriggerState, reason string) {
	if e.Ended != nil {
		e.Ended(caller, state, reason)
	}
}

func (e *Events) attempt(caller, class string, took time.Duration) {
	if e.Attempt != nil {
		e.Attempt(caller, class, took)
	}
}

func tell[T any](f func(string, T), who string, what T) {
	if f != nil {
		f(who, what)
	}
}

func tellSome(f func(string, int), what string, n int) {
	if f != nil && n > 0 {
		f(what, n)
	}
}

func tellCount(f func(int), n int) {
	if f != nil && n > 0 {
		f(n)
	}
}
