package request

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Idem keeps reservations.
type Idem interface {
	// Reserve stores r if its key is free or forgotten (Expires <= now), and
	// returns r and true; else it returns what is stored and false.
	Reserve(ctx context.Context, r engine.Reservation, now int64) (stored engine.Reservation, won bool, err error)
	// TakeOver makes owner the owner until leaseUntil if the stored
	// reservation is not done and its lease is the one in old; false when
	// somebody was faster.
	TakeOver(ctx context.Context, old engine.Reservation, owner string, leaseUntil int64) (bool, error)
	// Freeze stores the layout (Fire, Partitions, BlockSize, Version) of a
	// reservation that owner holds, before its first append;
	// notify.KindConflict when it does not hold it any more.
	Freeze(ctx context.Context, r engine.Reservation) error
	// Finish stores the answer of a reservation.
	Finish(ctx context.Context, key engine.IdemKey, status int, body []byte, expires int64) error
	// Release forgets a reservation that stored nothing, so that its key can
	// be used again: the request was refused before its first append. It does so
	// only while the stored owner and lease equal held's; else it returns
	// notify.KindConflict and the reservation stays: another process took it over and may
	// have appended under its ids. No reservation at all is no error.
	Release(ctx context.Context, held engine.Reservation) error
	// Purge forgets keys with Expires <= now and returns how many.
	Purge(ctx context.Context, now int64) (int, error)
}
