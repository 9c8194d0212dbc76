package server

import (
	"context"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/trace"
)

// send takes a body, once per Idempotency-Key.
type send = func(context.Context, request.Meta, []byte) (request.Answer, error)

func sendSingle(d *Deps) send     { return d.Intake.Single }
func sendBatch(d *Deps) send      { return d.Intake.Batch }
func sendFanout(d *Deps) send     { return d.Intake.Fanout }
func createTrigger(d *Deps) send  { return d.Triggers.Register }
func createTriggers(d *Deps) send { return d.Triggers.RegisterBatch }

// sends makes a handler that hands the body to intake or to triggers. The route is the
// scope of keys, so that the same key may be used on two routes.
func sends(to func(*Deps) send) handler {
	return func(x *exchange) error {
		name := x.r.Pattern // of ServeMux: "POST /v1/triggers"
		span := x.srv.deps.Tracer.Request(name, trace.FromHeader(x.r.Header), x.start)
		defer span.End()
		err := sendTraced(x, name, &span, to(&x.srv.deps))
		if span.On() {
			span.Str("notifyd.caller", x.id.Caller)
			span.Str("http.route", x.route.path)
			span.Int("http.request.body.size", len(x.body.data))
			if err != nil {
				span.Fail(notify.KindOf(err).String())
			} else {
				span.Int("http.response.status_code", x.status)
			}
		}
		return err
	}
}

func sendTraced(x *exchange, name string, span *trace.Span, to send) error {
	ctx, c := x.r.Context(), span.Context()
	if span.On() {
		ctx = trace.With(ctx, c)
	}
	m := request.Meta{Caller: x.id.Caller, Users: x.id.Users, Route: name, Trace: c.Parent, TraceState: c.State, Load: x.load}
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
