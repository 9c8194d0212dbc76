// Package record turns the past traffic of a server into a load scenario. It records when messages
// were accepted, by kind, channel and category. It also records how large requests and texts were,
// and how unevenly messages were spread over users.
//
//	Log, Archive, Server  read one source and call Add for each message: sources.go
//	Recorder              counts the messages: record.go
//	Steps, Write          make steps with traces from the counts: build.go, fit.go
//
// A scenario contains no content, and no name of a user, caller or message. The Recorder stores
// users and callers only as hashes. The seed of the hash exists only in the Recorder.
//
// What may go wrong: messages may be missing. If the log begins within the period, the method Log
// returns true as its result short. If an archive ends before the end of the period, Latest returns
// an earlier time than Until.
//
// Start reading at Recorder.Add.
package record

import (
	"hash/maphash"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Message describes one message, or some receivers of a fan-out, as a source reports it.
type Message struct {
	Trigger  bool        // true: the message is a callback, which has no channel, category or user
	Fanout   bool        // true: the message is part of a fan-out
	Base     notify.Base // identifies the request of a fan-out
	Count    int         // number of receivers that this Message describes; 1 if Fanout is false
	Channel  notify.Channel
	Category notify.Category
	Caller   string
	Trace    string // trace id of the request, the same for all messages of a batch; empty: not known
	User     []byte // not set for a fan-out; Add keeps no reference to it
	Accepted time.Time
	DueAfter time.Duration // time from Accepted until the message was due; 0: due at once
	Bytes    int           // length of the message's text; 0: not known
}

// Recorder counts messages. It needs about 50 bytes for each millisecond in which a caller sent
// messages of one channel and category. It also needs about 50 bytes for each user of a channel and
// category. Only one goroutine may use a Recorder at a time.
type Recorder struct {
	since, until time.Time
	batchFrom    int
	seed         maphash.Seed

	streams map[stream]*streamStats
	// moments counts the messages of each momentKey, without the messages of fan-outs.
	moments map[momentKey]int
	fanouts map[fanoutKey]*fanoutStats
	latest  time.Time // latest acceptance of any message, inside or outside the period
}

// stream identifies the messages that become one step of the scenario. If some of these messages
// were sent in batches and others as single requests, the stream becomes two steps.
type stream struct {
	trigger, fanout, later bool
	channel                notify.Channel
	category               notify.Category
}

// momentKey identifies the messages that one caller sent in one millisecond.
type momentKey struct {
	stream
	caller uint64
	trace  uint64 // 0: not known
	ms     int64  // since the start of the period
}

type fanoutKey struct {
	stream
	base notify.Base
}

type fanoutStats struct {
	ms        int64
	receivers int
}

// streamStats holds the distributions of a stream.
type streamStats struct {
	bytes, later distribution      // text lengths in bytes; seconds from acceptance until due
	users        map[uint64]uint32 // number of messages by hash of the user
}

// New returns a Recorder of the messages that were accepted in the period [since, until). It
// returns an error of notify.KindInvalid if the period is empty or longer than 24 h, or if the
// parameter batchFrom is below 2.
//
// The id of a message does not show to which request it belonged. So the Recorder guesses: messages
// of one caller, channel and category in the same millisecond and with the same trace id were one
// batch. If trace ids are not known, messages of one caller, channel and category in the same
// millisecond count as one batch only if there are at least batchFrom such messages.
func New(since, until time.Time, batchFrom int) (*Recorder, error) {
	switch {
	case !since.Before(until):
		return nil, notify.Invalid("bad_period", "until", "must be after since")
	case until.Sub(since) > maxLength:
		return nil, notify.Invalid("bad_period", "until", "must be at most 24h after since")
	case batchFrom < 2:
		return nil, notify.Invalid("out_of_range", "batch_from", "must be at least 2: a request with one message is not a batch")
	}
	return &Recorder{
		since: since.Truncate(time.Second), until: until, batchFrom: batchFrom, seed: maphash.MakeSeed(),
		streams: map[stream]*streamStats{}, moments: map[momentKey]int{}, fanouts: map[fanoutKey]*fanoutStats{},
	}, nil
}

// maxLength is the longest period. It bounds the memory of a Recorder.
const maxLength = 24 * time.Hour

// Since returns the start of the recorded period.
func (r *Recorder) Since() time.Time { return r.since }

// Until returns the end of the recorded period.
func (r *Recorder) Until() time.Time { return r.until }

// Latest returns the latest time of acceptance of all messages that were passed to Add, inside or
// outside the period. It returns the zero time if Add was not called.
func (r *Recorder) Latest() time.Time { return r.latest }

// Add counts a message, unless it was accepted outside the period.
func (r *Recorder) Add(m *Message) {
	if m.Accepted.After(r.latest) {
		r.latest = m.Accepted
	}
	if m.Accepted.Before(r.since) || !m.Accepted.Before(r.until) {
		return
	}
	later := m.DueAfter > 0 || m.Trigger // a callback is always scheduled, even if it is due at once
	st := stream{m.Trigger, m.Fanout, later, m.Channel, m.Category}
	s := r.streams[st]
	if s == nil {
		s = &streamStats{users: map[uint64]uint32{}}
		r.streams[st] = s
	}
	at := m.Accepted.Sub(r.since).Milliseconds()
	if m.Bytes > 0 {
		s.bytes.add(float64(m.Bytes))
	}
	if later {
		s.later.add(m.DueAfter.Seconds())
	}
	if m.Fanout {
		f := r.fanouts[fanoutKey{st, m.Base}]
		if f == nil {
			f = &fanoutStats{ms: at}
			r.fanouts[fanoutKey{st, m.Base}] = f
		}
		f.receivers += m.Count
		return
	}
	of := momentKey{stream: st, caller: maphash.String(r.seed, m.Caller), ms: at}
	if m.Trace != "" {
		of.trace = maphash.String(r.seed, m.Trace)
	}
	r.moments[of]++
	if !m.Trigger {
		s.users[maphash.Bytes(r.seed, m.User)]++
	}
}
