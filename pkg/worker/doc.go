// Package worker delivers: it takes envelopes from a lane's topic and brings
// every receiver to a terminal state, or hands it on.
//
// One Worker serves one lane in one role (first attempts, or retries). The way
// of one envelope (a job):
//
//	partition.accept   decode; read the outcome rows of a whole poll at once;
//	                   finished before? drop, hand on what the row handed on
//	job.run            per window of receivers:
//	  budget           at most Ahead windows a partition wait or run, otp first;
//	                   half of them for envelopes that wait for earlier ones; more
//	                   where the provider is slow
//	  claim            the outcome row with StartedUpTo moved, durable (committer)
//	  order            wait until earlier envelopes of the same users have answered
//	  capacity         at most InFlight addresses at the provider, otp first; SMS,
//	                   and a provider with a rate (Rated), claim after it: windows
//	                   are then as large as what may be called now (admit.go)
//	  look             cancelled? expired? opted out? quiet? addresses? breaker?
//	  Send             the provider; every answer is settled into an outcome
//	job.finish         the outcome row with Done, durable; then what it hands on:
//	                   retries to the -dlq topic, waits to the timer store,
//	                   failures to notifications-failed, all acknowledged; then
//	                   the record is marked
//
// So at any moment a crash leaves one of: nothing (the record is read again and
// handled as new), a claim (receivers between DoneUpTo and StartedUpTo are
// ambiguous; see resume), or a finished row (what it hands on is derived from it
// again under the same keys, and dropped downstream as a duplicate).
//
// Preferences are looked at once, after the claim and right before the call: a
// look before it would decide nothing that this one does not decide again.
package worker
