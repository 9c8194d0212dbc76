package engine

import "context"

// Spilled is one record that waits for the log to come back.
type Spilled struct {
	Seq   uint64 // set by Push, ascending
	Topic string
	Key   []byte
	Part  int32
	Value []byte
	At    int64 // when it was spilled, ms since 1970
}

// Spill is the bounded buffer of critical records while the log is away.
type Spill interface {
	// Push stores records in order; notify.KindUnavailable when limit bytes
	// would be passed, and nothing is stored.
	Push(ctx context.Context, recs []Spilled, limit int64) error
	// Peek returns the oldest max records.
	Peek(ctx context.Context, max int) ([]Spilled, error)
	// Drop removes the records up to seq, which are in the log now.
	Drop(ctx context.Context, seq uint64) error
	// Stats returns how many records and bytes wait, and since when (ms since
	// 1970; 0 when empty).
	Stats(ctx context.Context) (records, bytes, oldest int64, err error)
}
