package timer

import (
	"context"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config of an Engine. The zero value of a number means its
// default. Every process over one store has the same Spread, Poll, Lookahead,
// WriteTimeout and Skew.
type Config struct {
	Store engine.Timers
	// Schedules decides about timers with a Head. Nil: nobody can touch one.
	Schedules engine.Schedules
	// Cold keeps what is more than ColdAfter ahead. Nil: Store keeps it.
	Cold engine.ColdTimers
	// Queue carries near timers from writers to whoever publishes them; it is
	// this package's alone. Nil: a near timer of a shard that this process does
	// not own waits for the close of its minute. So it is needed where several
	// processes share a store.
	Queue engine.Queue
	// Lease and Heartbeats let several engines share the shards. Without Lease
	// an engine trusts that it is alone, as one with a store of its own is (terms
	// keep another from harm); without Heartbeats it keeps what it has.
	Lease      engine.Lease
	Heartbeats engine.Heartbeats
	Owner      string // name of this engine, unlike that of any other that runs

	// Publish hands due timers on; nil means every one of them is durable where
	// it went. It is called again with the same timers until it succeeds, by
	// several goroutines.
	Publish func(ctx context.Context, ts []engine.Timer) error
	// CaughtUp is called in place of Publish for what is caught up after an
	// outage, so that it can be kept apart, and slowed down by not returning.
	// Nil: Publish is.
	CaughtUp func(ctx context.Context, ts []engine.Timer) error
	// Cancelled records what became of timers whose schedule was cancelled; nil
	// means durable. It is called in place of Publish, in the same way. Without
	// it they are dropped.
	Cancelled func(ctx context.Context, ts []engine.Timer) error

	// Spread says over how many shards timers are spread. The engine asks it for each
	// write and, every Poll, for the shards it competes for. Nil: Shards of them, for
	// as long as the store lives.
	Spread       engine.Shards
	Shards       int           `default:"16"`    // partitions of a minute
	Poll         time.Duration `default:"1s"`    // between loads
	Lookahead    time.Duration `default:"2s"`    // how far ahead of now rows are loaded
	WriteTimeout time.Duration `default:"2s"`    // longest write that is expected
	Skew         time.Duration `default:"500ms"` // largest difference of two clocks
	Grace        time.Duration `default:"10s"`   // from a minute's end to its close
	Batch        int           `default:"512"`   // timers a Publish at most, and rows a scan
	BatchSize    int           `default:"4MiB"`  // bytes of payload a Publish at most, unless one has more
	Publishers   int           `default:"4"`     // Publish calls at once for what is on time

	// Loading pauses at either limit while Publish is slow or refuses. Catching
	// up has a quarter as much on top.
	MaxPending int `default:"131072"` // timers loaded and not acknowledged
	MaxBytes   int `default:"128MiB"` // their payload, in bytes

	// What was due more than CatchUpAfter before an engine came to load it is
	// released by a lane of its own, in due order, so many a second. The rate is that of
	// all engines together: each has the part of it that it owns of the shards.
	CatchUpAfter      time.Duration `default:"10s"`   // at least 2 s more than a take-over lasts
	CatchUpRate       int           `default:"20000"` // timers a second
	CatchUpPublishers int           `default:"2"`     // its Publish calls at once

	LeaseTTL    time.Duration `default:"5s"`     // of a shard
	LeaseRenew  time.Duration `default:"1500ms"` // between renewals
	LeaseMargin time.Duration `default:"1s"`     // trust ends so long before the lease
	LeaseLook   time.Duration `default:"250ms"`  // between a standby's looks
	Beat        time.Duration `default:"5s"`     // between heartbeats

	ColdAfter time.Duration `default:"720h"`
	Retention time.Duration `default:"720h"` // of schedules after their fire time

	// Wall is the clock that due times are compared with; nil: time.Now. Leases
	// and waits use the monotonic clock.
	Wall func() time.Time
	// ClockOffset is how far Wall is off, as far as anybody knows; nil: nobody
	// does. It must not block. An engine whose offset is over MaxClockOffset
	// owns nothing.
	ClockOffset    func() time.Duration
	MaxClockOffset time.Duration `default:"500ms"`

	Logger *slog.Logger `default:"discard"`
	Events Events
}

// Events are told what happens. Nil ones are left out. They are called by many
// goroutines, and must not block.
type Events struct {
	// Released is told of each batch after it was published. A timer's lateness
	// is at - FireAt.
	Released func(lane Lane, ts []engine.Timer, at time.Time)
	// Dropped is told of each timer that its schedule's head kept from being
	// released: it was cancelled, or is of another generation.
	Dropped func(t engine.Timer, head engine.ScheduleHead)
	// Owned and Lost follow the shards of this engine.
	Owned func(shard uint16, term uint64)
	Lost  func(shard uint16, term uint64, cause error)
	// Unhealthy is told when three heartbeats were missed, with the age of the
	// last one; Healthy of the first one after that.
	Unhealthy func(age time.Duration)
	Healthy   func()
}

// Lane is the way a timer was released.
type Lane uint8

// The lanes.
const (
	OnTime  Lane = iota // by the wheel
	CatchUp             // paced, after an outage
	Near                // through the queue
)

func (l Lane) String() string { return [...]string{"on_time", "catch_up", "near"}[l] }

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	if c.CaughtUp == nil {
		c.CaughtUp = c.Publish
	}
	if c.Spread == nil {
		c.Spread = engine.FixedShards(c.Shards)
	}
	if c.Wall == nil {
		c.Wall = time.Now
	}
	c.Events = c.Events.withDefaults()
	return c
}

func (ev Events) withDefaults() Events {
	if ev.Released == nil {
		ev.Released = func(Lane, []engine.Timer, time.Time) {}
	}
	if ev.Dropped == nil {
		ev.Dropped = func(engine.Timer, engine.ScheduleHead) {}
	}
	if ev.Owned == nil {
		ev.Owned = func(uint16, uint64) {}
	}
	if ev.Lost == nil {
		ev.Lost = func(uint16, uint64, error) {}
	}
	if ev.Unhealthy == nil {
		ev.Unhealthy = func(time.Duration) {}
	}
	if ev.Healthy == nil {
		ev.Healthy = func() {}
	}
	return ev
}

// lead is how near a fire time is when a scan may have passed it before the row
// became durable. Such a row is also handed on at once.
func (c *Config) lead() time.Duration {
	return c.Lookahead + max(c.Poll, c.WriteTimeout) + c.Skew
}

// Guard is how long before its fire time a schedule can be touched for the last
// time: a hint that is durable then is read with the row it is about.
func (c Config) Guard() time.Duration {
	c = c.withDefaults()
	return c.Lookahead + c.WriteTimeout + c.Skew
}
