package trigger

import (
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/limit"
)

// Causes of a deferral: why a message was put off without a call.
const (
	CauseEarly    = "early"    // by this machine's clock the trigger is not due
	CauseBulkhead = "bulkhead" // the caller has reached its limit of calls in progress
	CauseBreaker  = "breaker"  // the breaker of the caller is open
	CauseShutdown = "shutdown" // this process is stopping
	CauseCaller   = "caller"   // the caller is disabled, has no secret, or cannot be read
	CauseLeased   = "leased"   // another claim has not expired
	CauseNewer    = "newer"    // a newer release wrote the message or its row
	CauseClock    = "clock"    // the clock of this process is wrong
	CauseOrphan   = "orphan"   // the state row, or the generation of the message, is not stored yet
)

// Events are callbacks for metrics; each may be nil. The goroutines that do the work call them, so
// they must not block.
type Events struct {
	// Created: n triggers of a caller are durable.
	Created func(caller string, n int)
	// Rescheduled: a trigger got another fire time.
	Rescheduled func(caller string)
	// Ended: a trigger reached a final state. reason is the reason in its row.
	Ended func(caller string, state engine.TriggerState, reason string)
	// Attempt: a call ended, or could not be made. duration is how long the attempt took.
	Attempt func(caller, class string, duration time.Duration)
	// Late: a first attempt starts. lateness is the time since the fire time, never below 0.
	Late func(caller string, lateness time.Duration)
	// Deferred: n messages were put off. A deferral does not count as an attempt.
	Deferred func(cause string, n int)
	// Breaker: the state of a caller's breaker changed.
	Breaker func(caller string, state limit.BreakerState)
	// InFlight: a caller now has n calls in progress.
	InFlight func(caller string, n int)
	// ClaimLost: n claims or outcomes could not be written, because another process or a request had
	// changed the row.
	ClaimLost func(n int)
	// Dropped: n messages were dropped. cause is the final state of their triggers, or "rescheduled",
	// "orphan" (the row, or the message's generation, was never stored), "copy" (another message of
	// the trigger is being processed) or "unreadable" (the message goes back to the queue, which
	// moves it to its dead messages).
	Dropped func(cause string, n int)
	// Swapped: n state rows were swapped. The sum of n, divided by the number of calls of Ended, is
	// the number of swaps per trigger.
	Swapped func(n int)
	// DeadLettered: n records were appended to triggers-dlq.
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
