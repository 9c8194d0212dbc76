// Package outcomehook tells callers how their notifications ended, with callbacks to the
// outcomes URL of the caller's record.
//
// Teller follows each caller's feed of dead letters and makes triggers from it, with up to 100
// failures in each. From there on they are triggers like any other: signed, guarded, retried,
// held by the caller's circuit breaker, and reported in triggers-dlq if the URL does not answer.
//
// Teller stores one durable row per caller with the last failure that is in a trigger, and
// writes it after the trigger. A crash between the two does no harm. The trigger's id is a
// function of the caller and of its first failure, so the next start finds the existing trigger,
// reads in its payload where it ends, and continues behind it. No failure is left out and none
// is in two triggers. A callback that is made twice carries the same webhook-id.
//
// A caller may ask for every outcome instead of failures alone (engine.OutcomesAll; Asked knows
// these callers). Then a worker appends the other outcomes of an envelope to the topic
// notifications-outcomes. It does so after their row is durable and before it marks the
// envelope. Receipts are appended before they are answered. Follower reads the topic and makes
// triggers from it. A trigger's id contains the position of its first outcome in the topic; its
// payload says where it ends. An outcome may be told twice, with the same (notification_id,
// epoch, status): when the process dies between the row and the mark of its record, or when the
// same outcome is appended twice in quick succession.
//
// Start reading at Teller.Run in teller.go and Follower.Assigned in follow.go.
package outcomehook
