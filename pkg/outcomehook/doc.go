// Package outcomehook tells callers how their notifications ended. Teller follows each
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
// A caller may ask for every end instead of failures alone (engine.OutcomesAll;
// Asked knows who does). Then a worker puts the other ends of an envelope into the
// topic notifications-outcomes, when their row is durable and before it marks the
// envelope, as receipts do before they are answered; Follower reads the topic and
// makes triggers of it, named by the place of their first outcome in the log and
// saying where they end. An end may be told twice, when the process dies between a
// row and its record's mark, or twice in a row soon after each other:
// (notification_id, epoch, status) is the same.
package outcomehook
