package timer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// The reasons why a tenure ended.
var (
	errExpired    = errors.New("the lease could not be renewed in time")
	errLeaseGone  = errors.New("another process has the lease")
	errStale      = errors.New("another process has taken the shard over")
	errClock      = errors.New("this machine's clock differs too much from the servers' clocks")
	errHandedOver = errors.New("the shard was handed over to another process")
	errNoStore    = errors.New("the store did not answer while the shard was being taken over")
)

// handOverReserve is how long a shard that is handed over is reserved for its new owner.
const handOverReserve = 2 * time.Second

func lockName(n uint16) string     { return fmt.Sprintf("lock:%d", n) }
func handOverName(n uint16) string { return fmt.Sprintf("handover:%d", n) }

// keepShard competes for a shard until ctx ends. While it has the lease, it serves the shard.
func (e *Engine) keepShard(ctx context.Context, n uint16) {
	wait := time.Duration(0)
	for notify.Sleep(ctx, wait) {
		wait = e.cfg.LeaseLook
		if e.clockOff() {
			continue
		}
		if stands, change := e.members.isStandby(n); !stands {
			select {
			case <-change:
				wait = 0
			case <-ctx.Done():
			}
			continue
		}
		t, err := e.acquire(ctx, n)
		if err != nil && ctx.Err() == nil {
			e.complaints.report("cannot acquire leases of timer shards", err)
		}
		if t != nil {
			wait = e.serve(ctx, t)
		}
	}
}

// acquire tries to acquire the lease of a shard. It returns nil if another engine has the lease or
// the shard is reserved. The time for which the tenure trusts the lease begins before the call,
// because the lease may begin at any time during the call.
func (e *Engine) acquire(ctx context.Context, n uint16) (*tenure, error) {
	if e.cfg.Lease == nil {
		return newTenure(e, n, math.MaxInt64), nil
	}
	trusted := e.clock() + e.cfg.LeaseTTL - e.cfg.LeaseMargin
	call, stop := context.WithTimeout(ctx, e.cfg.LeaseTTL-e.cfg.LeaseMargin)
	defer stop()
	won, err := e.cfg.Lease.Acquire(call, lockName(n), e.cfg.Owner, e.cfg.LeaseTTL)
	if err != nil || !won {
		return nil, err
	}
	if e.cfg.Heartbeats != nil {
		// During a hand-over the shard is reserved for its new owner. Without this check another
		// engine could acquire the shard first, and would have to hand it over again.
		mine, err := e.cfg.Lease.Acquire(call, handOverName(n), e.cfg.Owner, e.cfg.LeaseLook)
		if err == nil && mine {
			err = e.cfg.Lease.Release(call, handOverName(n), e.cfg.Owner)
		}
		if err != nil || !mine {
			return nil, errors.Join(err, e.cfg.Lease.Release(call, lockName(n), e.cfg.Owner))
		}
	}
	return newTenure(e, n, trusted), nil
}

// serve runs a tenure until it ends. It returns how long this engine must wait before it competes
// for the shard again.
func (e *Engine) serve(ctx context.Context, t *tenure) time.Duration {
	ctx, end := context.WithCancelCause(ctx)
	t.end = end
	expire := time.AfterFunc(t.ownedFor(), func() {
		end(errExpired)
		e.dropTenure(t)
	})
	var work sync.WaitGroup
	work.Go(func() { t.run(ctx) })
	t.renew(ctx, expire)
	expire.Stop()
	cause := context.Cause(ctx)
	e.dropTenure(t) // before any call that may block
	end(nil)
	work.Wait()

	e.mu.Lock()
	term, ready := t.state.Term, t.tookOver
	e.mu.Unlock()
	if ready {
		e.cfg.Events.Lost(t.shard, term, cause)
	}
	switch {
	case errors.Is(cause, errHandedOver), errors.Is(cause, errClock), errors.Is(cause, errNoStore), errors.Is(cause, context.Canceled):
		e.giveBack(ctx, t, cause)
	default:
		e.counters.lost.Add(1)
		e.cfg.Logger.Warn("lost a timer shard", "shard", t.shard, "term", term, "cause", cause)
	}
	switch {
	case errors.Is(cause, errHandedOver):
		return handOverReserve
	case errors.Is(cause, errStale), errors.Is(cause, errNoStore):
		return e.cfg.LeaseTTL // time for an engine that reaches the store to acquire the shard
	}
	return e.cfg.LeaseLook
}

// giveBack waits until no entry of the shard is being published, and then releases the lease. So
// the next owner need not wait until the lease expires.
func (e *Engine) giveBack(ctx context.Context, t *tenure, cause error) {
	if e.cfg.Lease == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), min(t.ownedFor(), e.cfg.LeaseTTL))
	defer stop()
	select {
	case <-t.idle:
	case <-ctx.Done():
		return // the lease expires without a release
	}
	if errors.Is(cause, errHandedOver) {
		if _, err := e.cfg.Lease.Acquire(ctx, handOverName(t.shard), t.heir, handOverReserve); err != nil {
			e.complaints.log10s("cannot reserve a timer shard for its next owner; any engine may take the shard over", err)
		}
	}
	if err := e.cfg.Lease.Release(ctx, lockName(t.shard), e.cfg.Owner); err != nil {
		e.complaints.log10s("cannot release the lease of a timer shard; the lease expires by itself", err)
	}
}

// storePatience is how long an owner may fail to reach its store before it gives back a shard. It
// gives back the shard only if there are other engines, because they may still reach the store.
const storePatience = 30 * time.Second

// storeUnreachable returns true if the owner should give back the shard because it cannot reach the
// store and another engine may reach it.
func (e *Engine) storeUnreachable(t *tenure) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.tookOver && e.clock()-t.storeWorked > storePatience && len(e.members.alive) > 1
}
