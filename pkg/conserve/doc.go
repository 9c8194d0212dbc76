// Package conserve audits that accepted = terminal + pending holds for every caller, channel
// and hour. It reads the stores and the log while the server works. It reports receivers and
// triggers for which the sum does not hold (drift), and repairs what a report lists.
//
// Start reading at Auditor.Run. The audit is in run.go, chunk.go, schedules.go and
// triggers.go. A report (report.go) lists what the audit and find.go find, and apply.go
// repairs it.
//
// # Audit
//
// Accepted counts the receivers of distinct original chunks. It reads them from the sealed
// history, from the log after it, from the spill buffer, and from the timers of schedules
// that are not due. A receiver is terminal if the rows of its chunk say so. A receiver is
// pending if there is evidence, that is a record or a timer by which work on it goes on:
//
//	log        its record, which the group of its lane has not committed past
//	claimed    the same, and a worker has claimed it
//	parked     a timer that holds it until a retry or the end of a wait
//	behind     the same, in a lane of strict order, behind another receiver of its user
//	scheduled  a timer of its schedule
//	spilled    its record in the spill buffer
//
// A claim alone is no evidence. A worker finishes a claim when it reads the record again, so
// a claim never ends once the group has committed past its record.
//
// A receiver with neither outcome nor evidence is a suspect, and the audit looks at it
// again. In each of several rounds it reads all evidence there can be (timers, spill buffer,
// the log that is not committed) and then the rows once more. Between two rounds it waits
// for longer than a commit takes. Work moves between these places, but it does not move for
// long without changing a row; a suspect whose rows changed in a round gets further rounds.
// Only a suspect that stands still without evidence is drift. So the audit of a working
// server reports no false drift. It may miss drift that is younger than the last commit; the
// next audit finds that.
//
// Memory is bounded: chunks are streamed, and suspects are looked at in batches.
//
// # Repair
//
// This package decides which triggers need repair and why. Package trigger repairs them
// (Triggers.Mend).
//
// A notification is repaired by one more record of its original envelope, in the topic and
// partition of the first record. The worker finds the outcome row under the same key, and
// does what the row has not done. It resumes an unfinished claim by the policy for ambiguous
// receivers. For a finished row it hands on retries and waits again, under the same keys,
// and the worker that reads those records does the same. Receivers that have an outcome are
// dropped as duplicates. So a receiver is called again only if the row of its own call is
// missing or unfinished.
//
// If the group has committed past a record and no row has its outcome, the row was lost: a
// worker lets a record be committed only after its row is durable. Whether the receivers
// were called is then unknown. The repair claims all of them before it appends the record,
// so that the policy for ambiguous receivers applies to each.
package conserve
