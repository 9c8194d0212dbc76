package app

import (
	"context"
	"sync/atomic"
	"time"
)

// clock knows how far this machine's clock is off from that of a server which
// all processes ask.
type clock struct{ off atomic.Int64 } // ns; above 0: ours is ahead

// clockEvery is how often it is asked, clockSlow what an answer may take to say
// anything.
const (
	clockEvery = 2 * time.Second
	clockSlow  = 200 * time.Millisecond
)

// askClock says how far a server's clock is ahead of ours, and how long it took
// to ask.
type askClock func(ctx context.Context) (ahead, took time.Duration, err error)

// offset is how far off the clock was when it was asked last; 0: nobody knows.
func (c *clock) offset() time.Duration { return time.Duration(c.off.Load()) }

// run asks until ctx ends.
func (c *clock) run(of askClock) func(context.Context) error {
	return func(ctx context.Context) error {
		for ctx.Err() == nil {
			c.ask(ctx, of)
			wait(ctx, clockEvery)
		}
		return nil
	}
}

// ask compares once. Half of the way there and back is the error it can have:
// what an answer does not prove to be off counts as right.
func (c *clock) ask(ctx context.Context, of askClock) {
	call, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	ahead, took, err := of(call)
	if err != nil || took > clockSlow {
		return // what was known last still counts
	}
	c.off.Store(int64(certain(-ahead, took/2)))
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
