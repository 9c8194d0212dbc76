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

// Target is where a step sends its requests.
type Target interface {
	// Send sends a request and returns which of its messages were accepted. An error concerns all
	// messages of the request: it is then unknown whether the server has stored them. Send keeps no
	// reference to the body of the request.
	Send(ctx context.Context, r *Request) (Ack, error)
}

// Request is one request of a step.
type Request struct {
	Step     *Step
	N        int64         // number of the request in its step
	Seq      uint64        // number of the request's first message
	Size     int           // number of messages
	Intended time.Duration // due time, since the run's start
	Body     []byte
	Key      string // Idempotency-Key; empty: the request has no key
	WantIDs  bool   // true: the caller needs the ids in the answer

	kind kind
	data *data
}

// Ack holds the contents of an answer that is not an error.
type Ack struct {
	Request  int64
	Accepted int
	Rejected int
	// Base and Count are set for a fan-out. Count is the number of its receivers. For any other
	// request, the field IDs holds the accepted ids, if Request.WantIDs was true.
	Base  notify.Base
	Count int
	IDs   []string
	Step  *Step
}

// HTTP is a Target that uses the client of the API. The client must not retry, because each failed
// request counts.
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
	ack, err := r.readAck(reply.Body)
	if err != nil {
		return Ack{}, &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the JSON expected", Err: err}
	}
	return ack, nil
}

// readAck parses the answer to a request.
func (r *Request) readAck(reply []byte) (Ack, error) {
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

// readBatch parses the answer to a batch. If the ids are not needed, it reads only the counts at
// the end of the answer: decoding a thousand results would take more CPU time in the generator than
// the batch took in the server.
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

// sink is the target of null steps. It accepts everything and counts the messages.
type sink struct{ taken atomic.Int64 }

// Send implements Target.
func (s *sink) Send(_ context.Context, r *Request) (Ack, error) {
	s.taken.Add(int64(r.Size))
	return Ack{Accepted: r.Size}, nil
}

// classOf returns the class and the error code under which an error is counted.
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
