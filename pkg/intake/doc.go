// Package intake turns requests into log records. It decodes strictly, decides whether a
// notification is admitted, gives it its id, and answers only when the record is durable in the log
// (or in the spill buffer, for otp and alert while the log is down).
//
// A request passes these steps, in this order:
//
//  1. decode and check the whole body; nothing is stored yet;
//  2. with a key: reserve it, which freezes everything that determines ids and
//     chunks (package request);
//  3. campaign, gate, spill buffer, log (store.go);
//  4. finish the reservation and answer.
//
// A crash between two steps leaves nothing, or a reservation whose repeat writes the very same
// records. Delivery drops the second copy by its chunk.
//
// Start reading at Service.Single in single.go, then storePlan.Store in store.go. Batches are in
// batch.go, fan-outs in fanout.go and chunks.go, the strict JSON scanner in scan.go.
package intake
