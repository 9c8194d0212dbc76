package timer

import (
	"context"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config configures an Engine. The zero value of a number means its default. All processes over one
// store must have the same Spread, Poll, Lookahead, WriteTimeout and Skew.
type Config struct {
	Store engine.Timers
	// Schedules holds the heads that decide about timers with a Head. Nil: no schedule can be
	// cancelled or moved.
	Schedules engine.Schedules
	// Cold keeps timers more than ColdAfter ahead. Nil: Store keeps them.
	Cold engine.ColdTimers
	// Queue carries near timers from writers to the engine that publishes them. No other package
	// may use it. Without it, a near timer of a shard that this process does not own waits until
	// its minute is closed. So it is needed if several processes share a store.
	Queue engine.Queue
	// Lease and Heartbeats let several engines share the shards. Without Lease an engine assumes
	// that it is alone, which is true for an engine with a store of its own; terms prevent harm if
	// it is not. Without Heartbeats an engine keeps every shard it has.
	Lease      engine.Lease
	Heartbeats engine.Heartbeats
	Owner      string // name of this engine; no two running engines may have the same

	// Publish hands on due timers. A nil error means that each is durable where it was sent. It is
	// called again with the same timers until it succeeds, by several goroutines.
	Publish func(ctx context.Context, ts []engine.Timer) error
	// CaughtUp is called instead of Publish for timers that are caught up after an outage, so that
	// they can be kept apart. It slows the catch-up down by returning late. Nil: Publish.
	CaughtUp func(ctx context.Context, ts []engine.Timer) error
	// Cancelled records the outcome of timers whose schedule was cancelled, in place of Publish and
	// in the same way. A nil error means that this is durable. Without it such timers are dropped.
	Cancelled func(ctx context.Context, ts []engine.Timer) error

	// Spread returns over how many shards timers are spread. The engine calls it for each write
	// and, every Poll, to learn for which shards it competes. Nil: always Shards.
	Spread       engine.Shards
	Shards       int           `default:"16"`    // partitions of a minute
	Poll         time.Duration `default:"1s"`    // between loads
	Lookahead    time.Duration `default:"2s"`    // how far ahead of now rows are loaded
	WriteTimeout time.Duration `default:"2s"`    // longest write that is expected; see lead
	Skew         time.Duration `default:"500ms"` // largest difference between two clocks
	Grace        time.Duration `default:"10s"`   // from a minute's end to its close
	Batch        int           `default:"512"`   // most timers of a Publish, and rows of a scan
	BatchSize    int           `default:"4MiB"`  // most bytes of payload of a Publish, unless a single timer has more
	Publishers   int           `default:"4"`     // concurrent Publish calls for timers that are on time

	// Loading pauses at either limit while Publish is slow or fails. The catch-up may use a quarter
	// as much in addition.
	MaxPending int `default:"131072"` // timers loaded and not yet acknowledged
	MaxBytes   int `default:"128MiB"` // their payload, in bytes

	// Timers that were due more than CatchUpAfter before an engine loads them are released by a
	// lane of their own, in due order, at a bounded rate. The rate is for all engines together:
	// each uses the share of it that corresponds to its shards.
	CatchUpAfter      time.Duration `default:"10s"`   // at least 2 s more than a take-over lasts
	CatchUpRate       int           `default:"20000"` // timers a second
	CatchUpPublishers int           `default:"2"`     // concurrent CaughtUp calls

	LeaseTTL    time.Duration `default:"5s"`     // of a shard
	LeaseRenew  time.Duration `default:"1500ms"` // between renewals
	LeaseMargin time.Duration `default:"1s"`     // the owner stops trusting its lease this long before its end
	LeaseLook   time.Duration `default:"250ms"`  // between a standby's attempts to acquire a lease
	Beat        time.Duration `default:"5s"`     // between heartbeats

	ColdAfter time.Duration `default:"720h"`
	Retention time.Duration `default:"720h"` // of schedules after their fire time

	// Wall is the clock with which due times are compared; nil: time.Now. Leases and waits use the
	// monotonic clock.
	Wall func() time.Time
	// ClockOffset returns the known offset of Wall; nil: it is not known. It must not block. An
	// engine whose offset exceeds MaxClockOffset owns nothing.
	ClockOffset    func() time.Duration
	MaxClockOffset time.Duration `default:"500ms"`

	Logger *slog.Logger `default:"discard"`
	Events Events
}

// Events are callbacks; each may be nil. They are called from many goroutines and must not block.
type Events struct {
	// Released is called for each batch after it was published. The lateness of a timer is at -
	// FireAt.
	Released func(lane Lane, ts []engine.Timer, at time.Time)
	// Dropped is called for each timer that was not released because of its schedule's head: the
	// schedule was cancelled, or has another generation.
	Dropped func(t engine.Timer, head engine.ScheduleHead)
	// Owned and Lost are called when this engine takes over or loses a shard.
	Owned func(shard uint16, term uint64)
	Lost  func(shard uint16, term uint64, cause error)
	// Unhealthy is called once three heartbeats were missed, with the age of the last one. Healthy
	// is called for the first heartbeat after that.
	Unhealthy func(age time.Duration)
	Healthy   func()
}

// Lane is the way in which a timer was released.
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

// lead returns how close a fire time must be for a scan to possibly pass it before the row is
// durable. A row that is this close is also handed on at once.
func (c *Config) lead() time.Duration {
	return c.Lookahead + max(c.Poll, c.WriteTimeout) + c.Skew
}

// Guard returns how long before its fire time a schedule can last be touched. A hint that is
// durable by then is read together with the row it concerns.
func (c Config) Guard() time.Duration {
	c = c.withDefaults()
	return c.Lookahead + c.WriteTimeout + c.Skew
}
