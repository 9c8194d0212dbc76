package engine

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TriggerState is the state of a trigger.
type TriggerState uint8

// The states.
const (
	TriggerPending   TriggerState = 1 // waits for NextAt
	TriggerInFlight  TriggerState = 2 // claimed until LeaseUntil; a call may be under way
	TriggerFired     TriggerState = 3 // terminal: answered 2xx
	TriggerFailed    TriggerState = 4 // terminal: refused for good, or out of attempts
	TriggerCancelled TriggerState = 5 // terminal: cancelled before any claim that counted
	TriggerExpired   TriggerState = 6 // terminal: later than its max_lateness allows
)

// Terminal reports whether a trigger in this state has ended.
func (s TriggerState) Terminal() bool { return s >= TriggerFired && s <= TriggerExpired }

// TriggerOpen is not a state but an argument of List. It selects the rows that still need
// work: PENDING, IN_FLIGHT, and FAILED rows whose dead letter is not written yet (NextAt is
// not 0).
const TriggerOpen TriggerState = 0xff

// IsOpen reports whether a row counts as TriggerOpen.
func (t *Trigger) IsOpen() bool {
	return t.State == TriggerPending || t.State == TriggerInFlight || t.State == TriggerFailed && t.NextAt != 0
}

// LatePolicy is what happens to a trigger that is later than its MaxLateness.
type LatePolicy uint8

// The policies.
const (
	LateFire       LatePolicy = 0 // it is called nevertheless
	LateDrop       LatePolicy = 1 // it becomes EXPIRED
	LateDeadLetter LatePolicy = 2 // it becomes FAILED and is appended to triggers-dlq
)

// PayloadForm is the form in which a payload was given and is delivered.
type PayloadForm uint8

// The forms.
const (
	PayloadText   PayloadForm = 0 // UTF-8, as a JSON string
	PayloadJSON   PayloadForm = 1 // an object or array, embedded as it was written
	PayloadBase64 PayloadForm = 2 // any bytes, in base64
)

// Attempt is one call of a trigger's URL, made or failed before it could be made.
type Attempt struct {
	N       int           // 1 for the first
	At      int64         // ms since 1970
	Took    time.Duration // from the start of the call to its end
	Status  int           // HTTP status; 0: there was no answer
	Class   string        // "ok", "retry", "permanent", "denied", "timeout", ...
	Detail  string        // at most 256 bytes
	Body    []byte        // of the answer, at most 512 bytes
	Address string        // the network address of the connection
}

// Trigger is the state row of a callback at a future time.
type Trigger struct {
	ID      string // trg_<ULID>
	Caller  string
	URL     string
	Payload []byte // delivered byte for byte; at most 4,096 bytes, or 32 KiB for a trigger of the server itself
	Form    PayloadForm
	Trace   string // W3C traceparent of the request that made it; empty: none
	// TraceState is the W3C tracestate beside Trace.
	TraceState string
	Created    int64 // ms since 1970
	FireAt     int64 // time of the first attempt, after jitter; ms since 1970

	Schedule    []time.Duration // waits between attempts; nil: the default
	MaxLateness time.Duration   // 0: no limit
	Late        LatePolicy

	State      TriggerState
	Gen        uint32 // raised by each reschedule; messages of another generation are dropped
	Epoch      uint32 // raised by each claim
	Attempts   int    // calls that count against the schedule
	Deferrals  int    // waits without a call: breaker, bulkhead, shutdown
	NextAt     int64  // next attempt, ms since 1970
	LeaseUntil int64  // end of the claim's lease, ms since 1970
	Ended      int64  // when it became terminal, ms since 1970; 0: it is not
	Reason     string // code of the last failure or deferral
	Log        []Attempt
	Version    uint64 // 1 for the first; raised by each swap
}

// Check returns notify.KindInvalid if Create and Swap must refuse the row.
func (t *Trigger) Check() error {
	switch {
	case t.ID == "":
		return notify.Invalid("bad_trigger", "id", "a trigger must have an id")
	case len(t.ID) > 1<<10 || len(t.Caller) > 1<<15:
		return notify.Invalid("bad_trigger", "id", "an id has at most 1,024 bytes, a caller 32,768")
	}
	return nil
}

// TriggerSwap replaces a state row.
type TriggerSwap struct {
	Old uint64 // the version that must be stored for the swap to be applied
	New Trigger
}

// TriggerCursor is a position in a list of triggers, newest first: after the row ID.
type TriggerCursor struct {
	ID string
}

// Triggers stores the state rows of triggers. They are written only by compare and swap.
type Triggers interface {
	// Create stores new rows with Version 1. won has an entry for each row: true if it was
	// stored, false if a row with its id exists, which stays as it is.
	Create(ctx context.Context, ts []Trigger) (won []bool, err error)
	// Get returns rows in the order of ids. It sees every Swap that returned before the
	// call. For an id without a row it returns a Trigger without ID.
	Get(ctx context.Context, ids []string) ([]Trigger, error)
	// Swap replaces each row whose stored version is Old, with Version Old+1. The swaps
	// are independent: won says for each whether it was applied. After an error any of them
	// may have been applied; the caller reads the rows.
	Swap(ctx context.Context, ss []TriggerSwap) (won []bool, err error)
	// List returns at most max rows of caller ("": of all callers), newest id first, that
	// come after the cursor (zero: from the newest). state 0 selects all states.
	List(ctx context.Context, caller string, state TriggerState, after TriggerCursor, max int) ([]Trigger, error)
	// CountOpen returns how many rows of a caller are TriggerOpen. It may stop counting
	// beyond most. It may still count rows that ended a moment ago.
	CountOpen(ctx context.Context, caller string, most int) (int, error)
	// Purge removes at most max terminal rows that ended before a time, ms since 1970. It
	// never removes a row that is not terminal. It returns how many it removed.
	Purge(ctx context.Context, before int64, max int) (int, error)
}
