// Package rows is the contract between pkg/store and an engine that stores ordered rows.
// Rows are in partitions. They are read by key or by range, and written with or without a
// comparison. pkg/store implements the contracts of pkg/engine for every engine that
// implements Rows or Partitions.
//
// The tests of this contract are in enginetest.Rows. The rules in the package comment of
// pkg/engine apply here too. Locks is a helper for an engine that belongs to one process.
package rows

import "context"

// Partition names a partition. A table holds one kind of row and may have many partitions.
type Partition struct {
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
	Part Partition
	// Expect lists rows that must be stored with exactly these values. If one row differs, the
	// change is not applied.
	Expect []Row
	// Clear lists prefixes. The engine removes all rows whose key begins with a prefix of
	// the list, with one delete for each prefix. It applies Clear before Set and Insert. Clear
	// locks no row.
	Clear []string
	Set   []Row // rows to store; a nil value removes the row
	// Insert lists rows that are stored only if their key has no row yet. Rows of Insert are not
	// locked. So a Get of such a row may return a value that is not durable yet. The key of
	// such a row must never be in an Expect.
	Insert []Row
	// Number returns more rows to store. The engine calls Number as many times as the field
	// Numbers says, with i = 0, 1, 2 and so on. n is a counter of the partition: each call of
	// Number gets an n that is greater by one than the n of the call before.
	// Changes become visible in the order of their n. The engine calls Number under a lock,
	// so Number must do no I/O and must not wait.
	Number  func(i int, n uint64) []Row
	Numbers int
	// Stored is called after the change is durable. nil: no call. It is called even if the Swap has
	// already returned because its context ended. If changes of a partition have Number functions,
	// the engine calls their Stored functions in the order of the n of these changes. A Stored
	// function must not wait.
	Stored func()
}

// Range selects the rows of a partition whose keys begin with Prefix and are greater than
// After. If Before is not empty, the keys must also be less than Before. A scan visits the
// rows in ascending order, or in descending order if Back is true.
type Range struct {
	Prefix string
	After  string
	Before string
	Back   bool
}

// Scanner scans rows.
type Scanner interface {
	// Scan calls fn with the rows of a range, in order. It stops when fn returns false or
	// an error, and returns the error of fn. The value of a row is valid until fn returns.
	// Scan does not wait for a Swap, so it may visit rows that are not durable yet.
	Scan(ctx context.Context, p Partition, r Range, fn func(Row) (more bool, err error)) error
}

// Partitions stores rows. One write changes one partition.
type Partitions interface {
	Scanner
	// Get returns one value for each of the given keys, in the order of the arguments. The value is
	// nil for a key that has no row. If a Swap of one of these rows is running, Get waits until the
	// Swap ends. So every value that a Swap compared (Expect) or stored (Set) is durable when Get
	// returns it.
	Get(ctx context.Context, p Partition, keys ...string) ([][]byte, error)
	// Swap compares the rows in Expect of all changes with the stored rows. If all are
	// equal, it applies all changes and returns true. Otherwise it changes nothing and
	// returns false. It calls the Number functions in the order of the arguments. An engine that
	// implements Partitions but not Rows accepts only one change, without Insert and
	// Number. After an error the changes may have been applied.
	Swap(ctx context.Context, cs ...Change) (won bool, err error)
	// Turn prevents callers of one process from making each other's swaps fail. A caller that reads
	// rows, decides and swaps them calls Turn first. Turn waits until no other caller of this
	// process has the turn of p. The caller then has the turn until it calls release, and must not
	// call Turn again before that.
	//
	// Only an engine of many machines makes callers wait. There a swap that returns false costs as
	// much as a swap that returns true. In other engines Turn returns at once.
	Turn(ctx context.Context, p Partition) (release func(), err error)
}

// Reader reads rows.
type Reader interface {
	Scanner
	// GetMany calls fn with the values of n rows, in order. The value v is nil if the row does
	// not exist. The function key appends the key of row i to b and returns the result. A
	// value is valid until fn returns. Like Scan, GetMany does not wait for writes, so it may
	// return a value that is not durable yet.
	GetMany(ctx context.Context, p Partition, n int, key func(b []byte, i int) []byte, fn func(i int, v []byte) error) error
}

// View reads the rows as they were at one moment. Later writes do not change what it
// returns.
type View interface {
	Reader
	Close() error
}

// Rows stores rows. One write may change several partitions.
type Rows interface {
	Partitions
	Reader
	// View returns a View of the rows as they are now. The caller must close the View.
	View() View
	// Write stores the rows that fill puts into a batch. It compares nothing. All rows of a
	// batch become visible together and durable together, or none does. Batches become
	// visible and durable in the order in which their fill functions ran. The engine calls
	// fill at most once, before Write returns. It calls fill under a lock, so fill must do
	// no I/O and must not wait.
	//
	// Each row must be written either always by Write or always by Swap. Write does not wait for a
	// Swap, so a Swap could compare a value that a Write is about to replace.
	Write(ctx context.Context, fill func(Batch)) error
	// Post does the same as Write but does not wait until the batch is durable. No later Write or
	// Swap becomes durable before the batch. If the power fails before the batch is durable, the
	// batch is lost.
	Post(ctx context.Context, fill func(Batch)) error
	// Failed returns a channel that is closed when the engine has failed. A failed engine
	// refuses all writes.
	Failed() <-chan struct{}
	// Err returns why the engine has failed; nil while the engine works.
	Err() error
}

// Batch collects the rows of a Write. It keeps no reference to keys and values.
type Batch interface {
	Set(p Partition, key, value []byte)
	Delete(p Partition, key []byte)
	// Settled registers a function fn for the end of the write. When the batch is durable, the
	// engine calls fn(nil). If the batch cannot become durable, it calls fn with the error. It
	// calls fn even if Write has already returned because its context ended. But after a failure of
	// the engine, fn may never be called. The engine calls these functions in the order in which
	// the fill functions ran. fn must not wait.
	Settled(fn func(err error))
}
