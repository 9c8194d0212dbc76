package memory

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// Store implements all durable contracts in memory. The code of the contracts is in pkg/store.
// Store keeps its rows in a partRows.
type Store struct{ *store.Contracts }

// New returns an empty store.
func New() *Store { return &Store{store.OnRows(&partRows{parts: map[rows.Partition]*part{}})} }

// checkContext returns notify.KindUnavailable if ctx has ended. The methods of this package
// call it first, because the other engines also return this error.
func checkContext(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return notify.Unavailable("store", 0, context.Cause(ctx))
}
