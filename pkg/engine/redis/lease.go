package redis

import (
	"context"
	"time"

	client "github.com/redis/go-redis/v9"
)

type lease struct{ s *Store }

var (
	leaseAcquire = client.NewScript(`
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)
	leaseRenew = client.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`)
	leaseRelease = client.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])`)
)

// runBool runs a script that returns 1 or 0 on the key of a lease.
func (l lease) runBool(ctx context.Context, sc *client.Script, name, owner string, ttl time.Duration) (bool, error) {
	if ctx.Err() != nil {
		return false, translate(context.Cause(ctx))
	}
	n, err := sc.Run(ctx, l.s.c, []string{l.s.key("lease:" + name)}, owner, max(ttl.Milliseconds(), 1)).Int()
	return n == 1, translate(err)
}

// Acquire gives the lease to the given owner for the duration ttl and returns true, if the lease
// is free or this owner already has it. Otherwise it returns false.
func (l lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.runBool(ctx, leaseAcquire, name, owner, ttl)
}

// Renew makes the lease end after the duration ttl from now and returns true, if the given owner
// still has the lease. Otherwise it returns false.
func (l lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return l.runBool(ctx, leaseRenew, name, owner, ttl)
}

// Release frees the lease if the given owner still has it.
func (l lease) Release(ctx context.Context, name, owner string) error {
	_, err := l.runBool(ctx, leaseRelease, name, owner, 0)
	return err
}
