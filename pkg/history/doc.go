// Package history answers who got what: one notification by its id, every
// receiver of a request, the notifications of a user, newest first. It
// implements Reader without a row per receiver.
//
// # What is stored
//
// A pump feeds every record of the topics of first attempts, per log partition
// in offset order. Original chunks are kept, derived ones (retries, deferrals,
// replays) only move the offset. Per log partition there is one growing
// segment, the tail: its index is in memory, its bodies are streamed to a file
// as they come. Full or old enough, the tail is sealed: the index is appended
// to the file, the file is synced and renamed, and only then the sealed offset
// moves, behind which the log may be trimmed. After a start the unsealed files
// are thrown away and the pump feeds the log again from Resume.
//
//	header    8 bytes
//	bodies    {length u32, crc32c u32, part u16, offset u64, envelope}...
//	rows      per chunk, 40 bytes: base, body offset and length, first ordinal, first and last index
//	strides   per 64 ordinals, 4 bytes: the chunk that holds it
//	users     directory of 2^bits+1 offsets, then 5 bytes a receiver, counting-sorted
//	bases     the same, 5 bytes a chunk
//	meta      JSON: counts, sections with checksums, bounds, log offsets
//	footer    meta's place and checksum
//
// A receiver's ordinal is its place in the segment, so an index entry is 16
// bits of the hash below the directory's bits and 24 bits of ordinal, whether
// the segment holds 130 chunks of 8,000 or a million of one. A hit is verified
// against its body. The directory has one slot per 16 entries, 65,536 at a
// million receivers and one in a segment of ten.
//
// # Figures
//
// BenchmarkIndex, BenchmarkAppend, BenchmarkLookup on 2 cores shared with other
// work (load 4 to 10), CPU time per receiver in chunks of 8,333 with ids of 11
// bytes:
//
//	hash                      8.5 ns   and the check of the column
//	chain                     1.8 ns
//	body and checksum         0.7 ns
//	sort at the seal          5.9 ns   beside the appender
//	write                    10-40 ns  more where the kernel's pages are new to the guest
//
// On disk 18.2 bytes a receiver, 13.2 of them the body; 134 for a single with a
// short text. In memory 12 bytes a receiver of the tail and half a kilobyte a
// sealed segment.
//
// Lookups in 50M receivers, 10 notifications a user, page cache warm, wall time
// over three runs under the same load: mean, then p99, in ms. They need a quiet
// machine to be judged.
//
//	Find                           0.14-0.20   0.26-2.0
//	Find, no such id               0.004-0.005 0.01
//	User, the newest               0.31-0.51   0.64-5.1
//	User, nobody                   0.08-0.12   0.19-1.5
//	User, 10 out of ten chunks     1.8-2.7     5.1-10
//
// What a hit costs is reading and checking its chunk's body of 110 KB, most of
// it in notify.DecodeEnvelope.
//
// Directories are not cached: a look into a segment is two or three preads of
// some bytes, 1.5 us together, and a cache would cost 0.25 bytes a receiver.
package history
