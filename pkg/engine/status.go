package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Status keeps what became of notifications, by chunk.
type Status interface {
	// Put stores rows; the last write of a key wins. Those of one request (Base)
	// are stored, and seen by readers, all or none of one call. So are all of a call
	// that is refused. An engine of many machines may, after an error, hold those of
	// some requests of the call.
	Put(ctx context.Context, rows []notify.Row) error
	// Get returns the rows of keys, in the order of keys; a key without a row
	// yields a Row whose Key is the zero RowKey.
	Get(ctx context.Context, keys []notify.RowKey) ([]notify.Row, error)
	// Chunk returns every row of one chunk: the original's, those of envelopes
	// derived from it, and receipts, in the order of their keys.
	Chunk(ctx context.Context, c notify.Chunk) ([]notify.Row, error)
	// Request calls fn with every row of a request in the order of their keys,
	// until fn returns an error, which Request returns.
	Request(ctx context.Context, base notify.Base, fn func(*notify.Row) error) error
	// Scan calls fn with every row whose base was made in [from, to) (ms since
	// 1970), in the order of their keys.
	Scan(ctx context.Context, from, to int64, fn func(*notify.Row) error) error
}
