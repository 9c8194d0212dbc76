package server

import (
	"context"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/trace"
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
func (x *exchange) send(name string, to func(context.Context, request.Meta, []byte) (request.Answer, error)) error {
	if err := x.only(); err != nil {
		return err
	}
	span := x.srv.deps.Tracer.Request(name, trace.FromHeader(x.r.Header), x.start)
	defer span.End()
	err := x.sendTraced(name, &span, to)
	if span.On() {
		span.Str("notifyd.caller", x.id.Caller)
		span.Str("http.route", x.route.label())
		span.Int("http.request.body.size", len(x.body.data))
		if err != nil {
			span.Fail(notify.KindOf(err).String())
		} else {
			span.Int("http.response.status_code", x.status)
		}
	}
	return err
}

func (x *exchange) sendTraced(name string, span *trace.Span, to func(context.Context, request.Meta, []byte) (request.Answer, error)) error {
	ctx, c := x.r.Context(), span.Context()
	if span.On() {
		ctx = trace.With(ctx, c)
	}
	m := request.Meta{Caller: x.id.Caller, Users: x.id.Users, Route: name, Trace: c.Parent, TraceState: c.State}
	if ks := x.r.Header[api.HeaderIdempotencyKey]; len(ks) > 0 {
		if len(ks) > 1 || ks[0] == "" {
			return notify.Invalid("bad_idempotency_key", api.HeaderIdempotencyKey, "one key that is not empty")
		}
		m.Key = ks[0]
	}
	if fs := x.r.Header[api.HeaderIdempotencyFallback]; len(fs) > 0 {
		if len(fs) > 1 || fs[0] != api.AtLeastOnce {
			return notify.Invalid("bad_idempotency_key", api.HeaderIdempotencyFallback, "is at-least-once, or left out")
		}
		m.AtLeastOnce = true
	}
	if ts := x.r.Header["Content-Type"]; len(ts) > 0 { // one: see readBody
		m.ContentType = ts[0]
	}
	a, err := to(ctx, m, x.body.data)
	if err != nil {
		return err
	}
	if a.Replayed {
		x.w.Header()[api.HeaderIdempotencyReplayed] = isTrue
	}
	if a.Unguarded {
		x.w.Header()[api.HeaderIdempotencyFallback] = atLeastOnce
		if hook := x.srv.deps.Hooks.Unguarded; hook != nil {
			hook(name)
		}
	}
	return x.bytes(a.Status, a.Body)
}
