package main

import (
	"fmt"
	"os"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// side is one of the programs that alternate measures in turns, for example the product and its
// reference.
type side struct {
	name string
	run  func(d time.Duration) (perSecond float64)

	best  float64 // units per second in the best round
	cost  float64 // CPU time in ns per unit in the best round
	cores float64 // busy cores in the best round
}

// alternate runs the sides in turns. The first round is short and only warms up. alternate keeps the
// best round of each side, because other programs on the machine can only slow a round down.
func (b *bench) alternate(id string, d time.Duration, sides ...*side) {
	for i := -1; i < b.rounds; i++ {
		for _, s := range sides {
			length := d
			if i < 0 {
				length = d / 4
			}
			sp := b.span(fmt.Sprintf("%s-%s", id, s.name))
			v := s.run(length)
			cores, _ := sp.cores()
			if b.verbose {
				fmt.Fprintf(os.Stderr, "%s %-22s round %2d  %12.0f/s  %.2f cores  %6.0f ns  load %s\n", id, s.name, i, v, cores, cores/v*1e9, rig.LoadAverage())
			}
			if i >= 0 && v > s.best {
				s.best, s.cores, s.cost = v, cores, cores/v*1e9
			}
		}
	}
}

func (b *bench) length(long, short time.Duration) time.Duration {
	switch {
	case b.round > 0:
		return b.round
	case b.short:
		return short
	}
	return long
}
