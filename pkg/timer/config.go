package timer

import (
	"context"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config configures an Engine. A number that is 0 means the default. All processes that use one
// store must have the same Spread, Poll, Lookahead, WriteTimeout and Skew.
type Config struct {
	Store engine.Timers
	// Schedules stores the heads, which decide whether timers with a Head are released. nil:
	// schedules cannot be cancelled or moved.
	Schedules engine.Schedules
	// Cold stores timers that are due more than ColdAfter from now. nil: Store stores them too.
	Cold engine.ColdTimers
	// Queue carries near timers, which are due very soon, from writers to the engine that publishes
	// them. No other package may use it. Without Queue, a near timer of a shard that this process
	// does not own waits until its minute is closed. So Queue is needed if several processes share a
	// store.
	Queue engine.Queue
	// Lease and Heartbeats let several engines share the shards. An engine without Lease assumes that
	// no other engine uses its store. (If there is another one, the terms of the shards still prevent
	// wrong writes.) An engine without Heartbeats never hands over a shard to another engine.
	Lease      engine.Lease
	Heartbeats engine.Heartbeats
	Owner      string // name of this engine; no two running engines may have the same name

	// Publish sends due timers to the place where they are processed, such as the log. If it
	// returns nil, all timers are durable there. If it fails, the engine calls it again with the
	// same timers until it succeeds. Several goroutines call it.
	Publish func(ctx context.Context, ts []engine.Timer) error
	// CaughtUp is called instead of Publish for timers that became due during an outage, so that
	// they can be processed separately. If CaughtUp is slow, the catch-up is slow. nil: Publish is
	// called.
	CaughtUp func(ctx context.Context, ts []engine.Timer) error
	// Cancelled is called instead of Publish for timers whose schedule was cancelled. It must store
	// their outcomes durably before it returns nil. If Cancelled is nil, such timers are dropped.
	Cancelled func(ctx context.Context, ts []engine.Timer) error

	// Spread returns the number of shards over which timers are spread. The engine calls it for
	// each write. It also calls it every Poll, to find new shards. nil: the number is always
	// Shards.
	Spread       engine.Shards
	Shards       int           `default:"16"`    // partitions of a minute
	Poll         time.Duration `default:"1s"`    // time between two loads
	Lookahead    time.Duration `default:"2s"`    // how long before their fire time rows are loaded
	WriteTimeout time.Duration `default:"2s"`    // longest write that is expected; see leadTime
	Skew         time.Duration `default:"500ms"` // largest difference between two clocks
	Grace        time.Duration `default:"10s"`   // time from the end of a minute until it is closed
	Batch        int           `default:"512"`   // maximum number of timers in a Publish call, and of rows in a page
	// Maximum number of payload bytes in a Publish call. A single timer may have more.
	BatchSize  int `default:"4MiB"`
	Publishers int `default:"4"` // concurrent Publish calls for timers that are on time

	// Loading pauses when one of these limits is reached, for example while Publish is slow or
	// fails. The catch-up may use a quarter of each limit in addition.
	MaxPending int `default:"131072"` // timers loaded and not acknowledged
	MaxBytes   int `default:"128MiB"` // bytes of the payload of these timers

	// The catch-up releases timers that are overdue by more than CatchUpAfter when an engine loads
	// them. It releases them in due order, in a separate lane, and at a limited rate. CatchUpRate
	// is the rate of all engines together. An engine with a tenth of the shards uses a tenth of the
	// rate.
	CatchUpAfter      time.Duration `default:"10s"`   // at least 2 s more than a take-over needs
	CatchUpRate       int           `default:"20000"` // timers a second
	CatchUpPublishers int           `default:"2"`     // concurrent CaughtUp calls

	LeaseTTL    time.Duration `default:"5s"`     // TTL of the lease of a shard
	LeaseRenew  time.Duration `default:"1500ms"` // time between two renewals
	LeaseMargin time.Duration `default:"1s"`     // the owner stops trusting a lease this long before the lease ends
	LeaseLook   time.Duration `default:"250ms"`  // time between two attempts of a standby to acquire a lease
	Beat        time.Duration `default:"5s"`     // time between two heartbeats

	ColdAfter time.Duration `default:"720h"`
	Retention time.Duration `default:"720h"` // how long schedules are kept after their fire time

	// Wall is the clock for due times; nil: time.Now. Leases and waits use the monotonic clock.
	Wall func() time.Time
	// ClockOffset returns the known offset of Wall from the true time, and must not block. nil: the
	// offset is not known. An engine whose offset exceeds MaxClockOffset owns no shards.
	ClockOffset    func() time.Duration
	MaxClockOffset time.Duration `default:"500ms"`

	Logger *slog.Logger `default:"discard"`
	Events Events
}

// Events are callbacks; each may be nil. They are called from many goroutines and must not block.
type Events struct {
	// Released is called for each batch after it was published. releasedAt minus FireAt is how late
	// a timer is.
	Released func(lane Lane, ts []engine.Timer, releasedAt time.Time)
	// Dropped is called for each timer that was not released because of the head of its schedule:
	// the schedule was cancelled or has another generation.
	Dropped func(t engine.Timer, head engine.ScheduleHead)
	// Owned and Lost are called when this engine takes over or loses a shard.
	Owned func(shard uint16, term uint64)
	Lost  func(shard uint16, term uint64, cause error)
	// Unhealthy is called once when three heartbeats were missed, with the age of the last
	// heartbeat. Healthy is called for the first heartbeat after that.
	Unhealthy func(age time.Duration)
	Healthy   func()
}

// Lane says how a timer is released.
type Lane uint8

// The lanes.
const (
	OnTime  Lane = iota // from the wheel
	CatchUp             // at a limited rate, after an outage
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

// leadTime returns how long before its fire time a row must be durable so that loading certainly
// finds it. If a row is written later, loading may already have read past its fire time. So a
// writer also sends such a row directly to the engine that releases it.
func (c *Config) leadTime() time.Duration {
	return c.Lookahead + max(c.Poll, c.WriteTimeout) + c.Skew
}

// Guard returns for how long before its fire time a schedule cannot be cancelled or moved. If a
// hint is durable before that, the release certainly reads the hint together with the row of the
// timer.
func (c Config) Guard() time.Duration {
	c = c.withDefaults()
	return c.Lookahead + c.WriteTimeout + c.Skew
}
