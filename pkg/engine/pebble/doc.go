// Package pebble keeps every durable contract of pkg/engine in one Pebble
// database: one folder, one write-ahead log, one fsync for everything that
// happens at the same time.
//
// Every write goes through one group commit (commit.go) and is answered after
// its fsync. The first failure of the disk closes the store for writing until
// the next start (failstop.go): a write that was not stored is never answered
// with nil. A folder that lost its newest log is refused (newest.go).
//
// Reads of rows that are swapped (heads, triggers) wait for whoever is writing
// them, so that nobody acts on what a loss of power takes back. Two things are
// not durable when they are answered, because losing them only repeats a
// delivery: an acknowledgement of a message, and until when somebody has it.
//
// Keys begin with one byte that names the table. Integers are big-endian;
// signed ones have their sign bit flipped, and ~x sorts descending. str is two
// bytes of length and the bytes.
//
//	prefix  key                                              value
//	o       table, str partition                             last number of a partition of r
//	r       table, str partition, key                        row of pkg/store (rows.go)
//	B       id                                               head of a large trigger, once it was swapped
//	E       ended, id                                        -: triggers that are terminal
//	G       id                                               trigger
//	K       seq                                              ids that one swap claimed
//	L       state, str caller, id                            -: triggers by state and caller; IN_FLIGHT among PENDING
//	Q       str queue, seq                                   message: enqueued, visible, body
//	V       str queue, seq                                   receives, released until
//	(0x00)  "format"                                         version of this layout
package pebble
