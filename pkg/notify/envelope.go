package notify

import (
	"encoding/binary"
	"time"
)

// EnvelopeVersion is the version that this build writes. DecodeEnvelope returns ErrNewer for a
// higher one.
const EnvelopeVersion = 1

// Limits of one notification, in bytes. Intake enforces them.
const (
	MaxUserID    = 128
	MaxAddress   = 512
	MaxVariables = 8 << 10
	MaxTitle     = 1 << 10
	MaxBody      = 16 << 10
	MaxHTML      = 256 << 10
	MaxData      = 3 << 10
	MaxTemplate  = 128
	MaxCaller    = 128
)

// Envelope is the log record: content once, and the receivers of one chunk. A
// single send is a chunk of one. It is immutable once decoded; its slices and
// strings may alias the record it was decoded from.
type Envelope struct {
	Chunk    Chunk
	Fan      bool // ids carry the receiver's index
	Channel  Channel
	Category Category
	Accepted int64 // ms since 1970
	Expires  int64 // ms since 1970; 0: never
	Caller   string
	Campaign string // cmp_<ULID>; empty outside campaigns
	Trace    string // W3C traceparent; empty: none
	Content  Content

	TraceState string // W3C tracestate that came with Trace

	Epoch     uint16 // raised by a replay
	Attempt   uint16 // 0: first attempt
	Deferrals uint16 // how often these receivers were deferred
	First     uint32 // derived envelopes: request index of the first receiver
	NotBefore int64  // ms since 1970; 0: at once
	Cause     string // derived envelopes: code of the failure or deferral
	Parent    uint64 // derived envelopes: digest of the original chunk's receivers

	Count     uint32 // receivers in the column
	Total     uint32 // originals of a fan-out: receivers accepted in the whole request; 0: not known
	Receivers []byte // packed column, see envelope.proto; walk it with Each or a ReceiverReader
}

// LogKey returns the key of e's record in the log. For a single notification it is the user, so
// that the record goes to the user's partition. For a chunk of a fan-out it is nil: the chunk
// already has the partition of its users.
func (e *Envelope) LogKey() []byte {
	var r Receiver
	if rd := ReadReceivers(e.Receivers); e.Fan || !rd.Next(&r) {
		return nil
	}
	return r.User
}

// Chunk identifies the part of a request that one original envelope carries. The same request
// under the same reservation gives the same chunks, so a repeat writes duplicates that the
// worker drops.
type Chunk struct {
	Base      Base
	Partition uint16
	Block     uint32
}

// CauseCancelled is the Cause of an original envelope whose schedule was cancelled before it was
// due. The worker writes CANCELLED for it without a call.
const CauseCancelled = "cancelled"

// TimerID returns the id of the timer that holds the chunk until it is due. gen is the schedule's
// generation: each move raises it.
func (c Chunk) TimerID(gen uint32) []byte {
	b := append(make([]byte, 0, 26), c.Base[:]...)
	b = binary.BigEndian.AppendUint16(b, c.Partition)
	b = binary.BigEndian.AppendUint32(b, c.Block)
	if gen > 0 {
		b = binary.BigEndian.AppendUint32(b, gen)
	}
	return b
}

// Content is the text and data that every receiver of a request gets. Variables replace {{name}}
// in its texts. A receiver's own variable takes precedence over a shared one.
type Content struct {
	Template    string
	Title       string
	Body        string
	HTML        string
	Variables   []byte // JSON object or nil
	Data        []byte // JSON object or nil; push only
	CollapseKey string
	From        string
}

// Receiver is one entry of the column. Its slices alias the column.
type Receiver struct {
	Index     uint32
	User      []byte
	Address   []byte // nil: the worker looks it up in the profile
	Variables []byte // JSON object or nil
}

// Lane returns the lane of the envelope.
func (e *Envelope) Lane() Lane { return LaneOf(e.Channel, e.Category) }

// Key returns the key of the envelope's outcome row.
func (e *Envelope) Key() RowKey {
	return RowKey{Chunk: e.Chunk, Epoch: e.Epoch, Attempt: e.Attempt, Deferrals: e.Deferrals, First: e.First}
}

// ID returns the notification id of the receiver with this request index.
func (e *Envelope) ID(index uint32) ID {
	if !e.Fan {
		return ID{Base: e.Chunk.Base}
	}
	return ID{Base: e.Chunk.Base, Index: index, Fan: true}
}

// Derived reports whether the envelope is a retry, a deferral or a replay. An envelope that is not
// derived is an original: the chunk as intake accepted it. Only originals count as accepted.
func (e *Envelope) Derived() bool { return e.Epoch > 0 || e.Attempt > 0 || e.Deferrals > 0 }

// Expired reports whether the envelope's deadline has passed at now.
func (e *Envelope) Expired(now time.Time) bool {
	return e.Expires != 0 && now.UnixMilli() >= e.Expires
}
