// Package history answers which receiver got which notification. It finds one notification by its
// id, every receiver of a request, and the notifications of a user, newest first. Store implements
// Reader with files of its own, and stores no row per receiver. Remembered implements Reader with a
// history on a server, such as Cassandra.
//
// # What is stored
//
// The pump, a goroutine of package app, reads the log. It passes every record of the topics of
// first attempts to Store.Append, in offset order for each log partition. The Store keeps original
// chunks. A derived chunk (retry, deferral, replay) only advances the offset. Each log partition
// has one growing segment, the tail. The tail's index is in memory, and its bodies are appended to
// a file. When the tail is full or old enough, the Store seals the tail: it appends the index to
// the file, syncs the file, renames the file, and then advances the sealed offset. The log may be
// trimmed below the sealed offset. After a start, the Store deletes the unsealed files, and the
// pump reads the log again from the offsets that Resume returns.
//
//	header    8 bytes
//	bodies    {length u32, crc32c u32, part u16, offset u64, envelope}...
//	rows      per chunk, 40 bytes: base, body offset and length, first ordinal, first and last index
//	strides   per 64 ordinals, 4 bytes: the chunk of the first ordinal
//	users     directory of 2^bits+1 offsets, then 5 bytes per receiver, counting-sorted
//	bases     the same format, 5 bytes per chunk
//	meta      JSON: counts, sections with checksums, bounds, log offsets
//	footer    offset, length and checksum of meta
//
// A receiver's ordinal is its position in the segment. An index entry contains 16 bits of the hash
// and 24 bits of ordinal. The highest bits of the hash select the slot in the directory, and the
// entry contains the 16 bits after them. An entry has this size in every segment, whether the
// segment has 130 chunks of 8,000 receivers or a million chunks of one receiver. Different users
// can have the same bits, so a query compares each match in the index with the body. The directory
// has one slot per 16 entries: 65,536 slots for a million receivers, one slot in a segment of ten
// receivers.
//
// # Errors
//
// A damaged file is not changed, and Damaged reports it. A query that finds nothing, but may have
// missed data in a damaged file, returns history_damaged instead of not found. After a failed sync
// the content of the disk is unknown. So the Store stops writing, and Run returns an error.
// Everything above the offsets that Sealed returns is still in the log.
//
// # Where to start reading
//
// store.go opens and closes a Store. append.go adds records. seal.go makes segments, and
// maintain.go merges and removes them. find.go, user.go and list.go answer queries. format.go and
// index.go define the file format.
//
// # Figures
//
// BenchmarkIndex, BenchmarkAppend and BenchmarkLookup ran on 2 cores shared with other work (load 4
// to 10). CPU time per receiver, in chunks of 8,333 receivers with ids of 11 bytes:
//
//	hash                      8.5 ns   includes the check of the column
//	chain                     1.8 ns
//	body and checksum         0.7 ns
//	sort at the seal          5.9 ns   on another goroutine than the appender
//	write                    10-40 ns  higher while the virtual machine uses memory pages for the first time
//
// On disk a receiver takes 18.2 bytes, 13.2 of them in the body. A single send with a short text
// takes 134 bytes. In memory a receiver of the tail takes 12 bytes, and a sealed segment takes half
// a kilobyte.
//
// Lookups in 50M receivers with 10 notifications per user and a warm page cache. Wall time in ms
// over three runs under the same load: the first column is the mean, the second column is p99. The
// load makes these values uncertain. To judge the lookups, measure again on a quiet machine.
//
//	Find                           0.14-0.20   0.26-2.0
//	Find, no such id               0.004-0.005 0.01
//	User, the newest               0.31-0.51   0.64-5.1
//	User, without notifications    0.08-0.12   0.19-1.5
//	User, 10 from ten chunks       1.8-2.7     5.1-10
//
// A lookup that finds something spends most of its time on reading and checking the body of the
// chunk (110 KB), mainly in notify.DecodeEnvelope.
//
// Directories are not cached. A search in a segment takes two or three preads of a few bytes, 1.5
// us together. A cache would take 0.25 bytes per receiver.
package history
