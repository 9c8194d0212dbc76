// Package intake turns requests into log records. It decodes strictly, decides whether to admit
// a notification, and gives it its id. It answers only after the record is durable in the log.
// While the log is down, records of otp and alert are stored in the spill buffer instead.
//
// A request passes these steps, in this order:
//
//  1. decode and check the whole body; nothing is stored yet;
//  2. if the request has a key: reserve the key, which freezes all inputs of ids and
//     chunks (package request);
//  3. check the campaign and the gate of the log, and then store the records in the log or in
//     the spill buffer (store.go);
//  4. finish the reservation and answer.
//
// A crash between two steps may leave a reservation, and some or all of the records. A repeat that
// finds the reservation writes exactly the same records. So the worker recognizes the second copy
// of a record by its chunk and drops it.
//
// Start reading at Service.Single in single.go, then storePlan.Store in store.go. Batches are
// in batch.go, fan-outs in fanout.go and chunks.go, the strict JSON scanner in scan.go.
package intake
