package engine

import (
	"context"
	"time"
)

// Lease lets one process at a time do some work, like SET NX EX in Redis. A lease only
// makes it unlikely that two processes do the same work. It does not prove ownership,
// because two processes may believe at the same time that they have the lease. Only a term
// in the store proves ownership.
type Lease interface {
	// Acquire gives the lease to owner for ttl and returns true if the lease is free or
	// owner already has it.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	// Renew makes the lease end at now plus ttl and returns true if owner still has the
	// lease.
	Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)
	// Release frees the lease if owner still has it.
	Release(ctx context.Context, name, owner string) error
}

// Meta is a small durable table, for example for identities and format versions.
type Meta interface {
	// GetMeta returns the value of a name; nil if the name has no value.
	GetMeta(ctx context.Context, name string) ([]byte, error)
	// PutMeta stores a value under a name. The last write wins.
	PutMeta(ctx context.Context, name string, value []byte) error
	// SwapMeta stores newValue under a name if the stored value is oldValue. If oldValue is
	// nil, the name must have no value. SwapMeta returns true if newValue is stored when it
	// returns, even if newValue was stored before the call. It returns false if another
	// value is stored; the caller must then read the name again. After an error newValue
	// may be stored. All writers of a name must use SwapMeta, or all must use PutMeta.
	SwapMeta(ctx context.Context, name string, oldValue, newValue []byte) (bool, error)
}
