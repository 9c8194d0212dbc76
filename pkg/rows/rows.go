// Package rows is the contract between pkg/store and an engine of ordered rows: partitions
// of rows, read by key or by range, and written with or without a comparison. An engine
// that implements Rows or Partitions gets the contracts of pkg/engine from pkg/store.
//
// The suite of this contract is enginetest.Rows. The rules in the package comment of
// pkg/engine hold here too. Locks is a helper for engines of one process.
package rows

import "context"

// Part names a partition. A table holds one kind of row and may have many partitions.
type Part struct {
	Table byte
	Name  string // at most 65,535 bytes
}

// Row is one row. The rows of a partition are ordered by the bytes of their keys.
type Row struct {
	Key   string
	Value []byte // nil: there is no row with this key
}

// Change is a set of rows of one partition that are written together.
type Change struct {
	Part Part
	// If lists rows that must be stored exactly so. If one differs, the change is not
	// applied.
	If []Row
	// Clear lists prefixes. All rows whose keys begin with one of them are removed, with
	// one delete a prefix. Clear is applied before Do and Add, and locks no row.
	Clear []string
	Do    []Row // rows to store; a nil value removes the row
	// Add lists rows that are stored only if their key has no row yet. Rows of Add are
	// not locked. So a key of an Add must be in no If, and a Get of it may return a value
	// that is not durable yet.
	Add []Row
	// Number returns more rows to store. The engine calls it Numbers times, with i from
	// 0. n counts the calls of the partition: each call gets one more than the call
	// before. Changes become visible in the order of their n. The engine calls Number
	// under a lock, so it must do no I/O and must not wait.
	Number  func(i int, n uint64) []Row
	Numbers int
	// Stored, if not nil, is called once the change is durable, even if the caller of
	// Swap has left by then. The engine calls the Stored functions of a partition in the
	// order of their n. They must not wait.
	Stored func()
}

// Range selects the rows of a partition whose keys begin with Prefix, are greater than
// After and, unless Before is empty, less than Before. They are visited in ascending
// order, or in descending order if Back is set.
type Range struct {
	Prefix string
	After  string
	Before string
	Back   bool
}

// Scanner scans rows.
type Scanner interface {
	// Scan calls fn with the rows of a range, in order, until fn returns false or an
	// error. Scan returns that error. A value is valid until fn returns. Scan does not
	// wait for a Swap, so it may visit rows that are not durable yet.
	Scan(ctx context.Context, p Part, r Range, fn func(Row) (more bool, err error)) error
}

// Partitions stores rows. One write changes one partition.
type Partitions interface {
	Scanner
	// Get returns the values of keys, in the order of keys; nil where there is no row. If
	// a Swap of one of these rows is under way, Get waits for it. So every value that a
	// Swap compared (If) or stored (Do) is durable when Get returns it.
	Get(ctx context.Context, p Part, keys ...string) ([][]byte, error)
	// Swap applies the changes, all or none, if every row of every If is stored as given.
	// Otherwise it changes nothing and returns false. It calls the Number functions in
	// the order of cs. An engine that implements Partitions but not Rows accepts only one
	// change, without Add and Number. After an error the changes may have been applied.
	Swap(ctx context.Context, cs ...Change) (won bool, err error)
	// Turn waits until no other caller of this process has the turn of p. The caller has
	// the turn until it calls end. Callers that read, decide and swap take turns because
	// in an engine of many machines a lost swap costs as much as a won one. Other engines
	// return at once. A caller may hold only one turn at a time.
	Turn(ctx context.Context, p Part) (end func(), err error)
}

// Reader reads rows.
type Reader interface {
	Scanner
	// Look calls fn with the values of n rows, in order; nil where there is no row. key
	// appends the key of row i to b and returns the result. A value is valid until fn
	// returns. Like Scan, Look waits for no write: a value may be not durable yet.
	Look(ctx context.Context, p Part, n int, key func(b []byte, i int) []byte, fn func(i int, v []byte) error) error
}

// View is the rows as they were at one moment.
type View interface {
	Reader
	Close() error
}

// Rows stores rows. One write may change several partitions.
type Rows interface {
	Partitions
	Reader
	// View returns the rows as they are now. The caller closes it.
	View() View
	// Write stores the rows that fill puts into a batch, all or none. It compares
	// nothing. Each batch becomes visible at once, and durable at once; batches do so in
	// the order in which their fill functions ran. The engine calls fill at most once,
	// before Write returns, and under a lock, so fill must do no I/O and must not wait.
	//
	// A row must be written only by Write or only by Swap, because Write does not wait for
	// a Swap: the Swap could compare a value that a Write is about to replace.
	Write(ctx context.Context, fill func(Batch)) error
	// Post is Write that does not wait until the batch is durable. The batch becomes
	// durable before the rows of any later Write or Swap. A loss of power before that
	// loses it.
	Post(ctx context.Context, fill func(Batch)) error
	// Failed returns a channel that is closed when the engine has failed. A failed engine
	// refuses all writes.
	Failed() <-chan struct{}
	// Err returns why the engine has failed; nil while it is well.
	Err() error
}

// Batch collects the rows of a Write. It keeps no reference to keys and values.
type Batch interface {
	Set(p Part, key, value []byte)
	Delete(p Part, key []byte)
	// Settled registers fn. The engine calls fn with nil once the batch is durable, or
	// with the error that prevented it, even if the caller of Write has left by then. It
	// calls functions in the order of their fill functions. fn must not wait. After a
	// failure of the engine fn may never be called.
	Settled(fn func(err error))
}
