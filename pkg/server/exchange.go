package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
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
