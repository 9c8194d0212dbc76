package rig

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// Load starts four streams of load. The first three have ordered single pushes, batches of mails,
// and fan-outs of pushes. The fourth has triggers and scheduled pushes. The parameter rate is the
// number of single pushes per second.
// The parameter later is the number of triggers and scheduled pushes per second, counted together;
// if it is 0, a sixth of the rate is used.
//
// The returned function continues the load for 3 s, stops it, and waits until every request has its
// answer. It returns the promises: everything that the server has acknowledged. It returns an error
// if a stream of load has failed.
func (v *Victim) Load(ctx context.Context, rate, later float64, seed uint64) func() (*Promises, error) {
	if later == 0 {
		later = rate / 6
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Promises{}
	per, some := load.Number(rate), load.Users{Count: 100_000}
	steps := []load.Step{
		{Name: "singles", Target: load.Single, Rate: per, Users: load.Users{Count: 512}, Workers: 32, Addresses: true, Ordered: true, Category: "transactional"},
		{Name: "mail", Target: load.Batch, Rate: per / 5, Size: 20, Users: some, Workers: 2, Addresses: true, Channel: "email", Category: "transactional"},
		{Name: "fan-out", Target: load.Fanout, Rate: per * 3, Size: 1500, Users: some, Workers: 2, Addresses: true},
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(steps)+1)
	for _, st := range steps {
		s := load.SingleStep(st.Name, time.Hour, st) // runs until it is stopped
		s.Seed = seed
		run, err := load.New(s, load.Config{
			Target: &load.HTTP{Client: v.client}, Timeout: 5 * time.Second, Patience: insistLimit,
			Keys:  func(n int64) string { return fmt.Sprintf("%s-%d-%d", st.Name, seed, n) },
			Acked: p.add,
		})
		if err != nil {
			errs <- err
			continue
		}
		wg.Go(func() {
			_, err := run.Run(ctx)
			errs <- err
		})
	}
	wg.Go(func() { errs <- v.loadLater(ctx, later, seed, &p.later) })
	return func() (*Promises, error) {
		// Continue without faults for 3 s, so that requests that failed before are repeated and
		// answered.
		select {
		case <-time.After(3 * time.Second):
		case <-ctx.Done():
		}
		cancel()
		wg.Wait()
		close(errs)
		for err := range errs {
			if err != nil {
				return nil, err
			}
		}
		return p, nil
	}
}

// Promises has the ids of everything that the server has acknowledged.
type Promises struct {
	mu   sync.Mutex
	ids  []string
	fans []load.Ack

	later laterFates
}

func (p *Promises) add(a load.Ack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(a.IDs) > 0 {
		p.ids = append(p.ids, a.IDs...)
		return
	}
	p.fans = append(p.fans, a)
}
