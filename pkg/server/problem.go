package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// fail answers with an error. What is ours to mend is logged and not told.
func (x *exchange) fail(err error) {
	e := x.classify(err)
	status := api.StatusOf(e.Kind, e.Code)
	x.report(status, err)
	if x.status != 0 {
		return // the answer is under way; it ends here
	}
	h := x.w.Header()
	h["Content-Type"] = typeProblem
	h["Cache-Control"] = noStore
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", challenge(e))
	}
	if t, ok := errors.AsType[*throttled](err); ok {
		t.headers(h)
	}
	switch {
	case e.RetryAfter > 0:
		h.Set("Retry-After", strconv.FormatInt(seconds(e.RetryAfter), 10))
	case status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	p := problemOf(e, status)
	p.RequestID = x.requestID
	b, _ := json.Marshal(p) // strings and a number always marshal
	x.write(status, append(b, '\n'))
}

// classify returns err as one of ours, without what a caller must not see.
func (x *exchange) classify(err error) *notify.Error {
	e, ok := errors.AsType[*notify.Error](err)
	switch {
	case ok && notify.KindOf(err) != notify.KindInternal:
		return e
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return notify.Unavailable("timeout", 0, err)
	}
	return &notify.Error{Kind: notify.KindInternal, Code: "internal", Msg: "an error on our side; give the request_id when you report it"}
}

func problemOf(e *notify.Error, status int) api.Problem {
	code := e.Code
	if code == "" {
		code = e.Kind.String()
	}
	return api.Problem{
		Type: "urn:notifyd:" + code, Title: http.StatusText(status), Status: status,
		Detail: e.Msg, Code: code, Field: e.Field,
	}
}

// challenge is WWW-Authenticate's value (RFC 6750): no error code where no
// token was sent.
func challenge(e *notify.Error) string {
	if e.Code == "no_token" {
		return `Bearer realm="notifyd"`
	}
	return `Bearer realm="notifyd", error="invalid_token", error_description="` + e.Msg + `"`
}

// report logs what callers are not told: failures of ours, and of what we
// depend on, the latter at most once a second.
func (x *exchange) report(status int, err error) {
	log := x.srv.deps.Log
	attrs := []slog.Attr{
		slog.String("route", x.route.path), slog.String("request_id", x.requestID),
		slog.Int("status", status), slog.Any("error", err),
	}
	switch {
	case status == http.StatusServiceUnavailable && x.r.Context().Err() == nil:
		x.srv.unavailable.Do(func() {
			log.LogAttrs(x.r.Context(), slog.LevelWarn, "request refused: a dependency is unavailable", attrs...)
		})
	case status == http.StatusInternalServerError:
		log.LogAttrs(x.r.Context(), slog.LevelError, "request failed", attrs...)
	}
}
