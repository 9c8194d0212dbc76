package simulator

import (
	"context"
	"math"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Latency describes how long a provider takes to answer. The zero value means that it answers at
// once. If P99 is 0, every answer takes the time Median. Otherwise the distribution is lognormal,
// because the latencies of real providers have a long tail, too.
type Latency struct {
	Median Duration `json:"median"`
	P99    Duration `json:"p99"` // 0, or at least Median
}

// Constant returns a latency that is always d.
func Constant(d time.Duration) Latency { return Latency{Median: Duration(d)} }

// Lognormal returns a latency with this median and 99th percentile.
func Lognormal(median, p99 time.Duration) Latency {
	return Latency{Median: Duration(median), P99: Duration(p99)}
}

// z99 is the 99th percentile of the standard normal distribution.
const z99 = 2.3263478740408408

// atQuantile returns the latency at a quantile u between 0 and 1.
func (l Latency) atQuantile(u float64) time.Duration {
	if l.P99 <= l.Median || l.Median <= 0 {
		return time.Duration(l.Median)
	}
	sigma := math.Log(float64(l.P99)/float64(l.Median)) / z99
	z := math.Sqrt2 * math.Erfinv(2*u-1)
	return time.Duration(float64(l.Median) * math.Exp(sigma*z))
}

func (l Latency) validate(field string) error {
	if l.Median < 0 || l.P99 < 0 || (l.P99 > 0 && l.P99 < l.Median) || (l.P99 > 0 && l.Median == 0) {
		return notify.Invalid("bad_latency", field, "median and p99 must not be negative; if p99 is set, median must be above 0 and not above p99")
	}
	return nil
}

// sleepOrStop sleeps for the time d. It returns false if ctx ends or the channel stop is closed
// first.
func sleepOrStop(ctx context.Context, stop <-chan struct{}, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	}
}
