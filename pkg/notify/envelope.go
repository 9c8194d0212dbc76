package notify

import (
	"encoding/binary"
	"time"
)

// EnvelopeVersion is the version that this build writes. DecodeEnvelope returns ErrNewer for a higher
// version.
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

// Envelope is the record of the log. It holds the content once, and the receivers of one chunk. A
// single send is a chunk with one receiver. An Envelope does not change after it was decoded. Its
// slices and strings may alias the record from which it was decoded.
type Envelope struct {
	Chunk    Chunk
	FanOut   bool // the request is a fan-out: the ids of its notifications contain the receiver's index
	Channel  Channel
	Category Category
	Accepted int64 // ms since 1970
	Expires  int64 // ms since 1970; 0: never
	Caller   string
	Campaign string // cmp_<ULID>; empty outside campaigns
	Trace    string // W3C traceparent; empty: none
	Content  Content

	TraceState string // W3C tracestate of the request that also gave Trace

	Epoch     uint16 // number of the replay; each replay raises it
	Attempt   uint16 // 0: first attempt
	Deferrals uint16 // how often the receivers of this envelope were deferred
	First     uint32 // only derived envelopes: request index of the first receiver
	NotBefore int64  // ms since 1970; 0: at once
	Cause     string // only derived envelopes: code of the failure or deferral
	Parent    uint64 // only derived envelopes: digest of the original chunk's receivers

	Count     uint32 // number of receivers in the field Receivers
	Total     uint32 // only originals of a fan-out: number of receivers accepted in the whole request; 0: not known
	Receivers []byte // packed column, see envelope.proto; read it with Each or a ReceiverReader
}

// LogKey returns the key of e's record in the log. For a single notification the key is the user,
// so that the record goes to the user's partition. For a chunk of a fan-out the key is nil, because
// intake has already chosen the partition that all users of the chunk belong to.
func (e *Envelope) LogKey() []byte {
	var r Receiver
	if rd := ReadReceivers(e.Receivers); e.FanOut || !rd.Next(&r) {
		return nil
	}
	return r.User
}

// Chunk identifies the part of a request that one original envelope carries. A repeated request with
// the same reservation gives the same chunks. So the repeat writes duplicates, and the worker drops
// them.
type Chunk struct {
	Base      Base
	Partition uint16
	Block     uint32
}

// CauseCancelled is the Cause of an original envelope whose schedule was cancelled before the schedule
// was due. The worker writes CANCELLED for such an envelope and makes no call.
const CauseCancelled = "cancelled"

// TimerID returns the id of the timer that stores the chunk until the chunk is due. The parameter
// gen is the schedule's generation, which each move of the schedule raises.
func (c Chunk) TimerID(gen uint32) []byte {
	b := append(make([]byte, 0, 26), c.Base[:]...)
	b = binary.BigEndian.AppendUint16(b, c.Partition)
	b = binary.BigEndian.AppendUint32(b, c.Block)
	if gen > 0 {
		b = binary.BigEndian.AppendUint32(b, gen)
	}
	return b
}

// Content is the text and data that every receiver of a request gets. Variables replace {{name}} in
// the texts. If a receiver and the content both have a value for a variable, the receiver's value
// is used.
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

// Receiver is one receiver in Envelope.Receivers. Its slices are parts of Envelope.Receivers.
type Receiver struct {
	Index     uint32
	User      []byte
	Address   []byte // nil: the worker reads the address from the profile
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
	if !e.FanOut {
		return ID{Base: e.Chunk.Base}
	}
	return ID{Base: e.Chunk.Base, Index: index, FanOut: true}
}

// Derived reports whether the envelope is a retry, a deferral or a replay. Every other envelope is an
// original: the chunk as intake accepted it. Only originals count as accepted.
func (e *Envelope) Derived() bool { return e.Epoch > 0 || e.Attempt > 0 || e.Deferrals > 0 }

// Expired reports whether the envelope's deadline has passed at the time now.
func (e *Envelope) Expired(now time.Time) bool {
	return e.Expires != 0 && now.UnixMilli() >= e.Expires
}
