// Package timer stores timers and releases them at their fire time. Parked retries, quiet hours,
// schedules and triggers all use it.
//
// A timer is a row of the timer store, in the partition (minute, shard) of its fire time. Each
// shard has one owner at a time: the Engine that has the shard's lease. The owner does these steps
// for each shard:
//
//	load    every Poll: put rows that are due up to now + Lookahead into the wheel
//	release the wheel releases each timer at its millisecond, never before. The timer
//	        is published again until the publish is acknowledged.
//	close   Grace after the end of a minute: raise Closed in the stored state of the shard,
//	        scan the minute once more, release missed rows, drop the partition with one
//	        delete, and raise the watermark
//
// If an owner crashes before it raises the watermark, the next owner releases the rows of the open
// minutes again. Receivers recognize these timers by their id. If a row is written after loading has
// read past its fire time, it goes into the wheel at once, without a scan. If a row was written into
// a minute that was closed meanwhile, its writer stores it again under the current minute.
//
// An owner works only while it trusts its lease. The store refuses writes with an earlier term. So
// a paused owner cannot harm the next owner. In the worst case both publish the same timer.
//
// Start reading at Engine.Run in engine.go. Leases are in owner.go, members.go and tenure.go.
// Loading is in load.go, releases in release.go, cancelled and moved schedules in heads.go, closed
// minutes in close.go, outages in catchup.go, and writes in writer.go.
package timer
