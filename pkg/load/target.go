package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Target takes one request.
type Target interface {
	// Send sends a body and returns what became of its receivers. The body may
	// be reused after the return.
	Send(ctx context.Context, body []byte, key string) (Reply, error)
}

// Reply is the body of a good answer.
type Reply []byte

// outcome is what an answer says.
type outcome struct {
	accepted, rejected int
	ids                []string // of accepted receivers; for fan-outs the base is enough
	base               notify.Base
	holes              bool // some were rejected
}

// HTTP is a Target over the API's client.
type HTTP struct {
	Client *api.Client
	Path   string // of the route
}

// NewHTTP returns the target of a scenario against a server.
func NewHTTP(s Scenario, cl *api.Client) (*HTTP, error) {
	paths := map[string]string{
		Single: "/v1/notifications", Batch: "/v1/notifications:batch", Fanout: "/v1/notifications:fanout",
	}
	path, ok := paths[s.Target]
	if !ok {
		return nil, fmt.Errorf("%s is no target over HTTP", s.Target)
	}
	return &HTTP{Client: cl, Path: path}, nil
}

// Send implements Target.
func (h *HTTP) Send(ctx context.Context, body []byte, key string) (Reply, error) {
	r, err := h.Client.Post(ctx, h.Path, api.TypeJSON, body, key)
	return r.Body, err
}

// nowhere is the target of a null run.
type nowhere struct{}

func (nowhere) Send(context.Context, []byte, string) (Reply, error) { return nil, nil }

// read understands an answer.
func (s *Scenario) read(reply Reply, n int) (outcome, error) {
	switch s.Target {
	case Null:
		return outcome{accepted: n}, nil
	case Single:
		var a api.Accepted
		if err := json.Unmarshal(reply, &a); err != nil {
			return outcome{}, err
		}
		return outcome{accepted: 1, ids: []string{a.NotificationID}}, nil
	case Batch:
		var b api.BatchResult
		if err := json.Unmarshal(reply, &b); err != nil {
			return outcome{}, err
		}
		o := outcome{accepted: b.Accepted, rejected: b.Rejected}
		for _, it := range b.Results {
			if it.Error == nil {
				o.ids = append(o.ids, it.NotificationID)
			}
		}
		return o, nil
	}
	var f api.FanoutResult
	if err := json.Unmarshal(reply, &f); err != nil {
		return outcome{}, err
	}
	id, err := notify.ParseID(f.FirstID)
	return outcome{accepted: f.Accepted, rejected: f.RejectedCount, base: id.Base, holes: f.RejectedCount > 0}, err
}

// count is read for a run that asks nobody for the ids: of a batch's answer only
// the counts at its end are read, for decoding a thousand results would cost the
// generator more than the server spent on them.
func (s *Scenario) count(reply Reply, n int) (outcome, error) {
	at := bytes.LastIndex(reply, []byte(`],"accepted":`))
	if s.Target != Batch || at < 0 {
		return s.read(reply, n)
	}
	var b api.BatchResult
	if err := json.Unmarshal(append([]byte{'{'}, reply[at+2:]...), &b); err != nil {
		return outcome{}, err
	}
	return outcome{accepted: b.Accepted, rejected: b.Rejected}, nil
}

func errCode(err error) string {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code != "" {
		return e.Code
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return "error"
}
