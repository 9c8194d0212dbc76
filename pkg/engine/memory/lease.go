package memory

import (
	"context"
	"sync"
	"time"
)

// Lease stores the leases of one process. It uses the monotonic clock.
type Lease struct {
	mu      sync.Mutex
	holders map[string]leaseHolder // by name of the lease; expired leases may remain
}

type leaseHolder struct {
	owner  string
	expiry time.Time
}

// NewLease returns a Lease in which every name is free.
func NewLease() *Lease { return &Lease{holders: map[string]leaseHolder{}} }

// Acquire gives the lease to owner for ttl and returns true if the lease is free or owner
// already has it.
func (l *Lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.holdIf(ctx, name, owner, ttl, func(h leaseHolder, live bool) bool { return !live || h.owner == owner })
}

// Renew makes the lease end at now plus ttl and returns true if owner still has the lease.
func (l *Lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.holdIf(ctx, name, owner, ttl, func(h leaseHolder, live bool) bool { return live && h.owner == owner })
}

// holdIf calls the function allowed with the last holder of the lease, and with live = false if the
// lease of that holder has expired. If allowed returns true, holdIf gives the lease to owner for
// ttl and returns true.
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

// Release frees the lease if owner still has it.
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
