package server

import (
	"context"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/intake"
	"github.com/notifyd/notifyd/pkg/notify"
)

func (s *Server) sendSingle(x *exchange) error {
	return x.send("POST /v1/notifications", s.deps.Intake.Single)
}

func (s *Server) sendBatch(x *exchange) error {
	return x.send("POST /v1/notifications:batch", s.deps.Intake.Batch)
}

func (s *Server) sendFanout(x *exchange) error {
	return x.send("POST /v1/notifications:fanout", s.deps.Intake.Fanout)
}

// send hands the body to intake. key scope and route are one string, so that
// the same key may be used on two routes.
func (x *exchange) send(name string, to func(context.Context, intake.Meta, []byte) (intake.Answer, error)) error {
	if err := x.only(); err != nil {
		return err
	}
	m := intake.Meta{Caller: x.id.Caller, Route: name, Trace: trace(x.r)}
	if ks := x.r.Header[api.HeaderIdempotencyKey]; len(ks) > 0 {
		if len(ks) > 1 || ks[0] == "" {
			return notify.Invalid("bad_idempotency_key", api.HeaderIdempotencyKey, "one key that is not empty")
		}
		m.Key = ks[0]
	}
	if ts := x.r.Header["Content-Type"]; len(ts) > 0 { // one: see readBody
		m.ContentType = ts[0]
	}
	a, err := to(x.r.Context(), m, x.body.data)
	if err != nil {
		return err
	}
	if a.Replayed {
		x.w.Header()[api.HeaderIdempotencyReplayed] = isTrue
	}
	return x.bytes(a.Status, a.Body)
}
