package memory

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// Store implements every durable contract with pkg/store over partRows.
type Store struct{ *store.Contracts }

// New returns an empty store.
func New() *Store { return &Store{store.OnRows(&partRows{parts: map[rows.Partition]*part{}})} }

// checkContext returns notify.KindUnavailable if ctx has ended, as every other engine does.
func checkContext(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return notify.Unavailable("store", 0, context.Cause(ctx))
}
