package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Timer is work for a later time: an envelope to append, or a trigger to call.
type Timer struct {
	FireAt  int64  // ms since 1970
	ID      []byte // at most 64 bytes; (FireAt, ID) is the key in a partition; decides the shard
	Kind    uint8  // the kind of Payload; the timer engine does not look inside
	Target  string // the topic to append an envelope to
	Payload []byte

	// Head is the base of the schedule whose head, if there is one, decides whether the
	// timer is released. Zero: the timer has no schedule. A parked retry cannot be
	// cancelled, and a trigger has a state row of its own.
	Head notify.Base
	// Gen is raised by each reschedule. Head and Gen are stored with the timer but are not
	// part of its key.
	Gen uint32
	// Weight is how many receivers the timer stands for. Forecasts sum it.
	Weight uint32
}

// Lengths of the buckets of time, ms, and the greatest length of a timer id, bytes.
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
			return notify.Invalid("bad_timer", "id", "a timer must fire after 1970 and have an id of 1 to 64 bytes")
		}
	}
	return nil
}

// TimerOfTrigger is the Kind of a timer that calls a trigger.
const TimerOfTrigger = 2

// ShardOf returns the shard of a timer id. The id begins with the base of its request. The
// shard is the same in every engine and release, and after the number of shards was raised.
func ShardOf(id []byte, shards notify.Spread) uint16 {
	return uint16(notify.ColumnDigest(id) % uint64(shards.Of(id)))
}

// Shards returns the number of shards that timers are spread over now. It returns an error
// if the process cannot know the number at this moment; the caller must then not store,
// find or change a timer. The base of a timer must be created before Shards is called for it.
type Shards func() (notify.Spread, error)

// FixedShards returns a Shards of n shards that are never raised.
func FixedShards(n int) Shards {
	return func() (notify.Spread, error) { return notify.SpreadOver(n), nil }
}

// TimerPartition is one bucket of one shard: a minute of Timers, a day of ColdTimers.
// Rows of a partition are ordered by fire time, then id.
type TimerPartition struct {
	Bucket int64 // FireAt / MinuteMs, or FireAt / DayMs
	Shard  uint16
}

// TimerCursor is a position in a partition: after the row (FireAt, ID).
type TimerCursor struct {
	FireAt int64
	ID     []byte
}

// ShardState is the state row of a shard. Its Term is the fencing token of the owner: a
// write of an earlier term is refused.
type ShardState struct {
	Term      uint64 // raised by each take-over
	Owner     string
	Closed    int64 // the last closed minute; no timer may be added to it or to an earlier one
	Watermark int64 // every minute up to here was dropped
}

// StaleTerm returns the error for an owner whose term is over.
func StaleTerm() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "stale_term", Msg: "another instance took the shard over"}
}

// TimerTable stores timers by bucket and shard. Rows are inserted and never changed. A
// bucket is dropped as a whole. Timers holds the near future, ColdTimers the far one.
type TimerTable interface {
	// Put stores timers, each in shard ShardOf(ID, shards). Storing the same (FireAt, ID)
	// again changes nothing.
	Put(ctx context.Context, shards notify.Spread, ts []Timer) error
	// Scan returns up to max rows of p after the cursor with FireAt <= until, in order.
	Scan(ctx context.Context, p TimerPartition, after TimerCursor, until int64, max int) ([]Timer, error)
	// Outline is Scan for counting: it may return rows without their payloads.
	Outline(ctx context.Context, p TimerPartition, after TimerCursor, until int64, max int) ([]Timer, error)
	// Buckets returns the buckets of shard in [from, to] that hold rows, ascending. A
	// catch-up reads these. Buckets may also return buckets that hold only hints, so that
	// they are dropped as well, and buckets whose rows were forgotten.
	Buckets(ctx context.Context, shard uint16, from, to int64) ([]int64, error)
	// Drop removes a partition and its hints, with one delete for each of the two.
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
	// Closed returns the Closed of a shard. It sees every Advance that returned before the
	// call, and may see one that is under way.
	Closed(ctx context.Context, shard uint16) (int64, error)
	// TakeOver raises the term of a shard if it still is term, and stores the new owner. It
	// returns notify.KindConflict if the term is stale.
	TakeOver(ctx context.Context, shard uint16, term uint64, owner string) (ShardState, error)
	// Advance moves Closed and Watermark forward if the shard's term is s.Term. Neither
	// ever moves back. It returns notify.KindConflict if the term is stale.
	Advance(ctx context.Context, shard uint16, s ShardState) error
}
