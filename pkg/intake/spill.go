package intake

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Spill is the bounded buffer of critical records while the log is away.
type Spill interface {
	// Push stores records in order; notify.KindUnavailable when limit bytes
	// would be passed, and nothing is stored.
	Push(ctx context.Context, recs []engine.Spilled, limit int64) error
	// Peek returns the oldest max records.
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
	// Drop removes the records up to seq, which are in the log now.
	Drop(ctx context.Context, seq uint64) error
	// Stats returns how many records and bytes wait, and since when (ms since
	// 1970; 0 when empty).
	Stats(ctx context.Context) (records, bytes, oldest int64, err error)
}
