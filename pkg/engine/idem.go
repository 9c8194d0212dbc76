package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// IdemKey is an Idempotency-Key in its scope.
type IdemKey struct {
	Caller string
	Route  string // e.g. "POST /v1/notifications"
	Key    string
}

// Reservation freezes everything that decides the ids and chunks of a request,
// before its first append: a repeat writes the same records again.
type Reservation struct {
	Key         IdemKey
	Fingerprint [32]byte // of the request body
	Base        notify.Base
	Accepted    int64 // ms since 1970
	Fire        int64 // resolved fire time, ms since 1970; 0: now
	Partitions  uint16
	BlockSize   uint32
	Version     uint16 // of the intake code that split the request
	Owner       string // who is working on it
	LeaseUntil  int64  // ms since 1970; after it anyone may take over
	Expires     int64  // ms since 1970; then the key is forgotten
	Done        bool
	Status      int    // HTTP status of the answer, when Done
	Body        []byte // the answer, when Done
}

// Idem keeps reservations.
type Idem interface {
	// Reserve stores r if its key is free or forgotten (Expires <= now), and
	// returns r and true; else it returns what is stored and false.
	Reserve(ctx context.Context, r Reservation, now int64) (stored Reservation, won bool, err error)
	// TakeOver makes owner the owner until leaseUntil if the stored
	// reservation is not done and its lease is the one in old; false when
	// somebody was faster.
	TakeOver(ctx context.Context, old Reservation, owner string, leaseUntil int64) (bool, error)
	// Freeze stores the layout (Fire, Partitions, BlockSize, Version) of a
	// reservation that owner holds, before its first append;
	// notify.KindConflict when it does not hold it any more.
	Freeze(ctx context.Context, r Reservation) error
	// Finish stores the answer of a reservation.
	Finish(ctx context.Context, key IdemKey, status int, body []byte, expires int64) error
	// Release forgets a reservation that stored nothing, so that its key can
	// be used again: the request was refused before its first append. It does so
	// only while the stored owner and lease equal held's; else it returns
	// notify.KindConflict and the reservation stays: another process took it over and may
	// have appended under its ids. No reservation at all is no error.
	Release(ctx context.Context, held Reservation) error
	// Purge forgets keys with Expires <= now and returns how many.
	Purge(ctx context.Context, now int64) (int, error)
}
