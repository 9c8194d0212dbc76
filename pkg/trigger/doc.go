// Package trigger calls a URL at a later time: triggers are registered, shown,
// changed and cancelled (Service), called when they are due (Dispatcher), and
// repaired when nothing leads to them any more (Mender; package conserve finds which).
//
//	Register ─> index row (timer) ─> state row ─> 201
//	                 │
//	          timer engine, at its time
//	                 │ ToQueue
//	            delay queue ─> Dispatcher ─> claim ─> POST ─> outcome ─> ack
//
// The state row decides everything; timers and messages only lead to it and may
// come late, twice or in vain. It is written by compare and swap alone. The
// claim, PENDING to IN_FLIGHT right before the call, is where a call becomes
// unavoidable: of a claim and a cancel one wins. See machine.go for the moves.
//
// What a crash leaves, by the name of the point (package fault):
//
//	trigger-indexed                index row alone: dropped Orphan after it fired; a repeat with the key writes one of its own
//	trigger-created                a trigger nobody was told of: fires once; a repeat with the key finds it
//	request-stored                 the same (package request)
//	trigger-reschedule-indexed     index row of a generation that never was: dropped
//	trigger-claimed                IN_FLIGHT: claimed again, next epoch, when the lease has run out
//	trigger-called-before-outcome  the same; the receiver sees the same attempt twice
//	trigger-retry-before-index     PENDING: the message comes again and writes the index row
//	trigger-parked-before-ack      the message comes again: the same row again
//	trigger-enqueued-before-ack    two messages: the second finds nothing to do
//	trigger-failed-before-dlq      FAILED with its dead letter owed: the message comes again and writes it
//	trigger-dlq-before-mark        written twice, the same record under the same key
//	trigger-outcome-before-ack     the message comes again and is dropped
//	trigger-requeued-before-mark   an index row of a generation that never was: dropped
//
// Calls leave through Egress alone, which checks every address at the moment
// of its connection. Breakers and bulkheads are per caller and per process.
package trigger
