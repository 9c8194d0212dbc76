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

// Clock knows how far this machine's clock is off from the clocks of the servers that all
// processes ask. It is the median, so that one server whose clock is wrong stops no
// process. The methods of a nil Clock, of a process that has no servers, find it right.
type Clock struct {
	Servers []AskClock // empty: there is nothing to compare with
	Log     *slog.Logger

	last atomic.Pointer[reading] // the median when servers were asked last; nil: no server has answered
	each []reading               // the last answer of each server; the goroutine that calls Ask has it
}

// clockEvery is how often servers are asked, clockSlow how long an answer may take to
// say anything, clockKept how long the last answer of a server that does not answer
// counts, and clockRetry what a refused caller is told to wait.
const (
	clockEvery = 2 * time.Second
	clockSlow  = 200 * time.Millisecond
	clockKept  = time.Minute
	clockRetry = 5 * time.Second
)

// MaxClockOffset is how far off the clock of a process may be that owns timers, claims
// triggers or decides whether a time has passed.
const MaxClockOffset = 500 * time.Millisecond

// AskClock says how far a server's clock is ahead of ours, and how long it took
// to ask.
type AskClock func(ctx context.Context) (ahead, took time.Duration, err error)

// reading is how far our clock was ahead of another one at a time of ours.
type reading struct {
	off  time.Duration
	at   time.Time // by the monotonic clock; zero: there is no reading
	wall time.Time // the same moment by the clock that can be set
}

// read returns a reading of now.
func read(off time.Duration) reading {
	now := time.Now()
	return reading{off, now, now.Round(0)}
}

// now returns how far ahead our clock is now: one that was set since is off by as much
// as it went further than the monotonic clock.
func (r *reading) now() time.Duration {
	now := time.Now()
	return r.off + now.Round(0).Sub(r.wall) - now.Sub(r.at)
}

// Offset returns how far off the clock is, above 0 where it is ahead. It returns 0
// before a server has answered.
func (c *Clock) Offset() time.Duration {
	if c == nil {
		return 0
	}
	if r := c.last.Load(); r != nil {
		return r.now()
	}
	return 0
}

// Err returns the error "clock" (notify.KindUnavailable) while the clock is off by more
// than MaxClockOffset. What is computed from it would be wrong.
func (c *Clock) Err() error {
	if off := c.Offset(); off.Abs() > MaxClockOffset {
		return notify.Unavailable("clock", clockRetry, fmt.Errorf("it is %s off from the servers'", off.Round(time.Millisecond)))
	}
	return nil
}

// Run asks until ctx ends. It logs when the clock goes wrong and when it is right again.
func (c *Clock) Run(ctx context.Context) error {
	wrong := false
	for ctx.Err() == nil {
		c.Ask(ctx)
		off := c.Offset().Round(time.Millisecond)
		if is := c.Err() != nil; is != wrong {
			if wrong = is; is {
				c.Log.Error("the clock is off from the servers': this process owns no timers, makes no callbacks and answers 503 to what is due later", "off", off, "most", MaxClockOffset)
			} else {
				c.Log.Info("the clock is right again", "off", off)
			}
		}
		notify.Sleep(ctx, clockEvery)
	}
	return nil
}

// Ask compares once with each server and keeps the median. Half of the way there and
// back is the error that a comparison can have. What an answer does not prove to be off
// counts as right. A server that does not answer counts with its last answer for a
// while, so that one wrong server does not decide when the others are slow.
func (c *Clock) Ask(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if c.each == nil {
		c.each = make([]reading, len(c.Servers))
	}
	var asks sync.WaitGroup
	for i, server := range c.Servers {
		asks.Go(func() {
			if ahead, took, err := server(ctx); err == nil && took <= clockSlow {
				c.each[i] = read(certain(killpoint.Clock()-ahead, took/2))
			}
		})
	}
	asks.Wait()
	var offs []time.Duration
	for i := range c.each {
		if r := &c.each[i]; !r.at.IsZero() && time.Since(r.at) < clockKept {
			offs = append(offs, r.now())
		}
	}
	if len(offs) > 0 {
		r := read(median(offs))
		c.last.Store(&r)
	}
}

// median returns the middle one of offs, which it sorts. Of an even number it returns
// the one of the two in the middle that is nearer to 0: where two servers disagree,
// this machine's clock decides which of them is right.
func median(offs []time.Duration) time.Duration {
	slices.Sort(offs)
	low, high := offs[(len(offs)-1)/2], offs[len(offs)/2]
	if low.Abs() < high.Abs() {
		return low
	}
	return high
}

// certain is the part of a difference that is more than its error.
func certain(off, err time.Duration) time.Duration {
	switch {
	case off > err:
		return off - err
	case off < -err:
		return off + err
	}
	return 0
}
