package rig

import (
	"fmt"
	"math/rand/v2"
)

// faultPoints are the places in the code at which notifyd can kill itself. It does so when it
// passes the place for the nth time; n is random, from 1 to maxPasses. A place that notifyd passes
// often has a larger maxPasses, so that the process does not die too soon.
var faultPoints = []struct {
	name      string
	maxPasses int
}{
	{"request-reserved", 60}, {"request-stored", 60}, {"claimed", 60}, {"before-outcome", 60},
	{"outcome-before-handon", 60}, {"handon-before-mark", 60}, {"retries-before-parked", 4}, {"timers-published", 2},
	{"hinted-before-head", 3}, {"head-before-cancelled", 3}, {"moved-before-head", 3},
	{"trigger-indexed", 20}, {"trigger-claimed", 20}, {"trigger-called-before-outcome", 20}, {"trigger-outcome-before-ack", 20},
	{"offsets-committed", 10},
}

// Point returns a random fault point with a random count, in the form that Victim.Start expects.
func Point(rng *rand.Rand) string {
	p := faultPoints[rng.IntN(len(faultPoints))]
	return fmt.Sprintf("%s:%d:kill", p.name, 1+rng.IntN(p.maxPasses))
}

// PointAt does the same as Point for the fault point with this name. It returns an error if there
// is none.
func PointAt(rng *rand.Rand, name string) (string, error) {
	for _, p := range faultPoints {
		if p.name == name {
			return fmt.Sprintf("%s:%d:kill", p.name, 1+rng.IntN(p.maxPasses)), nil
		}
	}
	return "", fmt.Errorf("no fault point is called %q", name)
}
