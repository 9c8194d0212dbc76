package memory

import (
	"context"
	"sync"
	"time"
)

// Lease keeps the leases of one process, on the monotonic clock.
type Lease struct {
	mu      sync.Mutex
	holders map[string]leaseHolder // by name of the lease; expired ones may remain
}

type leaseHolder struct {
	owner  string
	expiry time.Time
}

// NewLease returns a Lease of which every name is free.
func NewLease() *Lease { return &Lease{holders: map[string]leaseHolder{}} }

// Acquire takes the lease for ttl if it is free or owner already holds it.
func (l *Lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.holdIf(ctx, name, owner, ttl, func(h leaseHolder, live bool) bool { return !live || h.owner == owner })
}

// Renew prolongs the lease to ttl from now if owner still holds it.
func (l *Lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.holdIf(ctx, name, owner, ttl, func(h leaseHolder, live bool) bool { return live && h.owner == owner })
}

// holdIf gives the lease to owner for ttl if allowed returns true for its last holder. live
// is false if that holder's lease has expired.
func (l *Lease) holdIf(ctx context.Context, name, owner string, ttl time.Duration, allowed func(last leaseHolder, live bool) bool) (bool, error) {
	if err := checkContext(ctx); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	h := l.holders[name]
	if !allowed(h, now.Before(h.expiry)) {
		return false, nil
	}
	l.holders[name] = leaseHolder{owner, now.Add(ttl)}
	return true, nil
}

// Release frees the lease if owner still holds it.
func (l *Lease) Release(ctx context.Context, name, owner string) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holders[name].owner == owner {
		delete(l.holders, name)
	}
	return nil
}
