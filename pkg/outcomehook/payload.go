package outcomehook

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxOutcomes is how many failures one trigger tells of, maxBytes how large its
// payload becomes at most: well below what a trigger may carry.
const (
	maxOutcomes = 100
	maxBytes    = 30 << 10
)

// Type is the type of the payload.
const Type = "notification.outcomes"

// Payload is what a caller's URL is posted, as the payload of a trigger.
type Payload struct {
	Type   string `json:"type"`
	Caller string `json:"caller"`
	// Last is the seq of the last one: GET /v1/failed?after=<last> goes on there.
	// 0: these are no failures.
	Last uint64 `json:"last,omitempty"`
	// Position is the last one's place in the log of other ends; nil: these are
	// failures.
	Position *Position `json:"position,omitempty"`
	Outcomes []Outcome `json:"outcomes"`
}

// Position is a place in the log of ends other than failures: of two callbacks with
// the same outcomes the one with the higher position is the later one. (A receipt may
// stand before the SENT of its call, and holds.)
type Position struct {
	Offset int64 `json:"offset"`
	Item   int   `json:"item"`
}

// Outcome is one notification that has ended.
type Outcome struct {
	ID       string    `json:"notification_id"`
	Epoch    uint16    `json:"epoch"`
	Seq      uint64    `json:"seq,omitempty"` // in the caller's feed; 0: no failure
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
	Ended    time.Time `json:"ended_at,omitzero"`  // of those that have not failed
	TraceID  string    `json:"trace_id,omitempty"` // of the request that sent it
}

// packer fills one payload.
type packer struct {
	Payload
	size int // of its outcomes, in bytes
}

func newPacker(caller string) *packer { return &packer{Payload: Payload{Type: Type, Caller: caller}} }

// add adds an outcome; false: it does not fit. One always does.
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

// commonTrace is the trace of outcomes that are told together, where they have one in
// common: a callback belongs to one trace, and Outcome.TraceID says each its own.
func commonTrace[T any](told []T, traceOf func(*T) string) string {
	first := traceOf(&told[0])
	for i := range told {
		if notify.TraceID(traceOf(&told[i])) != notify.TraceID(first) {
			return ""
		}
	}
	return first
}

// readTold reads the payload of a trigger that was made before. fits says whether it
// begins as it must.
func readTold(body []byte, fits func(*Payload) bool) (p Payload, err error) {
	if err = json.Unmarshal(body, &p); err == nil && !fits(&p) {
		err = notify.Invalid("bad_payload", "last", "does not begin there")
	}
	if err != nil {
		err = fmt.Errorf("outcome: a trigger that was made before tells of something else: %w", err)
	}
	return p, err
}

// triggerBase is the trigger that what names begins: the same each time.
func triggerBase(at int64, names ...any) notify.Base {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", names))
	b := notify.NewBase(time.UnixMilli(at))
	copy(b[6:], sum[:])
	return b
}

func code(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" {
		return e.Code
	}
	return notify.KindOf(err).String()
}
