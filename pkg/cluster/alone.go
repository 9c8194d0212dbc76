package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Times of the lease for work that only one process does, for all processes. If that process dies,
// another process continues the work within ten seconds.
const (
	aloneTTL   = 8 * time.Second
	aloneRenew = 2 * time.Second
)

// Exclusive returns a function that calls the function run while this process has the lease
// "part:NAME", where NAME is the parameter name. So normally only one process at a time does this
// work. No fencing token protects the work: for a short while, two processes may do it at the same
// time, and run must be safe in this case. If lease is nil, there is only one process, and
// Exclusive returns run.
func Exclusive(lease engine.Lease, owner, name string, run func(context.Context) error) func(context.Context) error {
	if lease == nil {
		return run
	}
	p := &soloPart{lease: lease, owner: owner, name: "part:" + name, run: run}
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			if got, err := p.callLease(ctx, lease.Acquire); err == nil && got {
				if err := p.runWhileHeld(ctx); err != nil {
					return err
				}
			}
			notify.Sleep(ctx, aloneRenew)
		}
		return nil
	}
}

// soloPart is a part of the work that one process at a time does.
type soloPart struct {
	lease       engine.Lease
	owner, name string
	run         func(context.Context) error
}

// callLease calls Acquire or Renew of the lease with a deadline of aloneRenew.
func (p *soloPart) callLease(ctx context.Context, method func(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)) (bool, error) {
	ctx, stop := context.WithTimeout(ctx, aloneRenew)
	defer stop()
	return method(ctx, p.name, p.owner, aloneTTL)
}

// runWhileHeld runs the part until ctx ends, the part ends, or the lease is lost. If no renewal
// succeeds, runWhileHeld treats the lease as lost before it expires: when aloneRenew is left.
func (p *soloPart) runWhileHeld(ctx context.Context) error {
	held, lost := context.WithCancel(ctx)
	defer lost()
	ended := make(chan error, 1)
	go func() { ended <- p.run(held) }()
	trusted := time.Now().Add(aloneTTL - aloneRenew)
	tick := time.NewTicker(aloneRenew)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if ctx.Err() == nil && held.Err() != nil {
				return nil // the lease was lost and the part stopped: do not release it
			}
			if ctx.Err() == nil && err == nil {
				return errors.New("the task " + p.name + " ended too early: it must run until the process stops")
			}
			call, stop := context.WithTimeout(context.WithoutCancel(ctx), aloneRenew)
			_ = p.lease.Release(call, p.name, p.owner) // if this fails, the lease expires
			stop()
			return err
		case <-tick.C:
		}
		began := time.Now()
		switch got, err := p.callLease(held, p.lease.Renew); {
		case err == nil && got:
			trusted = began.Add(aloneTTL - aloneRenew)
		case err == nil || time.Now().After(trusted):
			lost()
		}
	}
}
