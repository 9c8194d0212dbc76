package engine

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TriggerState is where a trigger stands.
type TriggerState uint8

// The states.
const (
	TriggerPending   TriggerState = 1 // waits for NextAt
	TriggerInFlight  TriggerState = 2 // claimed until LeaseUntil; a call may be under way
	TriggerFired     TriggerState = 3 // terminal: answered 2xx
	TriggerFailed    TriggerState = 4 // terminal: refused for good, or out of attempts
	TriggerCancelled TriggerState = 5 // terminal: before any claim that counted
	TriggerExpired   TriggerState = 6 // terminal: later than its max_lateness allows
)

// Terminal reports whether a trigger in this state has ended.
func (s TriggerState) Terminal() bool { return s >= TriggerFired && s <= TriggerExpired }

// TriggerOpen is no state. With it List returns the rows that still need work: PENDING,
// IN_FLIGHT, and each FAILED row without its dead letter (NextAt is not 0).
const TriggerOpen TriggerState = 0xff

// IsOpen reports whether a row counts as TriggerOpen.
func (t *Trigger) IsOpen() bool {
	return t.State == TriggerPending || t.State == TriggerInFlight || t.State == TriggerFailed && t.NextAt != 0
}

// LatePolicy is what happens to a trigger later than its MaxLateness.
type LatePolicy uint8

// The policies.
const (
	LateFire       LatePolicy = 0 // fired all the same
	LateDrop       LatePolicy = 1 // EXPIRED
	LateDeadLetter LatePolicy = 2 // FAILED, and to triggers-dlq
)

// PayloadForm is how a payload was given, and is delivered.
type PayloadForm uint8

// The forms.
const (
	PayloadText   PayloadForm = 0 // UTF-8, as a JSON string
	PayloadJSON   PayloadForm = 1 // an object or array, embedded as it was written
	PayloadBase64 PayloadForm = 2 // any bytes, in base64
)

// Attempt is one call of a trigger's URL, or one that could not be made.
type Attempt struct {
	N       int           // 1 for the first
	At      int64         // ms since 1970
	Took    time.Duration // from the start of the call to its end
	Status  int           // HTTP status; 0: there was no answer
	Class   string        // "ok", "retry", "permanent", "denied", "timeout", ...
	Detail  string        // at most 256 bytes
	Body    []byte        // of the answer, at most 512 bytes
	Address string        // what was connected to
}

// Trigger is the state row of a callback at a future time.
type Trigger struct {
	ID      string // trg_<ULID>
	Caller  string
	URL     string
	Payload []byte // delivered byte for byte; at most 4,096 bytes of a caller's, 32 KiB of the server's own
	Form    PayloadForm
	Trace   string // W3C traceparent of the request that made it; empty: none
	// TraceState is the W3C tracestate beside Trace.
	TraceState string
	Created    int64 // ms since 1970
	FireAt     int64 // first attempt, after jitter; ms since 1970

	Schedule    []time.Duration // waits between attempts; nil: the default
	MaxLateness time.Duration   // 0: without limit
	Late        LatePolicy

	State      TriggerState
	Gen        uint32 // raised by each reschedule; messages of another are dropped
	Epoch      uint32 // raised by each claim
	Attempts   int    // calls that counted
	Deferrals  int    // waits that were no attempt: breaker, bulkhead, shutdown
	NextAt     int64  // next attempt, ms since 1970
	LeaseUntil int64  // of the claim, ms since 1970
	Ended      int64  // when it became terminal, ms since 1970; 0: it has not
	Reason     string // code of the last failure or deferral
	Log        []Attempt
	Version    uint64 // 1 for the first; raised by each swap
}

// Check returns notify.KindInvalid if Create and Swap must refuse the row.
func (t *Trigger) Check() error {
	switch {
	case t.ID == "":
		return notify.Invalid("bad_trigger", "id", "a trigger has an id")
	case len(t.ID) > 1<<10 || len(t.Caller) > 1<<15:
		return notify.Invalid("bad_trigger", "id", "an id has at most 1,024 bytes, a caller 32,768")
	}
	return nil
}

// TriggerSwap replaces a state row.
type TriggerSwap struct {
	Old uint64 // stored version that is replaced
	New Trigger
}

// TriggerCursor is a place in a caller's list, newest first.
type TriggerCursor struct {
	ID string
}

// Triggers keeps state rows. They are written by compare and swap alone.
type Triggers interface {
	// Create stores new rows, each with Version 1. won says of each whether it
	// was stored: false where the id was there already, which is left as it is.
	Create(ctx context.Context, ts []Trigger) (won []bool, err error)
	// Get returns rows in the order of ids, as of every swap answered before; an
	// id without a row yields a Trigger without ID.
	Get(ctx context.Context, ids []string) ([]Trigger, error)
	// Swap replaces rows whose stored version is Old, each with Version Old+1,
	// each for itself: won says of each whether it was. After an error any of
	// them may be replaced: the caller reads.
	Swap(ctx context.Context, ss []TriggerSwap) (won []bool, err error)
	// List returns rows of a caller ("": of all), newest id first, behind after
	// (zero: from the newest), at most max. state 0: of any state.
	List(ctx context.Context, caller string, state TriggerState, after TriggerCursor, max int) ([]Trigger, error)
	// CountOpen returns how many rows of a caller are TriggerOpen. Beyond most it
	// may stop counting. Rows that ended a moment ago may still be counted.
	CountOpen(ctx context.Context, caller string, most int) (int, error)
	// Purge removes terminal rows that ended before a time, ms since 1970, at
	// most max, never another one; it returns how many.
	Purge(ctx context.Context, before int64, max int) (int, error)
}
