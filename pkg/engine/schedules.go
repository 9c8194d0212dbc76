package engine

import (
	"context"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Schedule is what one request, or one item of a batch, put off: the way from
// an id to its timers. It is stored before them and never changed.
type Schedule struct {
	Base       notify.Base
	Caller     string
	Campaign   string
	User       string // whom it is for; "": a fan-out, or one address without a user
	Channel    notify.Channel
	Category   notify.Category
	FireAt     int64  // generation 0's, after jitter; ms since 1970
	Created    int64  // ms since 1970
	Expires    int64  // of the notification, ms since 1970; 0: never
	Partition  uint16 // of the chunk, where it is not a fan-out
	Partitions uint16 // with BlockSize and Receivers: which chunks a fan-out may have
	BlockSize  uint32
	Receivers  uint32 // indexes of the request, refused ones counted too
	Accepted   uint32 // receivers
	Fan        bool   // a fan-out: ids carry an index
}

// MaxCaller bounds the callers of stored records, in bytes.
const MaxCaller = 1 << 15

// NoBase is the error of a schedule, a hint or a head without a base.
func NoBase() error {
	return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head have a base")
}

// CheckCaller returns an error with code if a caller is too long.
func CheckCaller(code, caller string) error {
	if len(caller) > MaxCaller {
		return notify.Invalid(code, "caller", "a caller has at most 32,768 bytes")
	}
	return nil
}

// CheckSchedules returns an error if one of ss cannot be stored.
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

// CheckHints returns an error if one of hs cannot be stored.
func CheckHints(hs []Hint) error {
	for i := range hs {
		if hs[i].Base.IsZero() {
			return NoBase()
		}
	}
	return nil
}

// ScheduleState is what a touched schedule came to.
type ScheduleState uint8

// The states.
const (
	SchedulePending   ScheduleState = 1 // waits for FireAt
	ScheduleReleased  ScheduleState = 2 // handed on; may be handed on again after a crash
	ScheduleCancelled ScheduleState = 3
)

// ScheduleHead is the row that decides about a schedule once somebody has
// touched it (cancel, reschedule) or a hint made a release ask. A schedule
// without one is pending at generation 0.
type ScheduleHead struct {
	Base    notify.Base
	State   ScheduleState
	Gen     uint32 // of its timers that count; all others are dropped
	FireAt  int64  // of that generation, ms since 1970; 0: the schedule's own
	At      int64  // when the row was written, ms since 1970
	MovedAt int64  // when it was moved last, ms since 1970; 0: never, or before this was kept
	MovedBy string // the caller that moved it last
	Moves   uint32 // how often it was moved
	Version uint64 // 1 for the first; raised by each swap
}

// Hint says that a schedule with timers in a partition was touched, so that
// whoever releases them asks its head first.
type Hint struct {
	Partition TimerPartition
	Base      notify.Base
}

// Schedules keeps schedules, hints and heads. Schedules and hints are inserted
// and never changed; heads are written by compare and swap alone.
type Schedules interface {
	// Put stores schedules. Storing the same Base again changes nothing.
	Put(ctx context.Context, ss []Schedule) error
	Get(ctx context.Context, base notify.Base) (s Schedule, ok bool, err error)
	// List returns schedules of a caller ("": of all), newest first, behind
	// after (zero: from the newest), at most max.
	List(ctx context.Context, caller string, after notify.Base, max int) ([]Schedule, error)
	// Hint stores hints. The same one again changes nothing.
	Hint(ctx context.Context, hs []Hint) error
	// Hints returns the bases hinted in a partition.
	Hints(ctx context.Context, p TimerPartition) ([]notify.Base, error)
	// Head returns the head of a schedule as of every swap answered before.
	Head(ctx context.Context, base notify.Base) (h ScheduleHead, ok bool, err error)
	// Swap stores h, with Version old+1, if the stored version is old (0: there
	// is none), and returns it and true; else what is stored and false. After an
	// error either may be true: the caller reads.
	Swap(ctx context.Context, old uint64, h ScheduleHead) (stored ScheduleHead, won bool, err error)
	// Purge forgets schedules whose last known fire time (the head's, else
	// their own) is before a time, ms since 1970, and their heads, at most max;
	// it returns how many.
	Purge(ctx context.Context, before int64, max int) (int, error)
	// PutScheduled is Put and Timers.Put, all or none. In an engine of many machines an
	// error may leave it partly stored, schedules first: the same call again completes it.
	PutScheduled(ctx context.Context, ss []Schedule, shards notify.Spread, ts []Timer) error
	// ForgetTimers removes rows (FireAt, ID) of Timers and ColdTimers; their hints
	// stay until the partition is dropped. One that is not there changes nothing.
	ForgetTimers(ctx context.Context, shards notify.Spread, ts []Timer) error
}
