// Package history answers who got what: one notification by its id, every
// receiver of a request, the notifications of a user, newest first. It
// implements engine.History without a row per receiver.
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
// # Figures (2 cores at 2.6 GHz, page cache warm; see bench_test.go)
//
// See BenchmarkAppend, BenchmarkSeal and BenchmarkLookup for what was measured
// and when.
package history
