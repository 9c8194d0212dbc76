package engine

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Timer is work for a later time: an envelope to append, or a trigger to call.
type Timer struct {
	FireAt int64 // ms since 1970
	// ID has at most 64 bytes. It determines the shard of the timer. FireAt and ID together are
	// the key of the timer in its partition.
	ID      []byte
	Kind    uint8  // the kind of Payload; the timer engine does not read Payload
	Target  string // the topic to append an envelope to
	Payload []byte

	// Head is the base of the timer's schedule. If that schedule has a head (ScheduleHead),
	// the head decides whether the timer is released. Head is zero if the timer has no
	// schedule. Two kinds of timers have no schedule: timers of parked retries, because
	// these retries cannot be cancelled, and timers of triggers, because each trigger has
	// its own state row.
	Head notify.Base
	// Gen is the generation of the timer. Each reschedule raises it. Head and Gen are
	// stored with the timer but do not belong to its key.
	Gen uint32
	// Weight is the number of receivers of the timer's envelope; 1 for a trigger. Forecasts
	// add up the weights.
	Weight uint32
}

// MinuteMs and DayMs are the lengths of the buckets of time, in ms. MaxTimerID is the
// greatest length of a timer id, in bytes.
const (
	MinuteMs   = 60_000
	DayMs      = 86_400_000
	MaxTimerID = 64
)

// CheckTimers returns notify.KindInvalid if Put must refuse the number of shards or one of the
// timers.
func CheckTimers(shards notify.Spread, ts []Timer) error {
	if n := shards.Most(); n < 1 || n > 1<<16 {
		return notify.Invalid("bad_timer", "shards", fmt.Sprintf("the number of shards must be 1 to 65,536, not %d", n))
	}
	for i := range ts {
		if at := ts[i].FireAt; at < 0 {
			return notify.Invalid("bad_timer", "fire_at", fmt.Sprintf("a timer must be due in 1970 or later, but this timer is due %d ms before 1970", -at))
		}
		if n := len(ts[i].ID); n == 0 || n > MaxTimerID {
			return notify.Invalid("bad_timer", "id", fmt.Sprintf("the id of a timer must have 1 to %d bytes, but this id has %d", MaxTimerID, n))
		}
	}
	return nil
}

// TimerOfTrigger is the Kind of a timer that calls a trigger.
const TimerOfTrigger = 2

// ShardOf returns the shard of a timer id. The id begins with the base of its request.
// ShardOf returns the same shard in every engine and release, and also after the number of
// shards was raised.
func ShardOf(id []byte, shards notify.Spread) uint16 {
	return uint16(notify.ColumnDigest(id) % uint64(shards.PartsOf(id)))
}

// Shards returns the number of shards over which timers are spread, with the history of
// that number. It returns an error if the process does not know the number at this moment.
// After an error the caller must not store, find or change a timer. For a new timer, the
// caller must create the base first and call Shards after that. Otherwise a raise of the
// number between the two steps could put the timer into a wrong shard.
type Shards func() (notify.Spread, error)

// FixedShards returns a Shards whose number of shards is always n.
func FixedShards(n int) Shards {
	return func() (notify.Spread, error) { return notify.SpreadOver(n), nil }
}

// TimerPartition is one bucket of one shard. The bucket is a minute in Timers and a day in
// ColdTimers. Rows of a partition are ordered by fire time, and rows of the same fire time
// by id.
type TimerPartition struct {
	Bucket int64 // FireAt / MinuteMs, or FireAt / DayMs
	Shard  uint16
}

// TimerCursor is a position in a partition: after the row (FireAt, ID).
type TimerCursor struct {
	FireAt int64
	ID     []byte
}

// ShardState is the state row of a shard. Term is the fencing token of the owner: a write
// with an earlier term is refused.
type ShardState struct {
	Term      uint64 // raised by each take-over
	Owner     string
	Closed    int64 // the last closed minute; no timer may be added to this minute or to an earlier minute
	Watermark int64 // all minutes up to and including this minute were dropped
}

// StaleTerm returns the error for a former owner: another owner has a later term.
func StaleTerm() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "stale_term", Msg: "another process has taken over the shard"}
}

// TimerTable stores timers by bucket and shard. Rows are inserted and never changed. A
// bucket is dropped as a whole. Timers contains the timers of the near future, ColdTimers
// the timers of the far future.
type TimerTable interface {
	// Put stores timers, each in shard ShardOf(ID, shards). Storing the same (FireAt, ID)
	// again changes nothing.
	Put(ctx context.Context, shards notify.Spread, ts []Timer) error
	// Scan returns up to max rows of p, in order, that come after the cursor and have
	// FireAt <= until.
	Scan(ctx context.Context, p TimerPartition, after TimerCursor, until int64, max int) ([]Timer, error)
	// ScanWithoutPayload does the same as Scan, for a caller that does not need payloads,
	// for example because it only counts timers. The returned timers may lack their Payload.
	ScanWithoutPayload(ctx context.Context, p TimerPartition, after TimerCursor, until int64, max int) ([]Timer, error)
	// Buckets returns the buckets in [from, to] of a shard that contain rows, in ascending order.
	// An owner that is late reads only these buckets. Buckets may also return a bucket that
	// contains only hints, so that the owner drops that bucket too. It may also return a bucket
	// from which ForgetTimers has removed all rows.
	Buckets(ctx context.Context, shard uint16, from, to int64) ([]int64, error)
	// Drop removes the rows of a partition with one delete, and its hints with another
	// delete.
	Drop(ctx context.Context, p TimerPartition) error
	// Pending calls fn with every stored timer, for counts and audits.
	Pending(ctx context.Context, fn func(*Timer) error) error
}

// ColdTimers is a TimerTable whose buckets are days. It has no hints.
type ColdTimers = TimerTable

// Timers is a TimerTable whose buckets are minutes. It also stores the states of shards.
type Timers interface {
	TimerTable
	// Shard returns the state of a shard. It returns the zero state if the shard never had
	// an owner.
	Shard(ctx context.Context, shard uint16) (ShardState, error)
	// Closed returns the last closed minute of a shard (ShardState.Closed). The result includes
	// every Advance that returned before the call. It may include an Advance that is still
	// running.
	Closed(ctx context.Context, shard uint16) (int64, error)
	// TakeOver raises the term of a shard by 1 and stores the new owner, if the stored term
	// is oldTerm. If the stored term differs, it returns notify.KindConflict.
	TakeOver(ctx context.Context, shard uint16, oldTerm uint64, owner string) (ShardState, error)
	// Advance raises the stored Closed and Watermark of a shard to the values in s, if the stored
	// term is s.Term. It never lowers them. If the stored term differs, it returns
	// notify.KindConflict.
	Advance(ctx context.Context, shard uint16, s ShardState) error
}
