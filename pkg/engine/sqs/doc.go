// Package sqs implements the delay queue with Amazon SQS, or with another server of its
// protocol. A queue consists of three queues of SQS: NAME for messages on time,
// NAME-backlog for messages that are late already, and NAME-dead, to which SQS moves
// messages that were received too often. Migrate creates them. Start reading at queue.go.
//
// SQS differs from the contract in these points. None does harm:
//
//   - Delays and visibilities are whole seconds, rounded up. A message is never early. It
//     may be a second late.
//   - The order is best effort. A message may be received twice although its visibility has
//     not ended. Consumers claim a row before they act.
//   - A receipt ends when its visibility has ended by the clock of this process. SQS itself
//     might still accept an acknowledgement then.
//   - A message becomes dead when SQS notices it, at the next receive after its last
//     visibility.
//   - Depth is the approximation of SQS, up to a minute old. A released message counts as in
//     flight until its delay is over. Oldest is unknown.
//   - SQS deletes a message that is not acknowledged within 14 days. Messages that are due
//     in more than 15 minutes are not in a queue but in the timer store, and the reconciler
//     finds every message there that a queue loses.
//
// Receive first reads the backlog. If both lanes are empty, it waits at the queue of
// messages on time for Config.Wait (two seconds). So it finds a new message of the backlog
// up to two seconds late. If the caller leaves during the wait, the request goes on in a
// goroutine, and its messages are released.
package sqs
