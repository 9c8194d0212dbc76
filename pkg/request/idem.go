package request

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Idem stores the reservations of Idempotency-Keys.
type Idem interface {
	// Reserve stores r if its key is free or expired (Expires <= now) and returns r and true.
	// Otherwise it returns the stored reservation and false.
	Reserve(ctx context.Context, r engine.Reservation, now int64) (stored engine.Reservation, won bool, err error)
	// TakeOver gives the reservation to owner until leaseUntil. It does so only if the stored
	// reservation is not done and still has the owner and lease of r. It returns false if another
	// request changed the reservation first.
	TakeOver(ctx context.Context, r engine.Reservation, owner string, leaseUntil int64) (bool, error)
	// Freeze stores the layout (Fire, Partitions, BlockSize, Version) of a reservation. The owner
	// calls it before its first append. Freeze returns notify.KindConflict if the reservation has
	// another owner by now.
	Freeze(ctx context.Context, r engine.Reservation) error
	// Finish stores the answer of a reservation.
	Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error
	// Release deletes a reservation under which nothing was stored, because the request was refused
	// before its first append. The key can then be used again. Release deletes the reservation only
	// if the stored owner and lease equal the owner and lease of r. Otherwise it returns
	// notify.KindConflict and the reservation stays: another process took over the reservation and
	// may have appended records under its ids. A missing reservation is no error.
	Release(ctx context.Context, r engine.Reservation) error
	// Purge deletes reservations with Expires <= now. It returns how many it deleted.
	Purge(ctx context.Context, now int64) (int, error)
}
