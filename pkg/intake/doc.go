// Package intake turns requests into log records: it decodes strictly, decides
// whether a notification is admitted, gives it its id, and answers only when
// the record is durable in the log (or, for otp and alert while the log is
// away, in the spill buffer).
//
// One request goes through these steps, in this order:
//
//  1. decode and check the whole body; nothing is stored yet;
//  2. with a key: reserve it, which freezes everything that decides ids and
//     chunks (package request);
//  3. campaign, gate, spill buffer, log (store.go);
//  4. finish the reservation and answer.
//
// A crash between any two of them leaves either nothing or a reservation whose
// repeat writes the very same records, which delivery drops by chunk identity.
package intake
