// Package pebble implements every durable contract of pkg/engine in one Pebble database:
// one folder, one write-ahead log, and one fsync for all writes of the same moment.
//
// Every write goes through one group commit (commit.go), which answers it after its fsync.
// The first failure of the disk closes the store for writing until the next start
// (failstop.go), so a write that was not stored is never answered with nil. Open refuses a
// folder whose newest write-ahead log is missing (newest.go).
//
// A Get of a row that is being swapped waits until the swap is durable. So no caller acts
// on a value that a loss of power takes back.
//
// Start reading at rows.go, which implements rows.Rows.
//
// Keys begin with one byte that names the table. Integers are big-endian. str is two
// bytes of length and the bytes.
//
//	prefix  key                                              value
//	o       table, str partition                             last n of rows.Change.Number
//	r       table, str partition, key                        row of pkg/store (rows.go)
//	(0x00)  "format"                                         version of this layout
package pebble
