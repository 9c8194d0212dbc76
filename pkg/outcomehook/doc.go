// Package outcomehook reports to callers how their notifications ended. It sends callbacks to the
// outcomes URL in the caller's record.
//
// Teller reads each caller's feed of dead letters and makes triggers from it, with up to 100
// failures in each trigger. These triggers are handled like all other triggers: they are signed and
// retried, they wait while the caller's circuit breaker is open, and they are reported in
// triggers-dlq if the URL does not answer.
//
// For each caller, Teller stores a durable row with the last failure that is in a trigger. It
// writes the row after the trigger. A crash between the two writes does no harm: the trigger's id
// is computed from the caller and the first failure. So the next start finds the existing trigger,
// reads in its payload which failure is the last, and continues after that failure. Each failure is
// in exactly one trigger. If a callback is made twice, both callbacks have the same webhook-id.
//
// A caller may want every outcome, not only failures (engine.OutcomesAll; Asked has the list of
// these callers). Then a worker appends the other outcomes of an envelope to the topic
// notifications-outcomes. It does so after the envelope's row is durable and before it marks the
// envelope's record as done. A receipt is also appended to the topic, before the provider that
// posted the receipt gets an answer. Follower reads the topic and makes triggers from it. A
// trigger's id contains the position of its first outcome in the topic. Its payload contains the
// position of its last outcome. An outcome may be sent twice, with the same (notification_id, epoch,
// status). This happens if the process dies after the row is durable and before the record is marked
// as done. It also happens if the same outcome is appended twice in quick succession.
//
// Start reading at Teller.Run in teller.go and Follower.Assigned in follow.go.
package outcomehook
