package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// exchange is one request and its answer. After the answer the server reuses the exchange for
// another request. So a goroutine that lives longer than the request must not use it.
type exchange struct {
	srv   *Server
	route *route
	w     http.ResponseWriter
	r     *http.Request
	start time.Time

	query           query     // parameters; empty on routes without a token
	id              *Identity // nil on routes without a token
	caller          *caller   // nil on routes without a token
	inFlightCounter *atomic.Int64
	requestID       string
	admitted        *limit.Admitted // set for a batch or a fan-out
	load            *request.Load   // the limits of the request's load grant; nil: the request uses no grant
	body            body
	audits          bool         // the audit log records the request
	auditRow        api.AuditRow // the request's row in the audit log; Seq 0: no row yet
	status          int          // 0: nothing written yet
	bytesOut        int64
}

// Header values that are the same in every answer. Answers share them, so they are never changed.
var (
	typeJSON    = []string{api.TypeJSON}
	typeNDJSON  = []string{api.TypeNDJSON}
	typeProblem = []string{api.TypeProblem}
	noStore     = []string{"no-store"}
	isTrue      = []string{"true"}
	atLeastOnce = []string{api.AtLeastOnce}
)

// bytes sends the answer to the request. The parameter body is its JSON. nil: the answer has no
// body.
func (x *exchange) bytes(status int, body []byte) error {
	h := x.w.Header()
	if body != nil {
		h["Content-Type"] = typeJSON
	}
	if len(body) >= 2048 { // net/http sets it for smaller bodies
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	x.write(status, body)
	return nil
}

// json sends v as the answer, in JSON.
func (x *exchange) json(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return &notify.Error{Kind: notify.KindInternal, Code: "encode", Err: err}
	}
	x.w.Header()["Cache-Control"] = noStore
	return x.bytes(status, append(b, '\n'))
}

// reply sends v as the answer if err is nil. Otherwise it returns err.
func (x *exchange) reply(v any, err error) error {
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, v)
}

// write sends the answer. It ignores a write error, because the client has then disconnected.
func (x *exchange) write(status int, body []byte) {
	x.status = status
	x.w.WriteHeader(status)
	if body == nil {
		return
	}
	n, _ := x.w.Write(body)
	x.bytesOut += int64(n)
}

// deadlines sets the deadlines of the connection for this request: readUntil for reading the body,
// and writeUntil for writing the answer. A zero time means no deadline.
func (x *exchange) deadlines(readUntil, writeUntil time.Time) {
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(readUntil) // an error is ignored: the recorders of tests have no deadlines
	_ = rc.SetWriteDeadline(writeUntil)
}

// decode decodes the body as one JSON value, strictly (see request.Decode).
func (x *exchange) decode(v any) error {
	if request.Media(x.r.Header.Get("Content-Type")) != request.JSON {
		return request.Unsupported(request.JSON)
	}
	return request.Decode(x.body.data, v)
}

// operator returns true if the token may access the data of all callers. A request that only reads
// needs the scope "operate" or "observe". A request that changes something needs the scope
// "operate".
func (x *exchange) operator() bool {
	return x.id.Has(api.ScopeOperate) || x.isRead() && x.id.Has(api.ScopeObserve)
}

// sees returns true if the request may see the data of the given caller.
func (x *exchange) sees(caller string) bool { return caller == x.id.Caller || x.operator() }

// listedCaller returns the caller whose items a list shows: the caller of the token, or for an
// operator the caller in the query. If an operator's query names no caller, listedCaller returns
// "", which means all callers.
func (x *exchange) listedCaller() string {
	if x.operator() {
		return x.query.text("caller")
	}
	return x.id.Caller
}

// isRead returns true if the request cannot change anything.
func (x *exchange) isRead() bool {
	return x.r.Method == http.MethodGet || x.r.Method == http.MethodHead
}

// scopeAllows returns true if the token may use the route. This is so if the token has the scope of
// the route. A token with the scope "observe" may also read on the routes that are for callers.
func (x *exchange) scopeAllows() bool {
	if x.id.Has(x.route.scope) {
		return true
	}
	ofCallers := x.route.scope == api.ScopeRead || x.route.scope == api.ScopeTrigger
	return ofCallers && x.isRead() && x.id.Has(api.ScopeObserve)
}

// fail sends an error as the answer. It logs internal errors, and does not show their text to the
// client.
func (x *exchange) fail(err error) {
	e := x.classify(err)
	status := api.StatusOf(e.Kind, e.Code)
	x.report(status, err)
	if x.status != 0 {
		return // the answer has begun, so no error can be sent
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

// classify returns err as a *notify.Error, without details that a caller must not see.
func (x *exchange) classify(err error) *notify.Error {
	e, ok := errors.AsType[*notify.Error](err)
	switch {
	case ok && notify.KindOf(err) != notify.KindInternal:
		return e
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return notify.Unavailable("timeout", 0, err)
	}
	return &notify.Error{Kind: notify.KindInternal, Code: "internal", Msg: "internal error of the server; give the request_id when you report it"}
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

// challenge returns the value of the header WWW-Authenticate (RFC 6750). If the request had no
// token, the value has no error code.
func challenge(e *notify.Error) string {
	if e.Code == "no_token" {
		return `Bearer realm="notifyd"`
	}
	return `Bearer realm="notifyd", error="invalid_token", error_description="` + e.Msg + `"`
}

// report logs errors whose text is not shown to callers: internal failures, and failures of
// dependencies. For failures of dependencies, Server.unavailable limits how many lines are logged.
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

// pagePath is the path of the operator page. The listener of the API serves it, not the admin
// listener, because the page needs TLS and tokens.
const pagePath = "/ui/"

// maxPages limits how many requests of the page may be in progress. Everybody who reaches the API
// can open the sign-in form. So these requests do not count for the limit of callers.
const maxPages = 256

// servePage passes the request to the page. The page answers in HTML, also for errors.
func servePage(x *exchange) error {
	x.srv.page.ServeHTTP(&statusRecorder{x.w, x}, x.r)
	return nil
}

// statusRecorder records the status and the size of an answer in the exchange.
type statusRecorder struct {
	http.ResponseWriter
	x *exchange
}

func (t *statusRecorder) WriteHeader(status int) {
	t.x.status = cmp.Or(t.x.status, status)
	t.ResponseWriter.WriteHeader(status)
}

func (t *statusRecorder) Write(b []byte) (int, error) {
	t.x.status = cmp.Or(t.x.status, http.StatusOK)
	n, err := t.ResponseWriter.Write(b)
	t.x.bytesOut += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (t *statusRecorder) Unwrap() http.ResponseWriter { return t.ResponseWriter }
