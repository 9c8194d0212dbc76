// Package conserve adds up: accepted = terminal + pending, of every caller, channel
// and hour, from the stores and the log, while the server works. It reports what no
// longer fits together, and repairs what a report lists.
//
// The audit is run.go, chunk.go, schedules.go and triggers.go. A report
// (report.go) lists what the audit and find.go find, and apply.go repairs it.
//
// # Audit
//
// What was accepted are the receivers of distinct original chunks: in the sealed
// history, in the log behind it, in the spill buffer, and in the timers of
// schedules that are not due. Terminal is what the rows of a chunk say. Pending
// needs evidence, something that leads on:
//
//	log        its record, at or behind what the group of its lane has committed
//	claimed    the same, and a worker has claimed it
//	parked     a timer that holds it until a retry or the end of a wait
//	behind     the same, in a lane of strict order, behind another of its user
//	scheduled  a timer of its schedule
//	spilled    its record in the spill buffer
//
// A claim is no evidence by itself: a worker ends what it finds in the log, so a
// claim whose record was passed ends never. Whatever has neither outcome nor
// evidence is looked at again: everything that could lead on is read (timers,
// spill buffer, the unread log), then the rows once more, in several rounds with
// a wait between them that is longer than a commit takes. Work moves between
// these places, but not so often without a row that changes; what moved in a
// round gets further ones. Only what stands still without evidence is drift. So
// an audit of a server that works finds no drift that is not there, and drift
// that is younger than the last commit is found by the next audit.
//
// Memory is bounded: chunks are streamed, suspects are looked at by batches.
//
// # Repair
//
// A trigger is repaired by its own package (Triggers.Mend): here is only said which
// and why.
//
// A notification is repaired by one more record of its original envelope, in the
// topic and partition of the first. The worker meets it under the key of its
// outcome row, so the record does whatever the row has not done: a claim is
// resumed under the policy of what is ambiguous, a finished row hands on again
// what it handed on, under the same keys, and each of those records does the
// same. What has an outcome is dropped as a copy. So a receiver is called again
// only where the row of its own call is missing or unfinished.
//
// Where a record was passed and no row says what became of it, nobody knows
// whether it was called: a worker passes a record only behind its row, so the row
// was lost. It is claimed as a whole before its record is appended, and the
// policy of what is ambiguous speaks for all of it.
package conserve
