package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Hold says that a notification of a lane of strict order waits, for a retry or
// a later time: the next ones of its user wait behind it.
type Hold struct {
	Lane  string
	User  string
	ID    notify.ID
	Epoch uint16
	Wake  int64 // when it goes on, ms since 1970
}

// Holds keeps, per lane and user, the notifications that wait, in their order.
type Holds interface {
	// Update removes and adds, all or none; where it takes more than a batch of an
	// engine of many machines, by parts. (Lane, User, ID, Epoch) names a
	// hold. A new one goes behind those of its user; one that is there keeps its
	// place and gets the new Wake. Removing one that is not there changes nothing.
	Update(ctx context.Context, add, remove []Hold) error
	// Get returns the holds of users of a lane, the first to go first, in the
	// order of users.
	Get(ctx context.Context, lane string, users []string) ([][]Hold, error)
}
