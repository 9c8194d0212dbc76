// Package sqs serves the delay queue from Amazon SQS, or from a server that speaks
// its protocol. A queue is three of SQS: NAME for what is on time, NAME-backlog for
// what is late anyway, and NAME-dead, where SQS puts what was received too often.
// Migrate makes them.
//
// What SQS does otherwise than the contract says, and why it does no harm:
//
//   - Delays and visibilities are whole seconds, rounded up. A message is never
//     early; it may be a second late.
//   - Order is SQS's best effort, and a message may be received twice although its
//     visibility has not ended. Consumers claim a row before they act.
//   - A receipt is over when its visibility has ended here, by this process's own
//     clock. SQS itself may still take an acknowledgement then.
//   - Dead is a message once SQS notices, at the next receive after its last
//     visibility. Dead lists what one look finds, and hides it for a second.
//   - Depth is SQS's own approximation, up to a minute old. A released message
//     counts as in flight until its delay has passed; Oldest is unknown.
//   - A message that nobody acknowledges within 14 days is gone. What is due in more
//     than 15 minutes is never here but in the timer store, and whatever a queue
//     loses the reconciler finds there.
//
// Receive asks the backlog for what it has, then waits at the queue of what is on
// time, two seconds at a time: the backlog of an idle queue is found so much later.
// A wait that its caller left goes on behind it, and what it brings is given back.
package sqs
