// Package pebble implements every durable contract of pkg/engine in one Pebble database. The
// database has one folder and one write-ahead log. Writes of the same moment share one fsync.
//
// Every write goes through one group commit (commit.go). The group commit answers a write after
// its fsync. After the first failure of the disk the store refuses all writes until the process
// starts again (failstop.go). So a write that was not stored never returns nil. Open refuses a
// folder whose newest write-ahead log is missing (newest.go).
//
// A Get of a row that is being swapped waits until the swap is durable. So no caller acts on a
// value that is lost when the power fails.
//
// Start reading at rows.go, which implements rows.Rows.
//
// Keys begin with one byte that names the table. Integers are big-endian. "str" is a string:
// two bytes with its length, then its bytes.
//
//	prefix  key                                              value
//	o       table, str partition                             last number given to rows.Change.Number
//	r       table, str partition, key                        row of pkg/store (rows.go)
//	(0x00)  "format"                                         version of this layout
package pebble
