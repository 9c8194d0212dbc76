// Package sqs implements the delay queue with Amazon SQS, or with another server that has
// the same protocol. A queue consists of three queues of SQS. NAME is for messages that are
// on time. NAME-backlog is for messages that are already late. SQS moves messages that were
// received too often to NAME-dead. Migrate creates the three queues. Start reading at
// queue.go.
//
// SQS differs from the contract of engine.Queue in these points. None of these differences causes
// harm:
//
//   - Delays and visibilities are rounded up to whole seconds. A message is never early. It
//     may be a second late.
//   - The order of messages is not guaranteed. A message may be received twice although its
//     visibility has not ended. This causes no harm because a consumer claims a row in the
//     store before it acts.
//   - A receipt becomes invalid when its visibility has ended according to the clock of
//     this process, even if SQS would still accept an acknowledgement.
//   - SQS makes a message dead only at the next receive after the message's last visibility
//     has ended.
//   - Depth returns the approximate counts of SQS, which may be a minute old. A released
//     message counts as in flight until its delay is over. Oldest is never set.
//   - SQS deletes a message that is not acknowledged within 14 days. A message that is due
//     in more than 15 minutes is in the timer store and not in a queue. If a queue loses a
//     message, the reconciler finds the message in the store.
//
// Receive first reads the backlog, then the messages that are on time. If no message is ready,
// Receive waits up to Config.Wait (default two seconds) for a message that is on time. During this
// wait it does not find a new message of the backlog, so it may return such a message later. If ctx
// ends during the wait, Receive returns, but the request continues in a goroutine. That goroutine
// releases the messages that the request receives.
package sqs
