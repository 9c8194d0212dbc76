// Package record turns the past traffic of a server into a load scenario. It records when
// messages were accepted, by kind, channel and category, how large requests and texts were,
// and how unevenly messages were spread over users.
//
//	Log, Archive, Server  read one source and call Add for each message: sources.go
//	Recorder              counts the messages: record.go
//	Steps, Write          make steps with traces of the counts: build.go, fit.go
//
// A scenario holds no content and no name of a user, caller or message. The Recorder counts
// users and callers by hash. The seed of the hash exists only in the Recorder.
//
// What may go wrong: the log may begin after the start of the period, and an archive may end
// before its end. Log returns short in the first case. In the second, Latest is before Until.
// Start reading at Recorder.Add.
package record

import (
	"hash/maphash"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Message describes one message, or some receivers of a fan-out, as a source reports it.
type Message struct {
	Trigger  bool        // a callback: it has no channel, category or user
	Fanout   bool        // a part of a fan-out
	Base     notify.Base // the request of a fan-out
	Count    int         // receivers that this call reports; 1 unless Fan
	Channel  notify.Channel
	Category notify.Category
	Caller   string
	Trace    string // trace id of the request, the same for all messages of a batch; empty: not known
	User     []byte // not set for a fan-out; Add does not keep it
	Accepted time.Time
	DueAfter time.Duration // from Accepted until it was due; 0: due at once
	Bytes    int           // length of its text; 0: not known
}

// Recorder counts messages. For each channel and category it needs about 50 bytes for each
// millisecond in which a caller sent messages, and about 50 bytes for each user. Only one
// goroutine may use it at a time.
type Recorder struct {
	since, until time.Time
	batchFrom    int
	seed         maphash.Seed

	streams map[stream]*streamStats
	moments map[momentKey]int          // messages that are not of fan-outs
	fanouts map[fanoutKey]*fanoutStats // fan-outs
	latest  time.Time                  // latest acceptance of any message, in the period or not
}

// stream identifies the messages that become one step. They become two steps if some of
// them were sent in batches and some alone.
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
	bytes, later distribution
	users        map[uint64]uint32 // messages by hash of the user
}

// New returns a Recorder of the messages accepted in [since, until). The id of a message does
// not say which request it came in, so the Recorder guesses which messages were one batch:
// those of one caller, channel and category in one millisecond with the same trace id. Where
// trace ids are not known, batch or more messages in that millisecond are a batch.
// New returns an error of notify.KindInvalid for a period that is empty or longer than 24 h,
// and for a batch below 2.
func New(since, until time.Time, batch int) (*Recorder, error) {
	switch {
	case !since.Before(until):
		return nil, notify.Invalid("bad_period", "until", "must be after since")
	case until.Sub(since) > maxLength:
		return nil, notify.Invalid("bad_period", "until", "must be at most 24h after since")
	case batch < 2:
		return nil, notify.Invalid("out_of_range", "batch_from", "must be at least 2: a request with one message is not a batch")
	}
	return &Recorder{
		since: since.Truncate(time.Second), until: until, batchFrom: batch, seed: maphash.MakeSeed(),
		streams: map[stream]*streamStats{}, moments: map[momentKey]int{}, fanouts: map[fanoutKey]*fanoutStats{},
	}, nil
}

// maxLength is the longest period. It bounds the memory of a Recorder.
const maxLength = 24 * time.Hour

// Since returns the start of the recorded period.
func (r *Recorder) Since() time.Time { return r.since }

// Until returns the end of the recorded period.
func (r *Recorder) Until() time.Time { return r.until }

// Latest returns when the youngest message of all calls to Add was accepted, in the period
// or not. It returns the zero time if there was none.
func (r *Recorder) Latest() time.Time { return r.latest }

// Add counts a message, unless it was accepted outside the period.
func (r *Recorder) Add(m *Message) {
	if m.Accepted.After(r.latest) {
		r.latest = m.Accepted
	}
	if m.Accepted.Before(r.since) || !m.Accepted.Before(r.until) {
		return
	}
	later := m.DueAfter > 0 || m.Trigger // a callback is always scheduled, even one that is due at once
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
