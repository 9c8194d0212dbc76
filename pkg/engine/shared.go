package engine

import (
	"context"
	"time"
)

// Lease avoids doing the same work twice, like SET NX EX in Redis. It is no proof of
// ownership; a term in the store is.
type Lease interface {
	// Acquire takes the lease for ttl if it is free or owner already holds it.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	// Renew prolongs the lease to ttl from now if owner still holds it.
	Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	// Release frees the lease if owner still holds it.
	Release(ctx context.Context, name, owner string) error
}

// Meta is a small durable table, for example for identities and format versions.
type Meta interface {
	// GetMeta returns the value of a name; nil if there is none.
	GetMeta(ctx context.Context, name string) ([]byte, error)
	// PutMeta stores a value under a name. The last write wins.
	PutMeta(ctx context.Context, name string, value []byte) error
	// SwapMeta stores value under a name if the stored value is old (nil: none). It returns
	// true if value is stored now, even if it was stored before the call. It returns false
	// if another value is stored; the caller reads again. After an error value may be
	// stored. A name must be written only by SwapMeta or only by PutMeta.
	SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error)
}
