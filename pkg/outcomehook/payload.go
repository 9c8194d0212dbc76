package outcomehook

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxOutcomes is the largest number of outcomes in one trigger. maxBytes is the largest size of
// these outcomes in the payload; it is well below the largest payload that a trigger may have.
const (
	maxOutcomes = 100
	maxBytes    = 30 << 10
)

// Type is the value of Payload.Type.
const Type = "notification.outcomes"

// Payload is the body that is posted to a caller's URL. It is the payload of a trigger.
type Payload struct {
	Type   string `json:"type"`
	Caller string `json:"caller"`
	// Last is the sequence number of the payload's last failure in the caller's feed. GET
	// /v1/failed?after=<last> returns the later failures. 0 means that the payload contains no
	// failures.
	Last uint64 `json:"last,omitempty"`
	// Position is set if the payload contains outcomes other than failures. It is the position of
	// the last of these outcomes in the topic notifications-outcomes. If the payload contains
	// failures, Position is nil.
	Position *Position `json:"position,omitempty"`
	Outcomes []Outcome `json:"outcomes"`
}

// Position is a position in the topic notifications-outcomes. If two callbacks report the same
// notification, the callback with the higher position is normally newer. But the receipt of a call
// may be reported before the outcome SENT of the same call. Then the state from the receipt is right.
type Position struct {
	Offset int64 `json:"offset"`
	Item   int   `json:"item"`
}

// Outcome is one notification that has ended.
type Outcome struct {
	ID       string    `json:"notification_id"`
	Epoch    uint16    `json:"epoch"`
	Seq      uint64    `json:"seq,omitempty"` // sequence number in the caller's feed; 0: the outcome is not a failure
	Status   string    `json:"status"`
	Campaign string    `json:"campaign,omitempty"`
	Channel  string    `json:"channel"`
	Category string    `json:"category"`
	User     string    `json:"user_id"`
	Template string    `json:"template,omitempty"`
	Class    string    `json:"class,omitempty"`
	Code     string    `json:"code,omitempty"`
	Provider string    `json:"provider,omitempty"`
	Attempts int       `json:"attempts"`
	At       time.Time `json:"failed_at,omitzero"`
	Ended    time.Time `json:"ended_at,omitzero"`  // set for outcomes other than failures
	TraceID  string    `json:"trace_id,omitempty"` // trace of the request that sent the notification
}

// packer collects the outcomes of one payload.
type packer struct {
	Payload
	size int // size of the outcomes, in bytes
}

func newPacker(caller string) *packer { return &packer{Payload: Payload{Type: Type, Caller: caller}} }

// add adds an outcome. It returns false if the outcome does not fit. The first outcome always fits.
func (p *packer) add(o Outcome) (bool, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return false, err
	}
	p.size += len(b) + 1
	if n := len(p.Outcomes); n == maxOutcomes || n > 0 && p.size > maxBytes {
		return false, nil
	}
	p.Outcomes = append(p.Outcomes, o)
	return true, nil
}

// commonTrace returns the trace context for a callback with these outcomes. If all outcomes have
// the same trace, it returns that trace context. Otherwise it returns "", because a callback
// belongs to at most one trace.
func commonTrace[T any](told []T, traceOf func(*T) string) string {
	first := traceOf(&told[0])
	for i := range told {
		if notify.TraceID(traceOf(&told[i])) != notify.TraceID(first) {
			return ""
		}
	}
	return first
}

// readTold reads the payload of a trigger that an earlier run made. The function fits reports
// whether the payload begins at the expected outcome. If it does not, readTold returns an error.
func readTold(body []byte, fits func(*Payload) bool) (p Payload, err error) {
	if err = json.Unmarshal(body, &p); err == nil && !fits(&p) {
		err = notify.Invalid("bad_payload", "last", "the payload does not begin at the expected outcome")
	}
	if err != nil {
		err = fmt.Errorf("outcomehook: the trigger that should report the outcomes already exists, but does not contain them: %w", err)
	}
	return p, err
}

// triggerBase computes a trigger's id from a time (millis, in ms since 1970) and from the values
// that identify its outcomes (names). The same outcomes always have the same time and values, so
// they always make the same trigger.
func triggerBase(millis int64, names ...any) notify.Base {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", names))
	b := notify.NewBase(time.UnixMilli(millis))
	copy(b[6:], sum[:])
	return b
}

func errorCode(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" {
		return e.Code
	}
	return notify.KindOf(err).String()
}
