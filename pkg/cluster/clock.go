package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Clock measures the difference between this machine's clock and the clocks of the servers of the
// cluster. It uses the median of the differences, so one server with a wrong clock stops no
// process. A process without servers has a nil Clock; its methods report that the clock is right.
type Clock struct {
	Servers []AskClock // empty: there is no other clock
	Log     *slog.Logger

	medianReading  atomic.Pointer[offsetReading] // result of the last Ask; nil: no server has answered yet
	serverReadings []offsetReading               // last answer of each server; only the goroutine that calls Ask uses it
}

// clockEvery is the time between two comparisons. An answer that takes longer than clockSlow is
// ignored. If a server does not answer any more, its last answer counts for the time clockKept. If
// a request is refused because the clock is wrong, clockRetry is its Retry-After.
const (
	clockEvery = 2 * time.Second
	clockSlow  = 200 * time.Millisecond
	clockKept  = time.Minute
	clockRetry = 5 * time.Second
)

// MaxClockOffset is the largest allowed clock offset for a process that owns timers, claims
// triggers or decides whether a time has passed.
const MaxClockOffset = 500 * time.Millisecond

// AskClock returns how far a server's clock is ahead of this machine's clock, and how long the
// request took.
type AskClock func(ctx context.Context) (ahead, took time.Duration, err error)

// offsetReading says how far this machine's clock was ahead of another clock when both were compared.
type offsetReading struct {
	off  time.Duration
	at   time.Time // with the monotonic clock; zero: there is no reading
	wall time.Time // the same moment, only by the wall clock
}

// newReading returns a reading of the offset off. The time of the reading is now.
func newReading(off time.Duration) offsetReading {
	now := time.Now()
	return offsetReading{off, now, now.Round(0)}
}

// aheadNow returns how far this machine's clock is ahead now. The clock may have been set since
// the reading. Then the wall time has advanced by more or less than the monotonic time, and
// aheadNow adds this difference to the offset.
func (r *offsetReading) aheadNow() time.Duration {
	now := time.Now()
	return r.off + now.Round(0).Sub(r.wall) - now.Sub(r.at)
}

// Offset returns how far this machine's clock is ahead of the servers' clocks. A negative value means
// that this machine's clock is behind. Before a server has answered, Offset returns 0.
func (c *Clock) Offset() time.Duration {
	if c == nil {
		return 0
	}
	if r := c.medianReading.Load(); r != nil {
		return r.aheadNow()
	}
	return 0
}

// Err returns the error "clock" (notify.KindUnavailable) while the clock is wrong by more than
// MaxClockOffset. Times that are computed from a wrong clock would be wrong.
func (c *Clock) Err() error {
	if off := c.Offset(); off.Abs() > MaxClockOffset {
		return notify.Unavailable("clock", clockRetry, fmt.Errorf("this machine's clock differs from the servers' clocks by %s; the maximum is %s", off.Round(time.Millisecond), MaxClockOffset))
	}
	return nil
}

// Run calls Ask every clockEvery until ctx ends. It logs when the clock becomes wrong and
// when it is right again.
func (c *Clock) Run(ctx context.Context) error {
	wrong := false
	for ctx.Err() == nil {
		c.Ask(ctx)
		off := c.Offset().Round(time.Millisecond)
		if is := c.Err() != nil; is != wrong {
			if wrong = is; is {
				c.Log.Error("this machine's clock differs from the servers' clocks: this process owns no timers, makes no callbacks and answers 503 to requests that are due later", "off", off, "most", MaxClockOffset)
			} else {
				c.Log.Info("this machine's clock is right again", "off", off)
			}
		}
		notify.Sleep(ctx, clockEvery)
	}
	return nil
}

// Ask compares the clock once with each server and keeps the median offset. The error of a
// comparison is at most half of the round trip. Ask assumes this error and uses the smallest offset
// that is then possible. If a server does not answer, Ask uses its last answer for the time
// clockKept. So one server with a wrong clock does not determine the median alone while the other
// servers are slow.
func (c *Clock) Ask(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if c.serverReadings == nil {
		c.serverReadings = make([]offsetReading, len(c.Servers))
	}
	var asks sync.WaitGroup
	for i, server := range c.Servers {
		asks.Go(func() {
			if ahead, took, err := server(ctx); err == nil && took <= clockSlow {
				c.serverReadings[i] = newReading(provenOffset(killpoint.Clock()-ahead, took/2))
			}
		})
	}
	asks.Wait()
	var offs []time.Duration
	for i := range c.serverReadings {
		if r := &c.serverReadings[i]; !r.at.IsZero() && time.Since(r.at) < clockKept {
			offs = append(offs, r.aheadNow())
		}
	}
	if len(offs) > 0 {
		r := newReading(medianOffset(offs))
		c.medianReading.Store(&r)
	}
}

// medianOffset sorts offs and returns the median. If there are two middle offsets, it returns the
// one nearer to 0. So if two servers disagree, the server that is closer to this machine's clock
// counts.
func medianOffset(offs []time.Duration) time.Duration {
	slices.Sort(offs)
	low, high := offs[(len(offs)-1)/2], offs[len(offs)/2]
	if low.Abs() < high.Abs() {
		return low
	}
	return high
}

// provenOffset returns the smallest offset that is possible if offset was measured with an error of at
// most maxError.
func provenOffset(offset, maxError time.Duration) time.Duration {
	switch {
	case offset > maxError:
		return offset - maxError
	case offset < -maxError:
		return offset + maxError
	}
	return 0
}
