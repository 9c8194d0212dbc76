package request

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Idem keeps the reservations of Idempotency-Keys.
type Idem interface {
	// Reserve stores r if its key is free or expired (Expires <= now) and returns r and true.
	// Otherwise it returns the stored reservation and false.
	Reserve(ctx context.Context, r engine.Reservation, now int64) (stored engine.Reservation, won bool, err error)
	// TakeOver makes owner the owner until leaseUntil, if the stored reservation is not done and
	// still has the owner and lease of old. It returns false if another request was faster.
	TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (bool, error)
	// Freeze stores the layout (Fire, Partitions, BlockSize, Version) of a reservation, before its
	// owner's first append. It returns notify.KindConflict if the owner does not hold it any more.
	Freeze(ctx context.Context, r engine.Reservation) error
	// Finish stores the answer of a reservation.
	Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error
	// Release deletes a reservation under which nothing was stored, because the request was refused
	// before its first append. The key can then be used again. Release does so only while the
	// stored owner and lease equal those of held. Otherwise it returns notify.KindConflict and the
	// reservation stays: another process took it over and may have appended under its ids. A
	// missing reservation is no error.
	Release(ctx context.Context, held engine.Reservation) error
	// Purge deletes reservations with Expires <= now and returns how many.
	Purge(ctx context.Context, now int64) (int, error)
}
