// Package rows is storage as pkg/store sees it: partitions of ordered rows, and one
// way to write that can compare first. An engine implements Rows, and pkg/store puts
// contracts of pkg/engine over it. The suite of the contract is enginetest.Rows; the
// rules of pkg/engine hold for it too.
package rows

import "context"

// Part names a partition. A table is one kind of rows, and may have many partitions.
type Part struct {
	Table byte
	Name  string // at most 65,535 bytes
}

// Row is one row. Rows of a partition are ordered by the bytes of their keys.
type Row struct {
	Key   string
	Value []byte // nil: there is no such row
}

// Change is rows of one partition that are written together.
type Change struct {
	Part Part
	If   []Row // what must be stored for the change to be done
	// Clear removes all rows whose keys begin with one of these, with one delete each.
	// It is done before the rest, and locks nothing.
	Clear []string
	Do    []Row // what is stored then; a nil value removes the row
	// Add is stored, too, but a row whose key is stored already stays as it is. Rows
	// of Add are not locked: a key that is in an Add must be in no If, and a Get of it
	// may return what is not durable yet.
	Add []Row
	// Number returns more rows to store. It is called Numbers times, with i from 0. Its
	// n is one more than the n of the partition before, and changes become visible in
	// the order of their n. An engine calls it under a lock: it does no I/O and does
	// not wait.
	Number  func(i int, n uint64) []Row
	Numbers int
	// Stored, if not nil, is called once the change is durable, also if the caller of
	// Swap has left. Those of a partition are called in the order of their n, and do
	// not wait.
	Stored func()
}

// Range is the rows of a partition whose keys begin with Prefix, are greater than
// After and, unless it is empty, less than Before. They are visited in ascending order, or in descending order if Back is set.
type Range struct {
	Prefix string
	After  string
	Before string
	Back   bool
}

// Scanner scans rows.
type Scanner interface {
	// Scan calls fn with the rows of a range, in order, until fn returns false or an
	// error, which Scan returns. A value is valid until fn returns. Scan does not wait
	// for a Swap: what it returns may be not durable yet.
	Scan(ctx context.Context, p Part, r Range, fn func(Row) (more bool, err error)) error
}

// Partitions keeps rows of which one partition at a time is changed.
type Partitions interface {
	Scanner
	// Get returns the values of keys, in their order; nil where there is no row. It
	// waits for a Swap of those rows that is under way: what it returns of If and Do of
	// any Swap is durable.
	Get(ctx context.Context, p Part, keys ...string) ([][]byte, error)
	// Swap does the changes, all or nothing, if each row of each If is stored as it
	// says. It returns false, and has changed nothing, if one of them is not. It calls
	// the functions Number in the order of cs. An engine that is not Rows takes one
	// change that has no Add and no Number. After an error the change may be done.
	Swap(ctx context.Context, cs ...Change) (won bool, err error)
	// Turn waits until no other caller of this process has the turn of p. It is for
	// callers that read, decide and swap: in an engine of many machines a swap that is
	// lost costs as much as one that is won. Other engines return at once. A caller
	// has one turn at a time.
	Turn(ctx context.Context, p Part) (end func(), err error)
}

// Reader reads rows.
type Reader interface {
	Scanner
	// Look calls fn with the values of n rows, in order; nil where there is no row. key
	// appends the key of row i to b. A value is valid until fn returns. Look waits for no
	// write, as Scan does.
	Look(ctx context.Context, p Part, n int, key func(b []byte, i int) []byte, fn func(i int, v []byte) error) error
}

// View is the rows as they were at one moment.
type View interface {
	Reader
	Close() error
}

// Rows keeps rows of which several partitions can be changed together.
type Rows interface {
	Partitions
	Reader
	// View returns the rows as they are now. The caller closes it.
	View() View
	// Write stores the rows that fill puts into a batch, all or nothing, whatever is
	// stored. Writes become visible, and durable, in the order in which their fills ran,
	// and with all that their batches hold at once. An engine calls fill at most once,
	// before Write returns, and under a lock: it does no I/O and does not wait. A row is
	// written by Write or by Swap, never by both: Write does not wait for a Swap, and a
	// Swap may compare what a Write is about to replace.
	Write(ctx context.Context, fill func(Batch)) error
	// Post is Write without the wait. What fill puts becomes durable before what any
	// later Write or Swap puts, and a loss of power before that undoes it.
	Post(ctx context.Context, fill func(Batch)) error
	// Failed is closed when the engine has failed and takes no more writes.
	Failed() <-chan struct{}
	// Err says why it has failed; nil while it is well.
	Err() error
}

// Batch takes the rows of a Write. It keeps neither key nor value.
type Batch interface {
	Set(p Part, key, value []byte)
	Delete(p Part, key []byte)
	// Settled calls fn once what the batch holds is durable, or with the error for which
	// it is not, also if the caller of Write has left. Functions are called in the order
	// of their fills and do not wait. After a failure of the engine it may never call fn.
	Settled(fn func(err error))
}
