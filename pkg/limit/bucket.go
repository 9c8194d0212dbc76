package limit

import (
	"math"
	"time"
)

// Unlimited is a rate that lets every message pass at once.
const Unlimited = math.MaxFloat64

// Forever is the wait for tokens that will never be available.
const Forever time.Duration = math.MaxInt64

// tokens is a token bucket without a lock, so that an account can keep two buckets under one
// lock. The field burst is the greatest number of tokens that it can contain, and rate is the
// number of tokens that it gains per second. A rate of 0 adds no tokens; Unlimited means no
// limit. In any t seconds callers use at most burst + rate*t tokens.
type tokens struct {
	rate, burst float64
	level       float64
	levelAsOf   time.Time // the time for which level is computed
	penaltyEnd  time.Time // the bucket gives no tokens before this time, see penalize; levelAsOf is not before it
}

// slack absorbs the rounding of float64. Without this margin, a caller that waited exactly the
// returned time could be refused. The method take subtracts the full amount, so the margins of
// several calls never add up.
const slack = 1e-6

func newTokens(now time.Time, rate, burst float64) tokens {
	return tokens{rate: ratePerSecond(rate), burst: burst, level: burst, levelAsOf: now}
}

// ratePerSecond returns +Inf for Unlimited and for a share of Unlimited, and 0 for a negative rate.
func ratePerSecond(rate float64) float64 {
	if rate > Unlimited/1e6 {
		return math.Inf(1)
	}
	return max(rate, 0)
}

// refill adds to the level the tokens that the bucket has gained until now.
func (t *tokens) refill(now time.Time) {
	if !now.After(t.levelAsOf) {
		return
	}
	if math.IsInf(t.rate, 1) {
		t.level = t.burst
	} else {
		t.level = min(t.burst, t.level+t.rate*now.Sub(t.levelAsOf).Seconds())
	}
	t.levelAsOf = now
}

// wait returns the time until n tokens are available. It returns 0 if they are available now, and
// Forever if they never will be.
func (t *tokens) wait(now time.Time, n float64) time.Duration {
	t.refill(now)
	penalty := max(t.penaltyEnd.Sub(now), 0)
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

// wholeTokens returns the smaller of n and the number of whole tokens in the bucket. It returns
// 0 before penaltyEnd.
func (t *tokens) wholeTokens(now time.Time, n int) int {
	t.refill(now)
	if t.penaltyEnd.After(now) {
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

// giveBack puts back n tokens that the method take subtracted. Before penaltyEnd it does nothing,
// because a throttled account must start with an empty bucket.
func (t *tokens) giveBack(now time.Time, n float64) {
	t.refill(now)
	if t.penaltyEnd.After(now) || math.IsInf(t.rate, 1) {
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
	if until.After(t.levelAsOf) {
		t.level, t.levelAsOf, t.penaltyEnd = min(t.level, 0), until, until
	}
}
