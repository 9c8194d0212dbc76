package rig

import (
	"fmt"
	"math/rand/v2"
)

// faultPoints are where a kill can be ordered, with the highest count to draw:
// points that are passed often are hit later.
var faultPoints = []struct {
	name string
	most int
}{
	{"request-reserved", 60}, {"request-stored", 60}, {"claimed", 60}, {"before-outcome", 60},
	{"outcome-before-handon", 60}, {"handon-before-mark", 60}, {"retries-before-parked", 4}, {"timers-published", 2},
	{"hinted-before-head", 3}, {"head-before-cancelled", 3}, {"moved-before-head", 3},
	{"trigger-indexed", 20}, {"trigger-claimed", 20}, {"trigger-called-before-outcome", 20}, {"trigger-outcome-before-ack", 20},
	{"offsets-committed", 10},
}

// Point draws a fault point for Start.
func Point(rng *rand.Rand) string {
	p := faultPoints[rng.IntN(len(faultPoints))]
	return fmt.Sprintf("%s:%d:kill", p.name, 1+rng.IntN(p.most))
}

// PointAt is Point for one fault point; an error when there is none of the name.
func PointAt(rng *rand.Rand, name string) (string, error) {
	for _, p := range faultPoints {
		if p.name == name {
			return fmt.Sprintf("%s:%d:kill", p.name, 1+rng.IntN(p.most)), nil
		}
	}
	return "", fmt.Errorf("no fault point is called %q", name)
}
