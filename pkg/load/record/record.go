// Package record makes a load scenario out of what a server has done: what came when,
// by kind, channel and category; how large requests and texts were; how unevenly messages
// were spread over users.
//
//	Log, Archive, Server  sources: each tells a Recorder of messages
//	Recorder              counts them: record.go
//	Scenario              steps with traces of what was counted: build.go, fit.go
//
// Nothing that was sent and no name of a user, a caller or a message gets into a
// scenario. Users and callers are counted by hashes whose seed ends with the Recorder.
package record

import (
	"hash/maphash"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Message is what a source tells of one message, or of some receivers of a fan-out.
type Message struct {
	Trigger  bool        // a callback: it has no channel, category and user
	Fan      bool        // of a fan-out
	Base     notify.Base // of a fan-out: its request
	Count    int         // of a fan-out: receivers told of at once; of others 1
	Channel  notify.Channel
	Category notify.Category
	Caller   string
	Trace    string // of its request, the same for all messages of a batch; empty: not known
	User     []byte // not of a fan-out; it is not kept
	Accepted time.Time
	Later    time.Duration // how long after that it was due; 0: at once
	Bytes    int           // of its text; 0: not known
}

// Recorder counts messages. It holds some 50 bytes for each millisecond in which a caller
// sent messages of a channel and category, and for each user of these. It must not be used
// by two goroutines at a time.
type Recorder struct {
	since, until time.Time
	batch        int
	seed         maphash.Seed

	streams map[stream]*seen
	moments map[moment]int     // messages that are not of fan-outs
	fans    map[fanout]*fanned // fan-outs
	latest  time.Time          // acceptance of any message told of
}

// stream is what one step is made of, or two where batches are told from single messages.
type stream struct {
	trigger, fan, later bool
	channel             notify.Channel
	category            notify.Category
}

// moment is a millisecond of a caller.
type moment struct {
	stream
	caller uint64
	trace  uint64 // 0: not known
	ms     int64  // since the beginning
}

type fanout struct {
	stream
	base notify.Base
}

type fanned struct {
	ms        int64
	receivers int
}

// seen is what is known of a stream.
type seen struct {
	bytes, later spread
	users        map[uint64]uint32 // messages by hash of the user
}

// New returns a Recorder of what was accepted in [since, until). Messages of one caller,
// channel and category in one millisecond are a batch if they are of one trace, or, where
// traces are not known, from so many: ids do not say which request messages are of.
func New(since, until time.Time, batch int) (*Recorder, error) {
	switch {
	case !since.Before(until):
		return nil, notify.Invalid("bad_period", "until", "must be after since")
	case until.Sub(since) > maxLength:
		return nil, notify.Invalid("bad_period", "until", "must be at most 24h after since")
	case batch < 2:
		return nil, notify.Invalid("out_of_range", "batch_from", "must be at least 2: a request of one message is a single one")
	}
	return &Recorder{
		since: since.Truncate(time.Second), until: until, batch: batch, seed: maphash.MakeSeed(),
		streams: map[stream]*seen{}, moments: map[moment]int{}, fans: map[fanout]*fanned{},
	}, nil
}

// maxLength bounds what a Recorder holds.
const maxLength = 24 * time.Hour

// Since is the beginning of what is recorded, Until its end.
func (r *Recorder) Since() time.Time { return r.since }

// Until is the end of what is recorded.
func (r *Recorder) Until() time.Time { return r.until }

// Latest is when the youngest message was accepted that a source told of, in the period or
// not; the zero time: there was none.
func (r *Recorder) Latest() time.Time { return r.latest }

// Add counts a message, unless it was accepted outside the period.
func (r *Recorder) Add(m *Message) {
	if m.Accepted.After(r.latest) {
		r.latest = m.Accepted
	}
	if m.Accepted.Before(r.since) || !m.Accepted.Before(r.until) {
		return
	}
	later := m.Later > 0 || m.Trigger // a callback at once is one for later, too
	st := stream{m.Trigger, m.Fan, later, m.Channel, m.Category}
	s := r.streams[st]
	if s == nil {
		s = &seen{users: map[uint64]uint32{}}
		r.streams[st] = s
	}
	at := m.Accepted.Sub(r.since).Milliseconds()
	if m.Bytes > 0 {
		s.bytes.add(float64(m.Bytes))
	}
	if later {
		s.later.add(m.Later.Seconds())
	}
	if m.Fan {
		f := r.fans[fanout{st, m.Base}]
		if f == nil {
			f = &fanned{ms: at}
			r.fans[fanout{st, m.Base}] = f
		}
		f.receivers += m.Count
		return
	}
	of := moment{stream: st, caller: maphash.String(r.seed, m.Caller), ms: at}
	if m.Trace != "" {
		of.trace = maphash.String(r.seed, m.Trace)
	}
	r.moments[of]++
	if !m.Trigger {
		s.users[maphash.Bytes(r.seed, m.User)]++
	}
}
