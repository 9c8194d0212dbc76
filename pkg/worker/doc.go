// Package worker delivers notifications. It reads envelopes from a lane's topic. It brings every
// receiver either to a terminal state or to a later attempt.
//
// One Worker serves one lane in one role (first attempts, or retries). A job is one envelope. A job
// has these steps:
//
//	partition.accept   decode; read the outcome rows of a whole poll at once. If the
//	                   envelope was finished before, repeat job.handOn with its row
//	                   and drop the envelope
//	job.handOutWindows per window of receivers:
//	  budget           at most Ahead windows of a partition wait or run, otp first;
//	                   at most half of these windows belong to envelopes that wait
//	                   for earlier envelopes; while the provider is slow, a partition
//	                   may have more than Ahead windows
//	  claim            write the outcome row with a greater StartedUpTo, and wait until
//	                   the row is durable (committer)
//	  order            wait until earlier envelopes of the same users have results
//	  capacity         at most InFlight addresses at the provider, otp first. SMS
//	                   lanes and lanes with a Rated provider claim after this step.
//	                   Their windows contain only receivers that may be called now
//	                   (admit.go)
//	  decide           cancelled? expired? opted out? quiet? addresses? breaker?
//	  Send             call the provider; turn every answer into an outcome
//	job.finish         write the outcome row with Done, and wait until it is durable;
//	                   then write retries to the -dlq topic, waits to the timer store
//	                   and failures to notifications-failed; when all of these are
//	                   acknowledged, mark the record as done
//
// So a crash at any moment leaves one of three states:
//
//   - Nothing was written. The record is read again, as if for the first time.
//   - A claim was written. The receivers between DoneUpTo and StartedUpTo are ambiguous; see
//     job.resumeFromRow.
//   - A finished row was written. After a restart, the worker derives the same records from the
//     row again, under the same keys. If some of these records were written before the crash, the
//     readers drop the second copies as duplicates.
//
// Preferences are checked only after the claim, right before the call, because an earlier check
// could miss a change that the user has made in the meantime.
//
// Goroutines: the consumer group calls partition.Handle from one goroutine per partition. Each job
// runs in a goroutine of its own. If a job has several windows, each window also has its own
// goroutine. Drain ends the goroutines of jobs and windows; see partition.go. Start reading at
// partition.accept and handout.go.
package worker
