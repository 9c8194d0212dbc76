package victim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/load"
)

// Load starts four streams of load: ordered single pushes, batches of mail,
// fan-outs of pushes, and triggers and scheduled pushes. rate is of single
// pushes a second, later of triggers and scheduled pushes together; 0: a sixth
// of rate. The function it returns stops them, brings what is under way to its
// answer, and says what was promised.
func (v *Victim) Load(ctx context.Context, rate, later float64, seed uint64) func() (*Promises, error) {
	if later == 0 {
		later = rate / 6
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Promises{}
	scenarios := []load.Scenario{
		{Name: "singles", Target: load.Single, Rate: rate, Users: 512, Workers: 32, Address: true, Ordered: true, Category: "transactional"},
		{Name: "mail", Target: load.Batch, Rate: rate / 5, Size: 20, Users: 100_000, Workers: 2, Address: true, Channel: "email", Category: "transactional"},
		{Name: "fan-out", Target: load.Fanout, Rate: rate * 3, Size: 1500, Users: 100_000, Workers: 2, Address: true},
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(scenarios)+1)
	for _, s := range scenarios {
		s.Duration = time.Hour // until it is stopped
		s.Seed = seed
		target, err := load.NewHTTP(s, v.client)
		if err != nil {
			errs <- err
			continue
		}
		wg.Go(func() {
			_, err := load.Run(ctx, s, load.Config{
				Target: target, Timeout: 5 * time.Second, Patience: insistLimit,
				Keys:  func(n int64) string { return fmt.Sprintf("%s-%d-%d", s.Name, seed, n) },
				Acked: p.add,
			})
			errs <- err
		})
	}
	wg.Go(func() { errs <- v.loadLater(ctx, later, seed, &p.later) })
	return func() (*Promises, error) {
		// A moment of undisturbed load, so that what failed meanwhile is
		// repeated and answered.
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

// Promises are the ids the server answered for.
type Promises struct {
	mu   sync.Mutex
	ids  []string
	fans []load.Acked

	later later
}

func (p *Promises) add(a load.Acked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(a.IDs) > 0 {
		p.ids = append(p.ids, a.IDs...)
		return
	}
	p.fans = append(p.fans, a)
}
