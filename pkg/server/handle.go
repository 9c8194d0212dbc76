package server

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
)

// serve handles one request from start to end.
func (s *Server) serve(rt *route, w http.ResponseWriter, r *http.Request) {
	x, _ := s.exchanges.Get().(*exchange)
	if x == nil {
		x = new(exchange)
	}
	*x = exchange{srv: s, route: rt, w: w, r: r, start: s.deps.Now()}
	defer s.finish(x)
	x.requestID = s.requestID(r)
	w.Header()[api.HeaderRequestID] = []string{x.requestID}
	if err := s.handle(x); err != nil {
		x.fail(err)
	}
}

// finish ends a request: it frees what the request used and calls the hooks. It also turns a panic
// of a handler into a 500, so that other requests are not affected.
func (s *Server) finish(x *exchange) {
	if v := recover(); v != nil {
		if v == http.ErrAbortHandler { //nolint:errorlint // v is any; net/http compares it the same way
			panic(v)
		}
		s.deps.Log.Error("panic in a handler", slog.String("route", x.route.path), slog.String("stack", string(debug.Stack())))
		x.fail(fmt.Errorf("panic: %v", v))
	}
	if hook := s.deps.Hooks.Request; hook != nil {
		hook(x.route.path, methodLabel(x.r.Method), x.status, s.deps.Now().Sub(x.start), x.body.wireBytes, x.bytesOut)
	}
	if ctx := x.r.Context(); s.deps.Log.Enabled(ctx, slog.LevelDebug) {
		caller := ""
		if x.id != nil {
			caller = x.id.Caller
		}
		// Log the pattern and not the path, because a path may contain a user id.
		s.deps.Log.LogAttrs(ctx, slog.LevelDebug, "request",
			slog.String("method", methodLabel(x.r.Method)), slog.String("route", x.route.path), slog.Int("status", x.status),
			slog.String("caller", caller), slog.String("request_id", x.requestID),
			slog.Int64("in", x.body.wireBytes), slog.Int64("out", x.bytesOut), slog.Duration("took", s.deps.Now().Sub(x.start)))
	}
	x.body.release()
	if x.inFlightCounter != nil {
		x.inFlightCounter.Add(-1)
	}
	*x = exchange{}
	s.exchanges.Put(x)
}

// methodLabel returns the name of a method in metrics and logs. A client may send any text as a
// method, and each different label stays in memory while the process runs. So methods that no route
// uses get the label "other".
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return method
	}
	return "other"
}

// handle admits the request and calls its handler.
func (s *Server) handle(x *exchange) error {
	rt := x.route
	open := rt.scope == "" && rt.body != noBody
	if open { // before the request is counted, so that a slow client without a token does not use a place
		if err := readOpenBody(x); err != nil {
			return err
		}
	}
	if rt.class != classProbe {
		if err := s.enterClass(rt.class); err != nil {
			return err
		}
		defer s.leaveClass(rt.class)
	}
	if rt.scope != "" {
		if err := s.authorise(x); err != nil {
			return err
		}
	}
	if rt.body == batchBody || rt.body == fanoutBody {
		in, err := s.deps.Admission.Enter(x.r.ContentLength, x.startsUrgent)
		if err != nil {
			s.deps.Hooks.refused("overload")
			return err
		}
		defer in.Leave()
		x.admitted = in
	}
	if rt.body != noBody && !open {
		if err := s.readBody(x); err != nil {
			return err
		}
		x.admitted.Arrived()
	}
	if rt.audited() {
		x.startAudit()
	}
	var err error
	if rt.scope != "" {
		err = x.readQuery(rt.query)
	}
	if err == nil {
		err = rt.handler(x)
	}
	if err != nil && x.audits {
		return x.recordRefusal(err)
	}
	return err
}

// requestLimit counts the requests of a class that are in progress.
type requestLimit struct {
	max      int64
	reason   string // passed to Hooks.Refused
	underWay atomic.Int64
}

// enterClass counts the request in its class. It returns an error if too many requests of the class
// are in progress.
func (s *Server) enterClass(c routeClass) error {
	p := &s.places[c]
	if p.underWay.Add(1) > p.max {
		p.underWay.Add(-1)
		s.deps.Hooks.refused(p.reason)
		return &notify.Error{Kind: notify.KindUnavailable, Code: "busy", Msg: "too many requests are in progress", RetryAfter: time.Second}
	}
	if hook := s.deps.Hooks.InFlight; hook != nil {
		hook(1)
	}
	return nil
}

// leaveClass undoes enterClass.
func (s *Server) leaveClass(c routeClass) {
	s.places[c].underWay.Add(-1)
	if hook := s.deps.Hooks.InFlight; hook != nil {
		hook(-1)
	}
}

// authorise checks the token, its scope and its caller's rate.
func (s *Server) authorise(x *exchange) error {
	token, err := bearer(x.r)
	if err != nil {
		return err
	}
	if x.id, err = s.deps.Auth.Verify(x.r.Context(), token); err != nil {
		return err
	}
	markCallerConn(x.r)
	if !x.scopeAllows() {
		return &notify.Error{Kind: notify.KindForbidden, Code: "scope_missing", Msg: "the token lacks the scope " + x.route.scope}
	}
	if x.caller, err = s.callers.admitRequest(x.r.Context(), x.id.Caller, s.deps.Now()); err != nil {
		if notify.KindOf(err) == notify.KindThrottled {
			s.deps.Hooks.refused("rate")
		} else {
			s.deps.Hooks.refused("disabled")
		}
		return err
	}
	if err := admitLoad(s, x); err != nil {
		return err
	}
	return s.enterCaller(x)
}

// enterCaller counts the request for its caller. A caller may not have more requests in progress
// than it leaves places free for others. So a caller that is alone may use half of the places. A
// caller that has no other request in progress is always admitted.
func (s *Server) enterCaller(x *exchange) error {
	all, own, code := &s.places[x.route.class], &x.caller.inFlight, "caller_in_flight"
	if x.route.class == classStream {
		own, code = &x.caller.streams, "caller_streams"
	}
	n := own.Add(1)
	x.inFlightCounter = own // finish decrements it
	if n > max(1, all.max-all.underWay.Load()) {
		s.deps.Hooks.refused(code)
		return overShare(code, "this caller has used its share of concurrent requests; wait until some of them are answered")
	}
	return nil
}

func bearer(r *http.Request) (string, error) {
	hs := r.Header["Authorization"]
	switch {
	case len(hs) == 0:
		return "", unauthorized("no_token", "the request needs a bearer token", nil)
	case len(hs) > 1:
		return "", unauthorized("token_malformed", "the request has more than one Authorization header", nil)
	}
	const scheme = "Bearer "
	h := hs[0]
	if len(h) <= len(scheme) || !strings.EqualFold(h[:len(scheme)], scheme) {
		return "", unauthorized("token_malformed", "the Authorization header must have the form Bearer <token>", nil)
	}
	return strings.TrimLeft(h[len(scheme):], " "), nil
}

// readBody reads the body within the limits of the route. Small and large bodies use separate
// memory, so that an otp message never waits for a campaign.
func (s *Server) readBody(x *exchange) error {
	// A header may occur only once: proxies disagree about which of two headers with the same name
	// counts.
	for _, name := range [...]string{"Content-Type", "Content-Encoding"} {
		if len(x.r.Header[name]) > 1 {
			return notify.Invalid(api.CodeUnsupportedMediaType, name, "the request has more than one "+name+" header")
		}
	}
	limit, from := s.cfg.MaxSingle, s.small
	switch x.route.body {
	case batchBody:
		limit, from = s.cfg.MaxBatch, s.bulk
	case fanoutBody:
		limit, from = s.cfg.MaxFanout, s.bulk
	case receiptBody, formBody:
		limit, from = openBodyMemory(x)
	}
	var pace *bodyPace
	switch from {
	case s.bulk:
		pace = newBodyPace(x, s.cfg.BodyRate, s.cfg.BodyWindow, s.cfg.BulkReadTimeout)
	case s.posts, s.notes:
		pace = newBodyPace(x, s.cfg.BodyRate, s.cfg.BodyWindow, s.cfg.ReadTimeout)
	}
	err := x.body.read(x.r, limit, from, x.caller.share(from == s.bulk), pace)
	switch {
	case err == nil:
	case notify.KindOf(err) == notify.KindUnavailable:
		s.deps.Hooks.refused("memory")
	case notify.KindOf(err) == notify.KindThrottled:
		s.deps.Hooks.refused("caller_memory")
	}
	return err
}

// peekBytes is how many bytes of a body are read during an overload to find its category. The
// category decides whether the request is refused.
const peekBytes = 512

// startsUrgent returns true if the first peekBytes bytes of the body contain a category that is not
// bulk. They normally contain it: a fan-out has its category in its head, and a batch in its first
// item. startsUrgent returns false for a compressed body. It also returns false if the
// request has Expect: 100-continue, because then the client has not sent the body yet.
func (x *exchange) startsUrgent() bool {
	if x.r.Header.Get("Content-Encoding") != "" || x.r.Header.Get("Expect") != "" {
		return false
	}
	b := make([]byte, peekBytes)
	n, _ := x.r.Body.Read(b) // an error is ignored here, because reading the body returns it again
	x.r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b[:n]), x.r.Body), x.r.Body}
	_, rest, _ := bytes.Cut(b[:n], []byte(`"category"`))
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
	if !ok {
		return false
	}
	if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"`)); !ok {
		return false
	}
	name, _, ok := bytes.Cut(rest, []byte(`"`))
	cat, known := notify.ParseCategory(string(name))
	return ok && known && !cat.Bulk()
}

// requestID returns the client's request id if it is safe in a log, otherwise a new id.
func (s *Server) requestID(r *http.Request) string {
	if hs := r.Header[api.HeaderRequestID]; len(hs) == 1 && checkCaller(hs[0]) {
		return hs[0]
	}
	return s.newRequestID()
}

func (s *Server) newRequestID() string {
	var b [32]byte
	return string(strconv.AppendUint(append(append(b[:0], s.idPrefix...), '-'), s.idNext.Add(1), 36))
}
