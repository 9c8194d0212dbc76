package server

import (
	"context"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/trace"
)

// sendFunc processes a body once for each Idempotency-Key.
type sendFunc = func(context.Context, request.Meta, []byte) (request.Answer, error)

func sendSingle(d *Deps) sendFunc     { return d.Intake.Single }
func sendBatch(d *Deps) sendFunc      { return d.Intake.Batch }
func sendFanout(d *Deps) sendFunc     { return d.Intake.Fanout }
func createTrigger(d *Deps) sendFunc  { return d.Triggers.Register }
func createTriggers(d *Deps) sendFunc { return d.Triggers.RegisterBatch }

// sendHandler makes a handler that passes the body to a method of a service in Deps, for example to
// Intake.Single. The function in the parameter to chooses the method. Each route has its own
// Idempotency-Keys, so the same key may be used on two routes.
func sendHandler(to func(*Deps) sendFunc) handler {
	return func(x *exchange) error {
		name := x.r.Pattern // set by ServeMux, e.g. "POST /v1/triggers"
		span := x.srv.deps.Tracer.Request(name, trace.FromHeader(x.r.Header), x.start)
		defer span.End()
		err := sendTraced(x, name, &span, to(&x.srv.deps))
		if span.Recording() {
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

func sendTraced(x *exchange, name string, span *trace.Span, to sendFunc) error {
	ctx, c := x.r.Context(), span.Context()
	if span.Recording() {
		ctx = trace.ContextWith(ctx, c)
	}
	m := request.Meta{Caller: x.id.Caller, Users: x.id.Users, Route: name, Trace: c.Parent, TraceState: c.State, Load: x.load}
	if ks := x.r.Header[api.HeaderIdempotencyKey]; len(ks) > 0 {
		if len(ks) > 1 || ks[0] == "" {
			return notify.Invalid("bad_idempotency_key", api.HeaderIdempotencyKey, "must be given once and must not be empty")
		}
		m.Key = ks[0]
	}
	if fs := x.r.Header[api.HeaderIdempotencyFallback]; len(fs) > 0 {
		if len(fs) > 1 || fs[0] != api.AtLeastOnce {
			return notify.Invalid("bad_idempotency_key", api.HeaderIdempotencyFallback, `must be "at-least-once" or omitted`)
		}
		m.AtLeastOnce = true
	}
	if ts := x.r.Header["Content-Type"]; len(ts) > 0 { // only one value: readBody refuses more
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
