package engine

import (
	"context"
	"fmt"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Schedule describes the timers of one request, or of one item of a batch, that is to be sent
// at a later time. The API finds the timers of an id through the schedule of the id. A schedule
// is stored before its timers and never changed.
type Schedule struct {
	Base       notify.Base
	Caller     string
	Campaign   string
	User       string // the user who receives; "": a fan-out, or one address without a user
	Channel    notify.Channel
	Category   notify.Category
	FireAt     int64  // fire time of generation 0, jitter included; ms since 1970
	Created    int64  // ms since 1970
	Expires    int64  // when the notification expires, ms since 1970; 0: never
	Partition  uint16 // partition of the chunk; only if the request is no fan-out
	Partitions uint16 // Partitions, BlockSize and Receivers determine the chunks of a fan-out
	BlockSize  uint32
	Receivers  uint32 // receivers of the request, including refused receivers
	Accepted   uint32 // accepted receivers
	FanOut     bool   // true: a fan-out; its ids contain an index
}

// MaxCaller is the greatest length of a caller in a stored row, in bytes.
const MaxCaller = 1 << 15

// NoBase returns the error for a schedule, a hint or a head without a base.
func NoBase() error {
	return notify.Invalid("bad_schedule", "base", "a schedule, its hints and its head must have a base")
}

// CheckCaller returns notify.KindInvalid with the given code if the name of the caller is too long.
func CheckCaller(code, caller string) error {
	if len(caller) > MaxCaller {
		return notify.Invalid(code, "caller", fmt.Sprintf("the name of a caller must have at most 32,768 bytes, but this name has %d", len(caller)))
	}
	return nil
}

// CheckSchedules returns notify.KindInvalid if Put must refuse one of the schedules.
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

// CheckHints returns notify.KindInvalid if the method Hint must refuse one of the hints.
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

// States of a schedule.
const (
	SchedulePending   ScheduleState = 1 // waits for FireAt
	ScheduleReleased  ScheduleState = 2 // appended to the log; after a crash perhaps appended once more
	ScheduleCancelled ScheduleState = 3
)

// ScheduleHead is the row with the current state of a schedule. The head is first written
// by a cancel, by a reschedule, or by a release that found a hint. A schedule without a
// head is pending and has generation 0.
type ScheduleHead struct {
	Base   notify.Base
	State  ScheduleState
	Gen    uint32 // generation of the valid timers; timers of other generations are dropped
	FireAt int64  // fire time of generation Gen, ms since 1970; 0: Schedule.FireAt is valid
	At     int64  // when the row was written, ms since 1970
	// MovedAt is when the schedule was last rescheduled, ms since 1970. It is 0 if the
	// schedule was never rescheduled, or if an earlier version of notifyd, which did not have
	// this field, made the last reschedule.
	MovedAt int64
	MovedBy string // the caller of the last reschedule
	Moves   uint32 // how often the schedule was rescheduled
	Version uint64 // 1 for the first; raised by each swap
}

// Hint says that a schedule with timers in a partition was cancelled or rescheduled. The
// timer engine reads the head of such a schedule before it releases timers of that
// schedule.
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
	// List returns at most max schedules of one caller, newest first. If caller is "", it
	// returns schedules of all callers. It begins after the schedule with the base
	// lastBase. If lastBase is zero, it begins with the newest schedule.
	List(ctx context.Context, caller string, lastBase notify.Base, max int) ([]Schedule, error)
	// Hint stores hints. Storing the same hint again changes nothing.
	Hint(ctx context.Context, hs []Hint) error
	// Hints returns the bases of the hints in a partition.
	Hints(ctx context.Context, p TimerPartition) ([]notify.Base, error)
	// Head returns the head of a schedule. It sees every Swap that returned before the call.
	Head(ctx context.Context, base notify.Base) (h ScheduleHead, ok bool, err error)
	// Swap stores h with Version oldVersion+1 if the stored version is oldVersion, and
	// returns the new head and true. oldVersion is 0 if no head is stored. If the stored
	// version differs, Swap changes nothing and returns the stored head and false. After an
	// error h may or may not be stored; the caller must read the head.
	Swap(ctx context.Context, oldVersion uint64, h ScheduleHead) (stored ScheduleHead, won bool, err error)
	// Purge removes each schedule, and its head, if its fire time is earlier than beforeMs (ms
	// since 1970). The fire time is the FireAt of the head, or the FireAt of the schedule if
	// there is no head. Purge removes at most max schedules and returns how many it removed.
	Purge(ctx context.Context, beforeMs int64, max int) (int, error)
	// PutScheduled stores what Put and Timers.Put would store: normally all rows or none. Only
	// in an engine with several machines an error may leave some rows stored. There, schedules
	// are stored before timers. A second call with the same arguments stores the missing rows.
	PutScheduled(ctx context.Context, ss []Schedule, shards notify.Spread, ts []Timer) error
	// ForgetTimers removes the rows (FireAt, ID) of ts from Timers and ColdTimers. It
	// ignores a row that is not stored. Hints stay until their partition is dropped.
	ForgetTimers(ctx context.Context, shards notify.Spread, ts []Timer) error
}
