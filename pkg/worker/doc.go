// Package worker delivers notifications. It takes envelopes from a lane's topic and either
// brings every receiver to a terminal state or hands the receiver on to a later attempt.
//
// One Worker serves one lane in one role (first attempts, or retries). A job is one envelope. It
// takes these steps:
//
//	partition.accept   decode; read the outcome rows of a whole poll at once. An envelope
//	                   that was finished before is dropped, after its row has been
//	                   handed on again
//	job.handOutWindows per window of receivers:
//	  budget           at most Ahead windows a partition wait or run, otp first;
//	                   half of them for envelopes that wait for earlier ones; more
//	                   while the provider is slow
//	  claim            the outcome row with a greater StartedUpTo, durable (committer)
//	  order            wait until earlier envelopes of the same users have results
//	  capacity         at most InFlight addresses at the provider, otp first. SMS,
//	                   and a provider with a rate (Rated), claim after it: windows
//	                   are then as large as what may be called now (admit.go)
//	  decide           cancelled? expired? opted out? quiet? addresses? breaker?
//	  Send             call the provider; settle every answer into an outcome
//	job.finish         the outcome row with Done, durable; then everything it hands on:
//	                   retries to the -dlq topic, waits to the timer store,
//	                   failures to notifications-failed, all acknowledged; then
//	                   the record is marked
//
// So a crash at any moment leaves one of three states. Nothing: the record is read again and
// handled as new. A claim: the receivers between DoneUpTo and StartedUpTo are ambiguous; see
// job.resumeFromRow. A finished row: the same records are derived from it again under the same keys,
// and are dropped downstream as duplicates.
//
// Preferences are checked once, after the claim and right before the call, because only this
// check counts.
//
// Goroutines: the consumer group calls partition.Handle from one goroutine per partition. Each
// job runs in a goroutine of its own, and so does each window of a job with several windows. Drain
// ends them; see partition.go. Start reading at partition.accept and handout.go.
package worker
