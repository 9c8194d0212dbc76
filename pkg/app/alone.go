package app

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// How a part that one process runs for all is held: the lease is renewed often
// enough that a part of a dead process goes on elsewhere within ten seconds.
const (
	aloneTTL   = 8 * time.Second
	aloneRenew = 2 * time.Second
)

// alone makes a part run in one process at a time, by a lease of its name. Where
// there is no lease this process is alone. The lease is for efficiency: a part
// must bear that another one runs for a while beside it.
func (n *Node) alone(name string, run func(context.Context) error) func(context.Context) error {
	if n.st.lease == nil {
		return run
	}
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			call, stop := context.WithTimeout(ctx, aloneRenew)
			got, err := n.st.lease.Acquire(call, "part:"+name, n.owner, aloneTTL)
			stop()
			if err == nil && got {
				if err := n.holding(ctx, name, run); err != nil {
					return err
				}
			}
			notify.Sleep(ctx, aloneRenew)
		}
		return nil
	}
}

// holding runs a part for as long as its lease can be renewed.
func (n *Node) holding(ctx context.Context, name string, run func(context.Context) error) error {
	held, lost := context.WithCancel(ctx)
	defer lost()
	ended := make(chan error, 1)
	go func() { ended <- run(held) }()
	trusted := time.Now().Add(aloneTTL - aloneRenew)
	tick := time.NewTicker(aloneRenew)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if ctx.Err() == nil && held.Err() == nil && err == nil {
				return endOf(ctx, nil)
			}
			if held.Err() != nil && ctx.Err() == nil {
				return nil // it was stopped: the lease is another's
			}
			call, stop := context.WithTimeout(context.WithoutCancel(ctx), aloneRenew)
			_ = n.st.lease.Release(call, "part:"+name, n.owner) // else it runs out
			stop()
			return err
		case <-tick.C:
		}
		began := time.Now()
		call, stop := context.WithTimeout(held, aloneRenew)
		got, err := n.st.lease.Renew(call, "part:"+name, n.owner, aloneTTL)
		stop()
		switch {
		case err == nil && got:
			trusted = began.Add(aloneTTL - aloneRenew)
		case err == nil || time.Now().After(trusted):
			lost()
		}
	}
}
