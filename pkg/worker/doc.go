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
//	                   half of them for envelopes that wait for earlier envelopes;
//	                   more while the provider is slow
//	  claim            the outcome row with a greater StartedUpTo, durable (committer)
//	  order            wait until earlier envelopes of the same users have results
//	  capacity         at most InFlight addresses at the provider, otp first. SMS,
//	                   and a provider with a rate (Rated), claim after this step:
//	                   a window is then as large as what may be called now (admit.go)
//	  decide           cancelled? expired? opted out? quiet? addresses? breaker?
//	  Send             call the provider; turn every answer into an outcome
//	job.finish         the outcome row with Done, durable; then everything that
//	                   remains to do: retries to the -dlq topic, waits to the timer
//	                   store, failures to notifications-failed, all acknowledged;
//	                   then the record is marked as done
//
// So a crash at any moment leaves one of three states:
//
//   - Nothing was written. The record is read again and handled as new.
//   - A claim was written. The receivers between DoneUpTo and StartedUpTo are ambiguous; see
//     job.resumeFromRow.
//   - A finished row was written. The same records are derived from it again under the same keys.
//     Their readers drop them as duplicates.
//
// Preferences are checked only after the claim, right before the call, because only this check
// shows the user's current choice.
//
// Goroutines: the consumer group calls partition.Handle from one goroutine per partition. Each job
// runs in a goroutine of its own. Each window of a job with several windows also has its own
// goroutine. Drain ends these goroutines; see partition.go. Start reading at partition.accept and
// handout.go.
package worker
