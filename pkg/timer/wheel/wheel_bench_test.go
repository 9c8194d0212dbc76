package wheel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkAdvance runs an hour in steps of 1 ms over timers spread over it, at
// random, so that every step misses the caches; the time is per timer fired, with
// its Add and its moves through the levels.
func BenchmarkAdvance(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("pending=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rng := rand.New(rand.NewPCG(1, 2))
				w := New[uint64](start)
				for i := range n {
					w.Add(start+rng.Int64N(hour), uint64(i))
				}
				fired := 0
				for now := start; w.Len() > 0; now++ {
					w.Advance(now, func(uint64) { fired++ })
				}
				if fired != n {
					b.Fatalf("fired %d of %d", fired, n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/timer")
		})
	}
}
