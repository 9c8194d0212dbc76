package memory

import (
	"context"
	"sync"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/rows"
	"github.com/notifyd/notifyd/pkg/store"
)

// Store holds every durable contract. One mutex guards all of it, so each call
// is atomic and visible at once.
type Store struct {
	*store.Contracts // over rows.go

	mu        sync.Mutex
	triggered map[string]engine.Trigger
	queues    map[string]*queue
}

// New returns an empty store.
func New() *Store {
	return &Store{
		Contracts: store.Over(&partRows{parts: map[rows.Part]*part{}}),
		triggered: map[string]engine.Trigger{},
		queues:    map[string]*queue{},
	}
}

// The contracts; those that are missing here are store.Contracts.

// check makes a context that has ended what it is in every engine.
func check(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return notify.Unavailable("store", 0, context.Cause(ctx))
}

func clamp(n, limit int) int { return min(n, max(limit, 0)) }
