// Package trigger calls a URL at a later time. Service registers, shows, changes and cancels
// triggers. Dispatcher calls them when they are due. Mender repairs triggers to which no timer and
// no message leads any more. Package conserve finds such triggers.
//
//	Register ─> index row (timer) ─> state row ─> 201
//	                 │
//	          timer engine, at its time
//	                 │ ToQueue
//	            delay queue ─> Dispatcher ─> claim ─> POST ─> outcome ─> ack
//
// The state row decides everything. It is only written by compare and swap. Timers and messages
// only lead to the row; they may arrive late, twice or for nothing. A claim changes the row from
// PENDING to IN_FLIGHT right before the call. After the claim the call cannot be stopped. If a
// claim and a cancel happen at the same time, exactly one of them wins. The diagram in machine.go
// shows all state changes.
//
// What a crash leaves in the stores, by the name of the point of the crash (internal/killpoint):
//
//	trigger-indexed                an index row without a state row: its message is dropped after the time Orphan; a repeat with the same key writes its own index row
//	trigger-created                a trigger whose caller got no answer: it fires once; a repeat with the same key finds it
//	request-stored                 the same (package request)
//	trigger-reschedule-indexed     an index row of a generation that was never stored: its message is dropped
//	trigger-claimed                an IN_FLIGHT row: claimed again, with the next epoch, when the lease has expired
//	trigger-called-before-outcome  the same; the receiver gets the same attempt twice
//	trigger-retry-before-index     a PENDING row: the message is received again and writes the index row
//	trigger-parked-before-ack      the message is received again and writes the same index row again
//	trigger-enqueued-before-ack    two messages: the second finds nothing to do
//	trigger-failed-before-dlq      a FAILED row without its dead letter: the message is received again and writes the dead letter
//	trigger-dlq-before-mark        the dead letter is written twice, as the same record with the same key
//	trigger-outcome-before-ack     the message is received again and dropped
//	trigger-requeued-before-mark   an index row of a generation that was never stored: its message is dropped
//
// All calls are made through Egress, which checks every address when it connects. Each caller has
// its own breaker and its own limit of calls, in each process.
//
// Start reading at Service.Register in register.go and Dispatcher.Run in dispatcher.go. steps.go
// lists the steps of a message, and lanes.go decides which call is made next.
package trigger
