package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Schedule describes the timers of one request, or one item of a batch, with a future time.
// It leads from an id to the timers. It is stored before them and never changed.
type Schedule struct {
	Base       notify.Base
	Caller     string
	Campaign   string
	User       string // the receiver's user; "": a fan-out, or one address without a user
	Channel    notify.Channel
	Category   notify.Category
	FireAt     int64  // fire time of generation 0, after jitter; ms since 1970
	Created    int64  // ms since 1970
	Expires    int64  // of the notification, ms since 1970; 0: never
	Partition  uint16 // of the chunk, if this is no fan-out
	Partitions uint16 // with BlockSize and Receivers: the chunks that a fan-out may have
	BlockSize  uint32
	Receivers  uint32 // receivers of the request, refused ones included
	Accepted   uint32 // accepted receivers
	Fan        bool   // a fan-out: ids carry an index
}

// MaxCaller is the greatest length of a caller in a stored row, in bytes.
const MaxCaller = 1 << 15

// NoBase returns the error for a schedule, a hint or a head without a base.
func NoBase() error {
	return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head must have a base")
}

// CheckCaller returns notify.KindInvalid with code if caller is too long.
func CheckCaller(code, caller string) error {
	if len(caller) > MaxCaller {
		return notify.Invalid(code, "caller", "a caller has at most 32,768 bytes")
	}
	return nil
}

// CheckSchedules returns notify.KindInvalid if Put must refuse ss.
func CheckSchedules(ss []Schedule) error {
	for i := range ss {
		if ss[i].Base.IsZero() {
			return NoBase()
		}
		if err := CheckCaller("bad_schedule", ss[i].Caller); err != nil {
			return err
		}
	}
	return nil
}

// CheckHints returns notify.KindInvalid if Hint must refuse hs.
func CheckHints(hs []Hint) error {
	for i := range hs {
		if hs[i].Base.IsZero() {
			return NoBase()
		}
	}
	return nil
}

// ScheduleState is the state of a schedule that has a head.
type ScheduleState uint8

// The states.
const (
	SchedulePending   ScheduleState = 1 // waits for FireAt
	ScheduleReleased  ScheduleState = 2 // appended to the log; after a crash perhaps once more
	ScheduleCancelled ScheduleState = 3
)

// ScheduleHead is the row that decides about a schedule. It is written by the first cancel
// or reschedule, or by a release that found a hint. A schedule without a head is pending
// at generation 0.
type ScheduleHead struct {
	Base    notify.Base
	State   ScheduleState
	Gen     uint32 // generation of the valid timers; timers of other generations are dropped
	FireAt  int64  // of that generation, ms since 1970; 0: that of the Schedule
	At      int64  // when the row was written, ms since 1970
	MovedAt int64  // when it was moved last, ms since 1970; 0: never, or by a release without this field
	MovedBy string // the caller that moved it last
	Moves   uint32 // how often it was moved
	Version uint64 // 1 for the first; raised by each swap
}

// Hint says that a schedule with timers in a partition was cancelled or moved. The timer
// engine reads the head of such a schedule before it releases its timers.
type Hint struct {
	Partition TimerPartition
	Base      notify.Base
}

// Schedules stores schedules, hints and heads. Schedules and hints are inserted and never
// changed. Heads are written only by compare and swap.
type Schedules interface {
	// Put stores schedules. Storing the same Base again changes nothing.
	Put(ctx context.Context, ss []Schedule) error
	Get(ctx context.Context, base notify.Base) (s Schedule, ok bool, err error)
	// List returns at most max schedules of caller ("": of all callers), newest first,
	// that come after the position after (zero: from the newest).
	List(ctx context.Context, caller string, after notify.Base, max int) ([]Schedule, error)
	// Hint stores hints. Storing the same hint again changes nothing.
	Hint(ctx context.Context, hs []Hint) error
	// Hints returns the bases of the hints in a partition.
	Hints(ctx context.Context, p TimerPartition) ([]notify.Base, error)
	// Head returns the head of a schedule. It sees every Swap that returned before the call.
	Head(ctx context.Context, base notify.Base) (h ScheduleHead, ok bool, err error)
	// Swap stores h with Version old+1 if the stored version is old (0: no head), and
	// returns the stored head and true. Otherwise it returns the stored head and false.
	// After an error h may be stored or not; the caller reads the head.
	Swap(ctx context.Context, old uint64, h ScheduleHead) (stored ScheduleHead, won bool, err error)
	// Purge removes at most max schedules, with their heads, whose last known fire time is
	// before a time, ms since 1970. That is the fire time of the head, or of the schedule
	// if there is no head. Purge returns how many it removed.
	Purge(ctx context.Context, before int64, max int) (int, error)
	// PutScheduled does Put and Timers.Put, all or none. In an engine of many machines an
	// error may leave some rows stored, schedules first. The same call again completes it.
	PutScheduled(ctx context.Context, ss []Schedule, shards notify.Spread, ts []Timer) error
	// ForgetTimers removes rows (FireAt, ID) from Timers and ColdTimers. Hints stay until
	// the partition is dropped. A row that is not stored changes nothing.
	ForgetTimers(ctx context.Context, shards notify.Spread, ts []Timer) error
}
