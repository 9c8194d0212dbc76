package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Timer is something that happens later: an envelope to append, or a trigger to
// call.
type Timer struct {
	FireAt  int64  // ms since 1970
	ID      []byte // unique within its partition at FireAt, at most 64 bytes; decides the shard
	Kind    uint8  // what the payload is; the timer engine does not look inside
	Target  string // Kind envelope: the topic to append to
	Payload []byte

	// Head is the schedule whose head decides whether the timer is released,
	// once anybody has touched it; zero: nobody can (a parked retry, a trigger,
	// which has a state row of its own).
	Head notify.Base
	// Gen is raised by each reschedule. Head and Gen are part of what is stored,
	// not of the key.
	Gen uint32
	// Weight is how many receivers the timer stands for; forecasts add it up.
	Weight uint32
}

// Lengths of buckets of time, ms, and the longest id of a timer, bytes.
const (
	MinuteMs   = 60_000
	DayMs      = 86_400_000
	MaxTimerID = 64
)

// CheckTimers returns notify.KindInvalid if Put must refuse ts.
func CheckTimers(shards notify.Spread, ts []Timer) error {
	if n := shards.Most(); n < 1 || n > 1<<16 {
		return notify.Invalid("bad_timer", "shards", "there are 1 to 65,536 shards")
	}
	for i := range ts {
		if ts[i].FireAt < 0 || len(ts[i].ID) == 0 || len(ts[i].ID) > MaxTimerID {
			return notify.Invalid("bad_timer", "id", "a timer fires after 1970 and has an id of 1 to 64 bytes")
		}
	}
	return nil
}

// TimerOfTrigger is the Kind of a timer that leads to a trigger.
const TimerOfTrigger = 2

// ShardOf is the shard of a timer id, which begins with the base of its request: the same
// in every engine and release, and after the number of shards was raised.
func ShardOf(id []byte, shards notify.Spread) uint16 {
	return uint16(notify.ColumnDigest(id) % uint64(shards.Of(id)))
}

// Shards returns over how many shards timers are spread now. It returns an error if the
// process cannot know that at this moment; then it must not store, find or touch a timer.
// A timer's base must be made before Shards is called for it.
type Shards func() (notify.Spread, error)

// FixedShards returns a number of shards that is never raised.
func FixedShards(n int) Shards {
	return func() (notify.Spread, error) { return notify.SpreadOver(n), nil }
}

// TimerPartition is one bucket of one shard: a minute of Timers, a day of ColdTimers.
// Rows of a partition are ordered by fire time, then id.
type TimerPartition struct {
	Bucket int64 // FireAt / MinuteMs, or FireAt / DayMs
	Shard  uint16
}

// TimerCursor is a place in a partition: after the row (FireAt, ID).
type TimerCursor struct {
	FireAt int64
	ID     []byte
}

// ShardState is the row that makes one owner's writes valid.
type ShardState struct {
	Term      uint64 // raised by each take-over
	Owner     string
	Closed    int64 // last minute that was closed: no row may be added to it
	Watermark int64 // every minute up to here was dropped
}

// StaleTerm is the error of an owner whose term is over.
func StaleTerm() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "stale_term", Msg: "another instance took the shard over"}
}

// TimerTable keeps timers by bucket and shard. Rows are inserted and never changed; a
// bucket is dropped whole. Timers holds what comes soon, ColdTimers what is far ahead.
type TimerTable interface {
	// Put stores timers, each in shard ShardOf(ID, shards). Storing the same (FireAt, ID) again changes nothing.
	Put(ctx context.Context, shards notify.Spread, ts []Timer) error
	// Scan returns up to max rows of p behind after with FireAt <= until, in
	// order.
	Scan(ctx context.Context, p TimerPartition, after TimerCursor, until int64, max int) ([]Timer, error)
	// Outline is Scan for counts: rows may come without their payloads.
	Outline(ctx context.Context, p TimerPartition, after TimerCursor, until int64, max int) ([]Timer, error)
	// Buckets returns the buckets of shard in [from, to] that hold rows, ascending:
	// what a catch-up has to read. It may return others that hold only hints, so that
	// they are dropped as well, or whose rows were forgotten.
	Buckets(ctx context.Context, shard uint16, from, to int64) ([]int64, error)
	// Drop removes a partition, and the hints of it, with one delete of each.
	Drop(ctx context.Context, p TimerPartition) error
	// Pending calls fn with every stored timer, for counts and audits.
	Pending(ctx context.Context, fn func(*Timer) error) error
}

// ColdTimers is a TimerTable whose buckets are days and have no hints.
type ColdTimers = TimerTable

// Timers is a TimerTable whose buckets are minutes, and the states of shards.
type Timers interface {
	TimerTable
	// Shard returns the state of a shard; the zero state before its first owner.
	Shard(ctx context.Context, shard uint16) (ShardState, error)
	// Closed returns the Closed of a shard as of every Advance answered before, and
	// possibly of an Advance under way.
	Closed(ctx context.Context, shard uint16) (int64, error)
	// TakeOver raises the term of a shard if it still is term, and names the
	// new owner. A stale term is notify.KindConflict.
	TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (ShardState, error)
	// Advance moves Closed and Watermark forward if the shard's term is
	// s.Term; neither ever moves back. A stale term is notify.KindConflict.
	Advance(ctx context.Context, shard uint16, s ShardState) error
}
