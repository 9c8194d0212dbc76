package memory

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// Store holds every durable contract, over rows.go.
type Store struct{ *store.Contracts }

// New returns an empty store.
func New() *Store { return &Store{store.Over(&partRows{parts: map[rows.Part]*part{}})} }

// check makes a context that has ended what it is in every engine.
func check(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return notify.Unavailable("store", 0, context.Cause(ctx))
}
