package engine

import (
	"context"
	"time"
)

// Lease is mutual exclusion for efficiency: SET NX EX. It is no proof of
// ownership; terms in the store are.
type Lease interface {
	// Acquire takes the lease for ttl if it is free or already owner's.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	// Renew prolongs it if it is still owner's.
	Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	// Release frees it if it is still owner's.
	Release(ctx context.Context, name, owner string) error
}

// Meta is a small durable table for identity and format versions.
type Meta interface {
	// GetMeta returns the value of a name; nil when there is none.
	GetMeta(ctx context.Context, name string) ([]byte, error)
	// PutMeta stores a value under a name. The last write wins.
	PutMeta(ctx context.Context, name string, value []byte) error
	// SwapMeta stores value under a name if old is what is stored (nil: nothing is).
	// It returns true when value is stored, also if it was before, and false when
	// something else is: the caller reads again. After an error value may be stored.
	// A name that is swapped must never be put.
	SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error)
}
