// Package timer holds what must happen later and lets it go at its time: the
// one mechanism behind parked retries, quiet hours, schedules and triggers.
//
// A timer is a row of the timer store in the partition (minute, shard) of its
// fire time. The engine owns its shards (one process for now), and per shard:
//
//	load    every Poll: rows up to now + Lookahead go into the wheel
//	release the wheel lets each go at its millisecond, never before; it is
//	        published, and again until that is acknowledged
//	close   Grace after a minute's end: closed is moved (durable), the minute is
//	        scanned once more, what was missed is released, the partition is
//	        dropped with one delete, and the watermark moves
//
// A crash before the watermark moves releases the rows of the open minutes
// again; whoever receives them knows them by their id. A row written behind the
// load cursor goes into the wheel at once; one written into a closed minute is
// written again under the minute of now.
package timer
