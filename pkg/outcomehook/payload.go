package outcomehook

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
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

// pack makes a payload of the first n dead letters: as many as fit, one at least,
// and none behind a trigger.
func pack(caller string, ds []engine.DeadLetter) (body []byte, n int, err error) {
	p := Payload{Type: Type, Caller: caller}
	size := 0
	for i := range ds {
		d := &ds[i]
		if i > 0 && d.Channel == deadletter.ChannelTrigger {
			break
		}
		o := Outcome{
			ID: d.ID.String(), Epoch: d.Epoch, Seq: d.Seq, Status: d.Ended().String(), Campaign: d.Campaign, Channel: d.Channel,
			Category: d.Category, User: d.User, Template: d.Template, Class: d.Class, Code: d.Code, Provider: d.Provider,
			Attempts: d.Attempts, At: time.UnixMilli(d.LastFailed).UTC(), TraceID: notify.TraceID(d.Trace),
		}
		b, err := json.Marshal(o)
		if err != nil {
			return nil, 0, err
		}
		if size += len(b) + 1; i > 0 && size > maxBytes {
			break
		}
		p.Outcomes, p.Last = append(p.Outcomes, o), d.Seq
	}
	body, err = json.Marshal(p)
	return body, len(p.Outcomes), err
}

// traceOf is the trace of failures that are told together, where they have one in
// common: a callback belongs to one trace, and Outcome.TraceID says each its own.
func traceOf(ds []engine.DeadLetter) string {
	for i := range ds {
		if notify.TraceID(ds[i].Trace) != notify.TraceID(ds[0].Trace) {
			return ""
		}
	}
	return ds[0].Trace
}

// lastOf is where a trigger ends that was made before; first is what it must
// begin with.
func lastOf(body []byte, first *engine.DeadLetter) (uint64, error) {
	var p Payload
	err := json.Unmarshal(body, &p)
	if err != nil || len(p.Outcomes) == 0 || p.Outcomes[0].Seq != first.Seq || p.Last < first.Seq {
		return 0, fmt.Errorf("outcome: the trigger for failure %d of %q tells of something else: %w", first.Seq, first.Caller, errOr(err))
	}
	return p.Last, nil
}

func errOr(err error) error {
	if err != nil {
		return err
	}
	return notify.Invalid("bad_payload", "last", "does not begin there")
}

// baseOf is the trigger that begins with a dead letter: the same each time, and
// in a store that was restored and numbers anew another one.
func baseOf(caller string, first *engine.DeadLetter) notify.Base {
	h := sha256.New()
	fmt.Fprintf(h, "outcomes\x00%s\x00%s\x00", caller, first.ID)
	h.Write(binary.BigEndian.AppendUint64(nil, first.Seq))
	h.Write(binary.BigEndian.AppendUint16(nil, first.Epoch))
	b := notify.NewBase(time.UnixMilli(first.LastFailed))
	copy(b[6:], h.Sum(nil))
	return b
}
