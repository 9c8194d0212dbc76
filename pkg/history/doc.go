// Package history answers which receiver got which notification: one notification by its id,
// every receiver of a request, and the notifications of a user, newest first. Store implements
// Reader without a row per receiver. Remembered is the same over a history on a server.
//
// # What is stored
//
// A follower of the log, the pump, passes every record of the topics of first attempts to
// Store.Append, in offset order for each log partition. The Store keeps original chunks. A
// derived chunk (retry, deferral, replay) only moves the offset. Each log partition has one
// growing segment, the tail: its index is in memory, and its bodies are appended to a file. When
// the tail is full or old enough, the Store seals it: it appends the index to the file, syncs
// the file, renames it, and only then moves the sealed offset. The log may be trimmed below the
// sealed offset. A start deletes the unsealed files, and the pump reads the log again from
// Resume.
//
//	header    8 bytes
//	bodies    {length u32, crc32c u32, part u16, offset u64, envelope}...
//	rows      per chunk, 40 bytes: base, body offset and length, first ordinal, first and last index
//	strides   per 64 ordinals, 4 bytes: the chunk that holds the first of them
//	users     directory of 2^bits+1 offsets, then 5 bytes a receiver, counting-sorted
//	bases     the same, 5 bytes a chunk
//	meta      JSON: counts, sections with checksums, bounds, log offsets
//	footer    offset, length and checksum of meta
//
// A receiver's ordinal is its position in the segment. An index entry holds 16 bits of the hash,
// those below the directory's bits, and 24 bits of ordinal. This size is the same whether the
// segment holds 130 chunks of 8,000 receivers or a million chunks of one. A hit is verified
// against its body. The directory has one slot per 16 entries: 65,536 slots for a million
// receivers, one slot in a segment of ten.
//
// # What may go wrong
//
// A damaged file stays where it is and is reported by Damaged; queries that may concern it
// return history_damaged instead of not found. After a failed sync nothing is known of what the
// disk holds, so the Store stops writing and Run returns an error. The log still holds
// everything above Sealed.
//
// # Where to start reading
//
// store.go opens and closes a Store, append.go takes records in, seal.go makes segments,
// maintain.go merges and removes them; find.go, user.go and list.go answer queries; format.go
// and index.go define the file.
//
// # Figures
//
// BenchmarkIndex, BenchmarkAppend, BenchmarkLookup on 2 cores shared with other work (load 4 to
// 10), CPU time per receiver in chunks of 8,333 with ids of 11 bytes:
//
//	hash                      8.5 ns   includes the check of the column
//	chain                     1.8 ns
//	body and checksum         0.7 ns
//	sort at the seal          5.9 ns   on another goroutine than the appender
//	write                    10-40 ns  more where the kernel's pages are new to the guest
//
// On disk a receiver takes 18.2 bytes, 13.2 of them in the body; a single with a short text
// takes 134. In memory a receiver of the tail takes 12 bytes, and a sealed segment half a
// kilobyte.
//
// Lookups in 50M receivers, 10 notifications a user, page cache warm, wall time over three runs
// under the same load: mean, then p99, in ms. Judge them only on a quiet machine.
//
//	Find                           0.14-0.20   0.26-2.0
//	Find, no such id               0.004-0.005 0.01
//	User, the newest               0.31-0.51   0.64-5.1
//	User, without notifications    0.08-0.12   0.19-1.5
//	User, 10 out of ten chunks     1.8-2.7     5.1-10
//
// Most of the time of a hit goes into reading and checking its chunk's body of 110 KB, mainly in
// notify.DecodeEnvelope.
//
// Directories are not cached. Looking into a segment takes two or three preads of a few bytes,
// 1.5 us together; a cache would take 0.25 bytes a receiver.
package history
