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

// exchange is one request and its answer. It is used again after the request.
type exchange struct {
	srv   *Server
	route *route
	w     http.ResponseWriter
	r     *http.Request
	start time.Time

	query     query     // its parameters; of routes with a token
	id        *Identity // nil on routes without a token
	who       *caller   // the same
	counted   *atomic.Int64
	requestID string
	admitted  *limit.Admitted // of a batch or a fan-out
	load      *request.Load   // of a load run that has a grant; nil: of none
	body      body
	audits    bool         // what the request does is recorded
	act       api.AuditRow // its row of the audit log; Seq 0: none yet
	status    int          // 0: nothing written yet
	out       int64
}

// Header values that are the same in every answer; never changed.
var (
	typeJSON    = []string{api.TypeJSON}
	typeNDJSON  = []string{api.TypeNDJSON}
	typeProblem = []string{api.TypeProblem}
	noStore     = []string{"no-store"}
	isTrue      = []string{"true"}
	atLeastOnce = []string{api.AtLeastOnce}
)

// bytes answers with a body that is JSON already.
func (x *exchange) bytes(status int, body []byte) error {
	h := x.w.Header()
	if body != nil {
		h["Content-Type"] = typeJSON
	}
	if len(body) >= 2048 { // smaller ones net/http counts itself
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	x.write(status, body)
	return nil
}

// json answers with v.
func (x *exchange) json(status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return &notify.Error{Kind: notify.KindInternal, Code: "encode", Err: err}
	}
	x.w.Header()["Cache-Control"] = noStore
	return x.bytes(status, append(b, '\n'))
}

// reply answers with v unless err is not nil, which it returns.
func (x *exchange) reply(v any, err error) error {
	if err != nil {
		return err
	}
	return x.json(http.StatusOK, v)
}

// write sends the answer; an error of it means the client is gone, which is
// nobody's fault here.
func (x *exchange) write(status int, body []byte) {
	x.status = status
	x.w.WriteHeader(status)
	if body == nil {
		return
	}
	n, _ := x.w.Write(body)
	x.out += int64(n)
}

// deadlines moves the connection's deadlines for this request: until its body
// must be there, and until its answer must be written. The zero time is none.
func (x *exchange) deadlines(read, write time.Time) {
	rc := http.NewResponseController(x.w)
	_ = rc.SetReadDeadline(read) // a recorder in a test has none
	_ = rc.SetWriteDeadline(write)
}

// decode reads the body as one JSON value, strictly (request.Decode).
func (x *exchange) decode(v any) error {
	if request.Media(x.r.Header.Get("Content-Type")) != request.JSON {
		return request.Unsupported(request.JSON)
	}
	return request.Decode(x.body.data, v)
}

// operator reports whether the token sees everybody's or, where something is
// changed, may change everybody's.
func (x *exchange) operator() bool {
	return x.id.Has(api.ScopeOperate) || x.looks() && x.id.Has(api.ScopeObserve)
}

// sees reports whether the request may see what belongs to a caller.
func (x *exchange) sees(caller string) bool { return caller == x.id.Caller || x.operator() }

// listedCaller returns whose things a list is of: the caller's own, and for an operator
// those of the caller that the query names; empty: everybody's.
func (x *exchange) listedCaller() string {
	if x.operator() {
		return x.query.text("caller")
	}
	return x.id.Caller
}

// looks reports that the request changes nothing.
func (x *exchange) looks() bool { return x.r.Method == http.MethodGet || x.r.Method == http.MethodHead }

// may reports whether the token may ask for the route: it has its scope, or is of
// an operator who looks at what callers look at.
func (x *exchange) may() bool {
	if x.id.Has(x.route.scope) {
		return true
	}
	ofCallers := x.route.scope == api.ScopeRead || x.route.scope == api.ScopeTrigger
	return ofCallers && x.looks() && x.id.Has(api.ScopeObserve)
}

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

// pagePath is where the operator page is. It is served here and not by the admin
// listener, for here are TLS and tokens.
const pagePath = "/ui/"

// maxPages is how many requests of the page are under way at a time: the form to
// sign in is open to whoever reaches the API, and takes none of callers' room.
const maxPages = 256

// servePage hands over to the page, which answers in HTML, its errors too.
func servePage(x *exchange) error {
	x.srv.page.ServeHTTP(&told{x.w, x}, x.r)
	return nil
}

// told tells the exchange what was answered.
type told struct {
	http.ResponseWriter
	x *exchange
}

func (t *told) WriteHeader(status int) {
	t.x.status = cmp.Or(t.x.status, status)
	t.ResponseWriter.WriteHeader(status)
}

func (t *told) Write(b []byte) (int, error) {
	t.x.status = cmp.Or(t.x.status, http.StatusOK)
	n, err := t.ResponseWriter.Write(b)
	t.x.out += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (t *told) Unwrap() http.ResponseWriter { return t.ResponseWriter }
