package load

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Target takes one request.
type Target interface {
	// Send sends it and returns what became of its messages. An error is that of
	// all of them: what is then stored is not known. The request's body may be
	// reused after the return.
	Send(ctx context.Context, r *Request) (Ack, error)
}

// Request is what a step sends at once.
type Request struct {
	Step     *Step
	N        int64         // number of the request in its step
	Seq      uint64        // of its first message
	Size     int           // messages
	Intended time.Duration // since the run's start
	Body     []byte
	Key      string // Idempotency-Key; empty: none
	WantIDs  bool   // somebody asks for them

	kind kind
	data *data
}

// Ack is a good answer.
type Ack struct {
	Request  int64
	Accepted int
	Rejected int
	// Of a fan-out Base and Count, its receivers; otherwise the ids accepted, where
	// they were wanted.
	Base  notify.Base
	Count int
	IDs   []string
	Step  *Step
}

// HTTP is a Target over the API's client. Retries of the client must be 0: a
// failure is a figure.
type HTTP struct{ Client *api.Client }

var paths = [...]string{
	kindSingle: "/v1/notifications", kindBatch: "/v1/notifications:batch",
	kindFanout: "/v1/notifications:fanout", kindTrigger: "/v1/triggers",
}

// Send implements Target.
func (h *HTTP) Send(ctx context.Context, r *Request) (Ack, error) {
	reply, err := h.Client.Post(ctx, paths[r.kind], api.TypeJSON, r.Body, r.Key)
	if err != nil {
		return Ack{}, err
	}
	ack, err := r.read(reply.Body)
	if err != nil {
		return Ack{}, &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the JSON expected", Err: err}
	}
	return ack, nil
}

// read understands an answer.
func (r *Request) read(reply []byte) (Ack, error) {
	switch r.kind {
	case kindSingle:
		var a api.Accepted
		err := json.Unmarshal(reply, &a)
		return Ack{Accepted: 1, IDs: []string{a.NotificationID}}, err
	case kindTrigger:
		var a api.TriggerAccepted
		err := json.Unmarshal(reply, &a)
		return Ack{Accepted: 1, IDs: []string{a.TriggerID}}, err
	case kindBatch:
		return r.readBatch(reply)
	}
	var f api.FanoutResult
	if err := json.Unmarshal(reply, &f); err != nil {
		return Ack{}, err
	}
	id, err := notify.ParseID(f.FirstID)
	return Ack{Accepted: f.Accepted, Rejected: f.RejectedCount, Base: id.Base, Count: r.Size}, err
}

// readBatch reads only the counts at the end where nobody asks for the ids:
// decoding a thousand results would cost the generator more than the server spent
// on them.
func (r *Request) readBatch(reply []byte) (Ack, error) {
	var b api.BatchResult
	if at := bytes.LastIndex(reply, []byte(`],"accepted":`)); !r.WantIDs && at >= 0 {
		if err := json.Unmarshal(append([]byte{'{'}, reply[at+2:]...), &b); err != nil {
			return Ack{}, err
		}
		return Ack{Accepted: b.Accepted, Rejected: b.Rejected}, nil
	}
	if err := json.Unmarshal(reply, &b); err != nil {
		return Ack{}, err
	}
	a := Ack{Accepted: b.Accepted, Rejected: b.Rejected}
	for i := range b.Results {
		if b.Results[i].Error == nil {
			a.IDs = append(a.IDs, b.Results[i].NotificationID)
		}
	}
	return a, nil
}

// sink is the target of null steps: it takes everything, and counts it.
type sink struct{ taken atomic.Int64 }

// Send implements Target.
func (s *sink) Send(_ context.Context, r *Request) (Ack, error) {
	s.taken.Add(int64(r.Size))
	return Ack{Accepted: r.Size}, nil
}

// classOf says what kind of failure an error is, for counting.
func classOf(err error) (class, code string) {
	if e, ok := errors.AsType[*notify.Error](err); ok {
		return e.Kind.String(), cmp.Or(e.Code, "error")
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "transport", "timeout"
	case errors.Is(err, context.Canceled):
		return "transport", "stopped"
	}
	return "transport", "error"
}
