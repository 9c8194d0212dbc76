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

// Why a tenure ended.
var (
	errExpired    = errors.New("the lease could not be renewed in time")
	errLeaseGone  = errors.New("the lease is another's")
	errStale      = errors.New("another owner has taken the shard over")
	errClock      = errors.New("the clock is off by too much")
	errHandedOver = errors.New("handed over to another engine")
	errNoStore    = errors.New("the store did not answer the take-over")
)

// reservation is how long a shard that is handed over is kept for the one it is
// meant for.
const reservation = 2 * time.Second

func lockName(n uint16) string     { return fmt.Sprintf("lock:%d", n) }
func handOverName(n uint16) string { return fmt.Sprintf("handover:%d", n) }

// keep competes for a shard and serves it while it has it, until ctx ends.
func (e *Engine) keep(ctx context.Context, n uint16) {
	wait := time.Duration(0)
	for notify.Sleep(ctx, wait) {
		wait = e.cfg.LeaseLook
		if e.clockOff() {
			continue
		}
		if stands, change := e.members.standsFor(n); !stands {
			select {
			case <-change:
				wait = 0
			case <-ctx.Done():
			}
			continue
		}
		t, err := e.acquire(ctx, n)
		if err != nil && ctx.Err() == nil {
			e.troubl.say("cannot acquire leases of timer shards", err)
		}
		if t != nil {
			wait = e.serve(ctx, t)
		}
	}
}

// acquire takes the lease of a shard if it is free. Trust counts from before the
// call: the lease may have begun at any moment of it.
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
		// A shard that is being handed over is meant for one engine only: else
		// it would go from hand to hand.
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

// serve is a tenure from its lease to its end. It returns how long to keep away
// from the shard.
func (e *Engine) serve(ctx context.Context, t *tenure) time.Duration {
	ctx, end := context.WithCancelCause(ctx)
	t.end = end
	expire := time.AfterFunc(t.trust(), func() {
		end(errExpired)
		e.drop(t)
	})
	var work sync.WaitGroup
	work.Go(func() { t.run(ctx) })
	t.renew(ctx, expire)
	expire.Stop()
	cause := context.Cause(ctx)
	e.drop(t) // before anything that may block
	end(nil)
	work.Wait()

	e.mu.Lock()
	term, ready := t.state.Term, t.ready
	e.mu.Unlock()
	if ready {
		e.cfg.Events.Lost(t.n, term, cause)
	}
	switch {
	case errors.Is(cause, errHandedOver), errors.Is(cause, errClock), errors.Is(cause, errNoStore), errors.Is(cause, context.Canceled):
		e.giveBack(ctx, t, cause)
	default:
		e.count.lost.Add(1)
		e.cfg.Logger.Warn("lost a timer shard", "shard", t.n, "term", term, "cause", cause)
	}
	switch {
	case errors.Is(cause, errHandedOver):
		return reservation
	case errors.Is(cause, errStale), errors.Is(cause, errNoStore):
		return e.cfg.LeaseTTL // whoever can do better may
	}
	return e.cfg.LeaseLook
}

// giveBack frees the lease once nothing of the shard is being published, so that
// the next owner need not wait for its end.
func (e *Engine) giveBack(ctx context.Context, t *tenure, cause error) {
	if e.cfg.Lease == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), min(t.trust(), e.cfg.LeaseTTL))
	defer stop()
	select {
	case <-t.quiet:
	case <-ctx.Done():
		return // it runs out by itself
	}
	if errors.Is(cause, errHandedOver) {
		if _, err := e.cfg.Lease.Acquire(ctx, handOverName(t.n), t.heir, reservation); err != nil {
			e.troubl.say("cannot reserve a timer shard for its next owner", err)
		}
	}
	if err := e.cfg.Lease.Release(ctx, lockName(t.n), e.cfg.Owner); err != nil {
		e.troubl.say("cannot release the lease of a timer shard", err)
	}
}

// patience is how long an owner may fail at its store while there are others who
// may have a better way to it.
const patience = 30 * time.Second

// useless reports whether another engine should try.
func (e *Engine) useless(t *tenure) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.ready && e.clock()-t.worked > patience && len(e.members.alive) > 1
}
