package memory

import (
	"context"
	"sync"
	"time"
)

// Lease keeps leases of one process, on the monotonic clock.
type Lease struct {
	mu   sync.Mutex
	held map[string]held
}

type held struct {
	owner string
	until time.Time
}

// NewLease returns leases that nobody holds.
func NewLease() *Lease { return &Lease{held: map[string]held{}} }

// Acquire takes the lease for ttl if it is free or already owner's.
func (l *Lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.take(ctx, name, owner, ttl, func(h held, live bool) bool { return !live || h.owner == owner })
}

// Renew prolongs it if it is still owner's.
func (l *Lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.take(ctx, name, owner, ttl, func(h held, live bool) bool { return live && h.owner == owner })
}

func (l *Lease) take(ctx context.Context, name, owner string, ttl time.Duration, may func(held, bool) bool) (bool, error) {
	if err := check(ctx); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	h := l.held[name]
	if !may(h, now.Before(h.until)) {
		return false, nil
	}
	l.held[name] = held{owner, now.Add(ttl)}
	return true, nil
}

// Release frees it if it is still owner's.
func (l *Lease) Release(ctx context.Context, name, owner string) error {
	if err := check(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[name].owner == owner {
		delete(l.held, name)
	}
	return nil
}
