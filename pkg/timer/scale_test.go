package timer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// countedLease counts what is asked of the lease's server.
type countedLease struct {
	engine.Lease
	asked *atomic.Int64
}

func (l countedLease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	l.asked.Add(1)
	return l.Lease.Acquire(ctx, name, owner, ttl)
}

func (l countedLease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	l.asked.Add(1)
	return l.Lease.Renew(ctx, name, owner, ttl)
}

// TestRestIsCheap: what engines ask of the lease's server while nothing happens does not
// grow with their number times the number of shards, and a shard whose owner dies is
// taken over as fast among many as among two.
func TestRestIsCheap(t *testing.T) {
	const shards = 32
	sizes := []int{3, 12, 48}
	if testing.Short() {
		sizes = sizes[:2]
	}
	rest := map[int]float64{}
	for _, n := range sizes {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, func(c *Config) { c.Shards = shards })
			defer s.close()
			var asked atomic.Int64
			s.counted = &asked
			for i := range n {
				s.start(fmt.Sprint("e", i))
				wait(70 * time.Millisecond) // out of step with each other
			}
			owned := func() (by map[string]int) {
				by = map[string]int{}
				for name, one := range s.nodes {
					if !one.isDead() {
						by[name] = len(one.e.Stats().Shards)
					}
				}
				return by
			}
			sum := func() (all int) {
				for _, k := range owned() {
					all += k
				}
				return all
			}
			wait(3 * time.Minute) // shards find their engines
			if sum() != shards {
				t.Fatalf("%d of %d shards are owned: %v", sum(), shards, owned())
			}
			before := asked.Load()
			wait(time.Minute)
			rest[n] = float64(asked.Load()-before) / 60
			victim := s.nodes["e0"]
			for _, one := range s.nodes {
				if len(one.e.Stats().Shards) > len(victim.e.Stats().Shards) {
					victim = one
				}
			}
			died := time.Now()
			victim.crash()
			for sum() < shards {
				wait(50 * time.Millisecond)
				if time.Since(died) > 20*time.Second {
					t.Fatalf("%d engines: %d of %d shards are owned 20 s after one died", n, sum(), shards)
				}
			}
			took := time.Since(died)
			t.Logf("engines=%d shards=%d rest=%.0f/s takeover=%v", n, shards, rest[n], took)
			if took > 6*time.Second {
				t.Errorf("%d engines: shards were taken over after %v", n, took)
			}
		})
	}
	if few, many := rest[sizes[0]], rest[sizes[len(sizes)-1]]; many > 1.5*few {
		t.Errorf("at rest %.0f requests a second of %d engines, %.0f of %d", few, sizes[0], many, sizes[len(sizes)-1])
	}
}
