package main

import (
	"fmt"
	"os"
	"time"

	"github.com/notifyd/notifyd/tests/internal/rig"
)

// side is one of the things measured in turns.
type side struct {
	name string
	run  func(d time.Duration) (perSecond float64)

	best  float64 // per second
	cost  float64 // CPU ns per unit, of the best round
	cores float64
}

// alternate runs the sides in turns after one short round each to warm up, and
// keeps the best of each: what the machine can do when others leave it alone.
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
