package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TriggerState is the state of a trigger.
type TriggerState uint8

// States of a trigger.
const (
	TriggerPending   TriggerState = 1 // waits for NextAt
	TriggerInFlight  TriggerState = 2 // claimed until LeaseUntil; a call may be running
	TriggerFired     TriggerState = 3 // terminal: the URL answered 2xx
	TriggerFailed    TriggerState = 4 // terminal: refused for good, out of attempts, or given up
	TriggerCancelled TriggerState = 5 // terminal: cancelled while it was PENDING
	TriggerExpired   TriggerState = 6 // terminal: too late before its first claim (LateDrop)
)

// Terminal reports whether a trigger in this state has ended.
func (s TriggerState) Terminal() bool { return s >= TriggerFired && s <= TriggerExpired }

// TriggerOpen is not a state of a trigger. It is an argument of List that selects the rows
// that still need work. Such a row is PENDING or IN_FLIGHT, or it is FAILED and its dead
// letter is not written yet (NextAt is not 0).
const TriggerOpen TriggerState = 0xff

// IsOpen reports whether a row counts as TriggerOpen.
func (t *Trigger) IsOpen() bool {
	return t.State == TriggerPending || t.State == TriggerInFlight || t.State == TriggerFailed && t.NextAt != 0
}

// LatePolicy says what happens to a trigger that is later than its MaxLateness.
type LatePolicy uint8

// Policies for late triggers.
const (
	LateFire       LatePolicy = 0 // its URL is called nevertheless
	LateDrop       LatePolicy = 1 // it becomes EXPIRED, or FAILED if it was claimed before
	LateDeadLetter LatePolicy = 2 // it becomes FAILED and is appended to triggers-dlq
)

// PayloadForm is the form of a payload in the request and in the call of the URL.
type PayloadForm uint8

// Forms of a payload.
const (
	PayloadText   PayloadForm = 0 // UTF-8, as a JSON string
	PayloadJSON   PayloadForm = 1 // a JSON object or array, with its bytes unchanged
	PayloadBase64 PayloadForm = 2 // any bytes, in base64
)

// Attempt is one call of a trigger's URL, or an attempt that failed before the call could
// be made.
type Attempt struct {
	N       int           // 1 for the first
	At      int64         // ms since 1970
	Took    time.Duration // from the start of the call to its end
	Status  int           // HTTP status; 0: no answer
	Class   string        // "ok", "retry", "permanent", "denied", "timeout", ...
	Detail  string        // at most 256 bytes
	Body    []byte        // body of the answer, at most 512 bytes
	Address string        // the network address of the connection
}

// Trigger is the state row of a callback that is to be made at a future time.
type Trigger struct {
	ID     string // trg_<ULID>
	Caller string
	URL    string
	// Payload is delivered byte for byte. It has at most 4,096 bytes, or 32 KiB in a
	// trigger that the server itself has made.
	Payload []byte
	Form    PayloadForm
	Trace   string // W3C traceparent of the request that made the trigger; empty: none
	// TraceState is the W3C tracestate that came with Trace.
	TraceState string
	Created    int64 // ms since 1970
	FireAt     int64 // time of the first attempt, jitter included; ms since 1970

	Schedule    []time.Duration // waits between attempts; nil: the default
	MaxLateness time.Duration   // 0: no limit
	Late        LatePolicy

	State      TriggerState
	Gen        uint32 // raised by each reschedule; queue messages with another Gen are dropped
	Epoch      uint32 // raised by each claim
	Attempts   int    // calls that count against the schedule
	Deferrals  int    // waits without a call: breaker, bulkhead, shutdown
	NextAt     int64  // next attempt, ms since 1970
	LeaseUntil int64  // end of the claim's lease, ms since 1970
	Ended      int64  // when the trigger became terminal, ms since 1970; 0: not terminal
	Reason     string // code of the last failure or deferral
	Log        []Attempt
	Version    uint64 // 1 in a new row; raised by each Swap
}

// Check returns notify.KindInvalid if Create and Swap must refuse the row.
func (t *Trigger) Check() error {
	switch {
	case t.ID == "":
		return notify.Invalid("bad_trigger", "id", "a trigger must have an id")
	case len(t.ID) > 1<<10:
		return notify.Invalid("bad_trigger", "id", fmt.Sprintf("the id of a trigger must have at most 1,024 bytes, but this id has %d", len(t.ID)))
	case len(t.Caller) > 1<<15:
		return notify.Invalid("bad_trigger", "caller", fmt.Sprintf("the name of a caller must have at most 32,768 bytes, but this name has %d", len(t.Caller)))
	}
	return nil
}

// TriggerSwap replaces the state row of a trigger.
type TriggerSwap struct {
	Old uint64 // the version that must be stored for the swap to be applied
	New Trigger
}

// TriggerCursor is a position in a list of triggers, newest first. The position is after
// the row with this ID.
type TriggerCursor struct {
	ID string
}

// Triggers stores the state rows of triggers. After Create, a row is changed only by
// compare and swap.
type Triggers interface {
	// Create stores new rows with Version 1. won has an entry for each row. The entry is
	// true if the row was stored. It is false if a row with the same id exists; that row
	// stays as it is.
	Create(ctx context.Context, ts []Trigger) (won []bool, err error)
	// Get returns rows in the order of ids. The rows include every Swap that returned
	// before the call. For an id without a row Get returns a Trigger without ID.
	Get(ctx context.Context, ids []string) ([]Trigger, error)
	// Swap replaces each row whose stored version is Old. The new row has Version Old+1.
	// The swaps are independent: won[i] is true if ss[i] was applied. After an error any of
	// the swaps may have been applied, so the caller must read the rows.
	Swap(ctx context.Context, ss []TriggerSwap) (won []bool, err error)
	// List returns at most max rows of caller, newest id first. If caller is "", it returns
	// rows of all callers. It begins after the cursor; a zero cursor is before the newest
	// row. A state of 0 selects all states.
	List(ctx context.Context, caller string, state TriggerState, after TriggerCursor, max int) ([]Trigger, error)
	// CountOpen returns how many rows of a caller are open (TriggerOpen). It may stop
	// counting when the count is greater than limit. It may still count rows that ended a
	// moment ago.
	CountOpen(ctx context.Context, caller string, limit int) (int, error)
	// Purge removes at most max terminal rows that ended earlier than beforeMs (ms since
	// 1970). It never removes a row that is not terminal. It returns how many rows it
	// removed.
	Purge(ctx context.Context, beforeMs int64, max int) (int, error)
}
