// Package outcome tells callers of their failed notifications: it follows each
// caller's feed of dead letters and makes triggers of it, up to 100 failures
// each, to the URL of the caller's record. From there on they are triggers like
// any other: signed, guarded, retried, held by the caller's breaker, and told of
// in triggers-dlq when the receiver stays away.
//
// How far a caller has been told is one durable row a caller, written after the
// trigger it is about. What a crash in between leaves: the trigger's id is a
// function of the caller and of the first failure in it, so the next start meets
// the trigger that is there, reads in its payload where it ends, and goes on
// behind it. No failure is left out, none is in two triggers; a call that is made
// twice carries the same webhook-id.
//
// Only failures are told. The other ends of a notification are in no log that a
// follower could go through again after a crash.
package outcome
