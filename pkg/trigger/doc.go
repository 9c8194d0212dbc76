// Package trigger calls a URL at a later time. Service registers, shows, changes and cancels
// triggers. Dispatcher calls them when they are due. Mender repairs triggers to which no timer or
// message leads any more; package conserve finds them.
//
//	Register ─> index row (timer) ─> state row ─> 201
//	                 │
//	          timer engine, at its time
//	                 │ ToQueue
//	            delay queue ─> Dispatcher ─> claim ─> POST ─> outcome ─> ack
//
// The state row decides everything, and is only written by compare and swap. Timers and messages
// only lead to it, and may come late, twice or in vain. The claim, PENDING to IN_FLIGHT right
// before the call, is the point after which the call cannot be stopped: of a claim and a cancel
// exactly one wins. machine.go has all moves.
//
// What a crash leaves, by the name of the point (internal/killpoint):
//
//	trigger-indexed                index row alone: dropped Orphan after it fired; a repeat with the key writes one of its own
//	trigger-created                a trigger whose caller got no answer: fires once; a repeat with the key finds it
//	request-stored                 the same (package request)
//	trigger-reschedule-indexed     index row of a generation that was never stored: dropped
//	trigger-claimed                IN_FLIGHT: claimed again, next epoch, when the lease has run out
//	trigger-called-before-outcome  the same; the receiver sees the same attempt twice
//	trigger-retry-before-index     PENDING: the message comes again and writes the index row
//	trigger-parked-before-ack      the message comes again: the same row again
//	trigger-enqueued-before-ack    two messages: the second finds nothing to do
//	trigger-failed-before-dlq      FAILED with its dead letter not written: the message comes again and writes it
//	trigger-dlq-before-mark        written twice, the same record under the same key
//	trigger-outcome-before-ack     the message comes again and is dropped
//	trigger-requeued-before-mark   an index row of a generation that was never stored: dropped
//
// All calls leave through Egress, which checks every address at the moment of its connection.
// Breakers and bulkheads are per caller and per process.
//
// Start reading at Service.Register in register.go and Dispatcher.Run in dispatcher.go; steps.go
// lists the steps of a message, and lanes.go decides which call comes next.
package trigger
