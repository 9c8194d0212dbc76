// Package conserve audits that accepted = terminal + pending for every caller, channel and hour. It
// reads the stores and the log while the server works. It reports drift: receivers and triggers
// that are neither terminal nor pending. It repairs the findings of a report.
//
// Start reading at Auditor.Run. The audit is in run.go, chunk.go, schedules.go and triggers.go. A
// report (report.go) lists what the audit and find.go find. apply.go repairs the findings of a
// report.
//
// # Audit
//
// Accepted counts the receivers of distinct original chunks. It reads them from the sealed history,
// from the newer part of the log, from the spill buffer, and from the timers of schedules that are
// not due. A receiver is terminal if the rows of its chunk say so. A receiver is pending if there
// is evidence: a record or a timer from which the work on it will continue:
//
//	log        its record; the group of its lane has not committed an offset after it
//	claimed    as log, and a worker has claimed the receiver
//	parked     a timer that contains it until a retry or the end of a wait
//	behind     as parked, in a strict lane: it waits for another receiver of its user
//	scheduled  a timer of its schedule
//	spilled    its record in the spill buffer
//
// A claim alone is no evidence. A worker finishes a claim when it reads the record again. So if the
// group has committed an offset after the record, no worker will finish the claim.
//
// A receiver with neither an outcome nor evidence is a suspect. The audit checks suspects again in
// several rounds. In each round it first reads all possible evidence (timers, spill buffer, the
// part of the log that is not committed) and then the rows again. Between two rounds it waits
// longer than a commit takes. Work moves between these places, and after a short time each move
// also changes a row. A suspect whose rows changed in a round gets further rounds. Only a suspect
// that stays unchanged without evidence is drift. So the audit of a working server reports no false
// drift. It may miss drift that is newer than the last commit; the next audit finds it.
//
// Memory is limited: chunks are streamed, and suspects are checked in batches.
//
// # Repair
//
// This package decides which triggers need repair and why. Package trigger repairs them
// (Triggers.Mend).
//
// The repair of a notification appends its original envelope once more, to the topic and partition
// of the first record. A worker reads this record and finds the outcome row under the same key. If
// the row has an unfinished claim, the worker resumes the claim by the policy for ambiguous
// receivers. If the row is finished, the worker writes the row's retries and deferrals again, with
// the same keys. A worker that reads one of these retries or deferrals does the same with the row
// of that retry or deferral. Workers drop receivers that have an outcome. So a provider is called
// again for a receiver only if the row of the receiver's call is missing or unfinished.
//
// The offset of a record is committed only after the worker has stored its row durably. So if the
// group has committed an offset after a record, and no row has its outcome, the row was lost. Then
// it is unknown whether the receivers were called. Therefore the repair claims all of them before
// it appends the record, so that the policy for ambiguous receivers applies to each.
package conserve
