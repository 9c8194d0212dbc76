// Package timer stores timers and releases them at their fire time. It is the one mechanism behind
// parked retries, quiet hours, schedules and triggers.
//
// A timer is a row of the timer store, in the partition (minute, shard) of its fire time. Each
// shard has one owner at a time, an Engine with the shard's lease. The owner does this per shard:
//
//	load    every Poll: rows up to now + Lookahead go into the wheel
//	release the wheel releases each timer at its millisecond, never before; it is
//	        published again until the publish is acknowledged
//	close   Grace after a minute's end: closed is moved (durable), the minute is
//	        scanned once more, missed rows are released, the partition is
//	        dropped with one delete, and the watermark moves
//
// If an owner crashes before the watermark moves, the next owner releases the rows of the open
// minutes again; receivers recognize them by their id. A row written behind the load cursor goes
// into the wheel at once. A row written into a closed minute is written again under the current
// minute.
//
// An owner acts only while it trusts its lease, and the store refuses writes of an earlier term, so
// a paused owner cannot harm the next one. It may only publish twice.
//
// Start reading at Engine.Run in engine.go. Leases are in owner.go, members.go and tenure.go;
// loading in load.go; releases in release.go; touched schedules in heads.go; closed minutes in
// close.go; outages in catchup.go; writes in writer.go.
package timer
