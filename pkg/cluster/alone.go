package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// How a part that one process runs for all is held: the lease is renewed often
// enough that a part of a dead process goes on elsewhere within ten seconds.
const (
	aloneTTL   = 8 * time.Second
	aloneRenew = 2 * time.Second
)

// Alone returns run so that one process at a time runs it, by a lease of its name.
// Without a lease (nil) this process is alone. The lease is for efficiency: run must bear
// that another process runs it for a while beside this one.
func Alone(lease engine.Lease, owner, name string, run func(context.Context) error) func(context.Context) error {
	if lease == nil {
		return run
	}
	p := &soloPart{lease: lease, owner: owner, name: "part:" + name, run: run}
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			if got, err := p.ask(ctx, lease.Acquire); err == nil && got {
				if err := p.hold(ctx); err != nil {
					return err
				}
			}
			notify.Sleep(ctx, aloneRenew)
		}
		return nil
	}
}

// soloPart is a part that one process at a time runs.
type soloPart struct {
	lease       engine.Lease
	owner, name string
	run         func(context.Context) error
}

func (p *soloPart) ask(ctx context.Context, question func(ctx context.Context, name, owner string, ttl time.Duration) (bool, error)) (bool, error) {
	ctx, stop := context.WithTimeout(ctx, aloneRenew)
	defer stop()
	return question(ctx, p.name, p.owner, aloneTTL)
}

// hold runs the part for as long as its lease can be renewed.
func (p *soloPart) hold(ctx context.Context) error {
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
				return nil // it was stopped: the lease is another's
			}
			if ctx.Err() == nil && err == nil {
				return errors.New("ended by itself")
			}
			call, stop := context.WithTimeout(context.WithoutCancel(ctx), aloneRenew)
			_ = p.lease.Release(call, p.name, p.owner) // else it runs out
			stop()
			return err
		case <-tick.C:
		}
		began := time.Now()
		switch got, err := p.ask(held, p.lease.Renew); {
		case err == nil && got:
			trusted = began.Add(aloneTTL - aloneRenew)
		case err == nil || time.Now().After(trusted):
			lost()
		}
	}
}
