package limit

import (
	"math"
	"time"
)

// Unlimited is a rate that never makes anybody wait.
const Unlimited = math.MaxFloat64

// Forever is the wait of a Take that can never succeed.
const Forever time.Duration = math.MaxInt64

// tokens is a token bucket without a lock, so that an account can hold two under one.
// It holds up to burst tokens and gains rate tokens per second (0: none, Unlimited: no
// limit). In any span of t seconds at most burst + rate*t are taken.
type tokens struct {
	rate, burst float64
	level       float64
	last        time.Time // level is as of this time
	free        time.Time // end of the penalty; last lies there, too
}

// slack absorbs the rounding of float64: who waited as long as told must be
// served. What is taken is taken in full, so it never adds up.
const slack = 1e-6

func newTokens(now time.Time, rate, burst float64) tokens {
	return tokens{rate: ratePerSecond(rate), burst: burst, level: burst, last: now}
}

// ratePerSecond makes Unlimited, or a share of it, infinite.
func ratePerSecond(rate float64) float64 {
	if rate > Unlimited/1e6 {
		return math.Inf(1)
	}
	return max(rate, 0)
}

// refill brings level up to now.
func (t *tokens) refill(now time.Time) {
	if !now.After(t.last) {
		return
	}
	if math.IsInf(t.rate, 1) {
		t.level = t.burst
	} else {
		t.level = min(t.burst, t.level+t.rate*now.Sub(t.last).Seconds())
	}
	t.last = now
}

// wait returns how long until n tokens are there, 0 when they are.
func (t *tokens) wait(now time.Time, n float64) time.Duration {
	t.refill(now)
	penalty := max(t.free.Sub(now), 0)
	switch {
	case penalty > 0:
	case n <= t.level+slack:
		return 0
	case math.IsInf(t.rate, 1):
		return 0
	}
	short := n - t.level
	switch {
	case math.IsInf(t.rate, 1):
		return penalty
	case n > t.burst+slack:
		return Forever
	case short <= slack:
		return penalty
	}
	ns := math.Ceil(short / t.rate * float64(time.Second))
	if ns >= float64(Forever-penalty) { // also when the rate is 0
		return Forever
	}
	return penalty + time.Duration(ns)
}

// whole returns how many whole tokens are there, at most n.
func (t *tokens) whole(now time.Time, n int) int {
	t.refill(now)
	if t.free.After(now) {
		return 0
	}
	if math.IsInf(t.rate, 1) || t.level+slack >= float64(n) {
		return max(n, 0)
	}
	return max(int(t.level+slack), 0)
}

func (t *tokens) take(n float64) {
	if !math.IsInf(t.rate, 1) {
		t.level -= n
	}
}

// giveBack undoes a take, but for a penalty that has come since: an account that
// was throttled starts empty.
func (t *tokens) giveBack(now time.Time, n float64) {
	t.refill(now)
	if t.free.After(now) || math.IsInf(t.rate, 1) {
		return
	}
	t.level = min(t.burst, t.level+n)
}

func (t *tokens) setRate(now time.Time, rate, burst float64) {
	t.refill(now)
	t.rate, t.burst = ratePerSecond(rate), burst
	t.level = min(t.level, burst)
}

func (t *tokens) penalize(now, until time.Time) {
	t.refill(now)
	if until.After(t.last) {
		t.level, t.last, t.free = min(t.level, 0), until, until
	}
}
