// Package pebble keeps every durable contract of pkg/engine in one Pebble
// database: one folder, one write-ahead log, one fsync for everything that
// happens at the same time.
//
// Every write goes through one group commit (commit.go) and is answered after
// its fsync. The first failure of the disk closes the store for writing until
// the next start (failstop.go): a write that was not stored is never answered
// with nil. A folder that lost its newest log is refused (newest.go).
//
// A read of a row that is being swapped waits until the swap is durable. So no caller
// acts on a value that a loss of power takes back.
//
// Keys begin with one byte that names the table. Integers are big-endian. str is two
// bytes of length and the bytes.
//
//	prefix  key                                              value
//	o       table, str partition                             last number of a partition of r
//	r       table, str partition, key                        row of pkg/store (rows.go)
//	(0x00)  "format"                                         version of this layout
package pebble
