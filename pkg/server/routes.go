package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/notify"
)

// class says which limits hold for a route.
type class uint8

const (
	classProbe   class = iota // answered whatever the load is
	classNormal               // counts against MaxInFlight
	classStream               // may last; counts against MaxStreams
	classReceipt              // without a token; counts against maxReceipts
	classPage                 // the operator page; counts against maxPages
)

// bodySize says how large a route's body may be.
type bodySize uint8

const (
	noBody bodySize = iota
	singleBody
	batchBody
	fanoutBody
	receiptBody
	formBody // of the operator page; few requests of it have one
)

// route is one row of the route table.
type route struct {
	method  string
	path    string // ServeMux pattern without method
	scope   string // the token needs it; empty: no token
	class   class
	body    bodySize
	handler handler
}

// handler answers a request. What it returns is answered as a problem.
type handler func(*Server, *exchange) error

// audited reports whether the audit log records each request of the route. It records
// operators' changes, and a backup, which carries every secret away. What operators
// change of callers is recorded where its owner is known (exchange.of).
func (rt *route) audited() bool {
	return rt.scope == api.ScopeOperate && (rt.method != http.MethodGet || rt.path == backupPath)
}

// actions are what rows of the audit log call what routes do.
var actions = map[string]string{
	"PUT /v1/ops/callers/{id}":           "caller.set",
	"POST /v1/ops/callers/{id}/secrets":  "caller.rotate-secret",
	"GET " + backupPath:                  "backup",
	"GET /v1/ops/debug":                  "debug.bundle",
	"GET /v1/notifications/{id}/content": "notification.read-content",
	"DELETE /v1/notifications/{id}":      "notification.cancel",
	"PATCH /v1/notifications/{id}":       "notification.reschedule",
	"DELETE /v1/campaigns/{id}":          "campaign.cancel",
	"DELETE /v1/triggers/{id}":           "trigger.cancel",
	"PATCH /v1/triggers/{id}":            "trigger.reschedule",
	"PUT /v1/users/{id}":                 "user.set",
	"POST " + liftPath:                   "suppression.lift",
	"POST /v1/ops/jobs":                  "job.apply",
}

// action names what a request of the route does, for the audit log.
func (rt *route) action(body []byte) string {
	switch set := rt.shown(body); {
	case strings.HasPrefix(rt.path, "/v1/ops/lanes/"):
		var in api.LaneChange
		if json.Unmarshal(set, &in) == nil && in.Paused != nil {
			return map[bool]string{true: "lane.pause", false: "lane.resume"}[*in.Paused]
		}
		return "lane.set"
	case rt.path == campaignPath && rt.method == http.MethodPatch:
		var in api.CampaignChange
		if json.Unmarshal(set, &in) == nil && in.Paused != nil {
			return map[bool]string{true: "campaign.pause", false: "campaign.resume"}[*in.Paused]
		}
		return "campaign.rate"
	case rt.path == testProviderPath:
		return testAction(body)
	case rt.path == jobPath:
		var in jobChange
		if json.Unmarshal(body, &in) == nil && slices.Contains(deadletter.Changes, in.Change) {
			return "job." + string(in.Change)
		}
		return "job.change"
	case strings.HasPrefix(rt.path, "/v1/ops/circuits/"):
		var in api.CircuitChange
		if json.Unmarshal(set, &in) == nil {
			switch in.To {
			case "open", "reset":
				return "circuit." + in.To
			case "closed":
				return "circuit.close"
			}
		}
		return "circuit.set"
	}
	if a := actions[rt.method+" "+rt.path]; a != "" {
		return a
	}
	return rt.method + " " + rt.path
}

const (
	liftPath     = "/v1/ops/suppressions:lift"
	campaignPath = "/v1/campaigns/{id}"
	jobPath      = "/v1/ops/jobs/{id}"
)

// shown is what a row of the audit log says of a change: of lanes, campaigns, circuits and
// lifted suppressions, which hold no secret, and only what they are made of, for a body may hold anything.
func (rt *route) shown(body []byte) json.RawMessage {
	var in any
	switch {
	case strings.HasPrefix(rt.path, "/v1/ops/lanes/"):
		in = &api.LaneChange{}
	case rt.path == campaignPath && rt.method == http.MethodPatch:
		in = &api.CampaignChange{}
	case strings.HasPrefix(rt.path, "/v1/ops/circuits/"):
		in = &api.CircuitChange{}
	case rt.path == liftPath:
		in = &api.SuppressionLift{}
	default:
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if d.Decode(in) != nil {
		return nil
	}
	out, err := json.Marshal(in)
	if err != nil || len(out) > maxShown {
		return nil
	}
	return out
}

// maxShown is how much of a change its row of the audit log holds, in bytes.
const maxShown = 1 << 10

// label names the route in metrics and logs.
func (rt *route) label() string { return rt.path }

// routes is the API: what is not in it does not exist, and the OpenAPI document
// is held against it by a test.
func routes() []route {
	const (
		get, post, put, del, patch = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch
	)
	jobs := needs("jobs", func(d *Deps) bool { return d.Jobs != nil })
	audit := needs("audit", func(d *Deps) bool { return d.Audit != nil })
	lanes := needs("lanes", func(d *Deps) bool { return d.Lanes != nil })
	suppressions := needs("suppressions", func(d *Deps) bool { return d.Suppressions != nil })
	circuits := needs("circuits", func(d *Deps) bool { return d.Circuits != nil })
	urls := needs("triggers", func(d *Deps) bool { return d.CheckURL != nil })
	providers := needs("providers", func(d *Deps) bool { return d.TestProvider != nil })
	schedules := needs("schedules", func(d *Deps) bool { return d.Schedules != nil })
	return []route{
		{post, "/v1/notifications", api.ScopeSend, classNormal, singleBody, (*Server).sendSingle},
		{post, "/v1/notifications:batch", api.ScopeSend, classNormal, batchBody, (*Server).sendBatch},
		{post, "/v1/notifications:fanout", api.ScopeSend, classNormal, fanoutBody, (*Server).sendFanout},
		{get, "/v1/notifications", api.ScopeRead, classNormal, noBody, within((*Server).listNotifications)},
		{get, "/v1/notifications/{id}", api.ScopeRead, classNormal, noBody, (*Server).getNotification},
		{get, "/v1/notifications/{id}/timeline", api.ScopeRead, classNormal, noBody, within((*Server).getTimeline)},
		{get, "/v1/notifications/{id}/content", api.ScopeRead, classNormal, noBody, within((*Server).getContent)},
		{del, "/v1/notifications/{id}", api.ScopeSend, classNormal, noBody, (*Server).cancelNotification},
		{patch, "/v1/notifications/{id}", api.ScopeSend, classNormal, singleBody, (*Server).reschedule},
		{post, "/v1/triggers", api.ScopeTrigger, classNormal, singleBody, (*Server).createTrigger},
		{post, "/v1/triggers:batch", api.ScopeTrigger, classNormal, batchBody, (*Server).createTriggers},
		{get, "/v1/triggers", api.ScopeTrigger, classNormal, noBody, (*Server).listTriggers},
		{get, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, noBody, (*Server).getTrigger},
		{del, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, noBody, (*Server).cancelTrigger},
		{patch, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, singleBody, (*Server).rescheduleTrigger},
		{get, "/v1/schedules", api.ScopeRead, classNormal, noBody, schedules((*Server).listSchedules)},
		{get, "/v1/schedules/forecast", api.ScopeObserve, classNormal, noBody, schedules((*Server).forecast)},
		{get, "/v1/campaigns", api.ScopeRead, classNormal, noBody, (*Server).listCampaigns},
		{get, "/v1/campaigns/{id}", api.ScopeRead, classNormal, noBody, (*Server).getCampaign},
		{patch, "/v1/campaigns/{id}", api.ScopeSend, classNormal, singleBody, (*Server).setCampaign},
		{del, "/v1/campaigns/{id}", api.ScopeSend, classNormal, noBody, (*Server).cancelCampaign},
		{get, "/v1/users/{id}", api.ScopeRead, classNormal, noBody, (*Server).getUser},
		{put, "/v1/users/{id}", api.ScopeUsers, classNormal, singleBody, (*Server).putUser},
		{get, "/v1/users/{id}/notifications", api.ScopeRead, classNormal, noBody, within((*Server).userHistory)},
		{get, "/v1/failed", api.ScopeRead, classStream, noBody, (*Server).failedFeed},
		{get, "/v1/tail", api.ScopeRead, classStream, noBody, (*Server).tail},
		{get, "/v1/ops/dead-letters", api.ScopeObserve, classNormal, noBody, (*Server).listDeadLetters},
		{get, "/v1/ops/dead-letters/{id}", api.ScopeObserve, classNormal, noBody, (*Server).getDeadLetter},
		{post, "/v1/ops/dead-letters:top", api.ScopeObserve, classNormal, singleBody, jobs((*Server).topDeadLetters)},
		{post, "/v1/ops/plans", api.ScopeObserve, classNormal, batchBody, jobs((*Server).makePlan)},
		{get, "/v1/ops/jobs", api.ScopeObserve, classNormal, noBody, jobs((*Server).listJobs)},
		{post, "/v1/ops/jobs", api.ScopeOperate, classNormal, batchBody, jobs((*Server).applyPlan)},
		{get, jobPath, api.ScopeObserve, classNormal, noBody, jobs((*Server).getJob)},
		{post, jobPath, api.ScopeOperate, classNormal, singleBody, jobs((*Server).changeJob)},
		{get, "/v1/ops/jobs/{id}/report", api.ScopeObserve, classNormal, noBody, jobs((*Server).jobReport)},
		{get, "/v1/ops/audit", api.ScopeObserve, classNormal, noBody, audit((*Server).listAudit)},
		{get, "/v1/ops/audit:run", api.ScopeObserve, classStream, noBody, (*Server).conservation},
		{get, "/v1/ops/audit:verify", api.ScopeObserve, classNormal, noBody, audit((*Server).verifyAudit)},
		{get, "/v1/ops/lanes", api.ScopeObserve, classNormal, noBody, lanes((*Server).listLanes)},
		{put, "/v1/ops/lanes/{name}", api.ScopeOperate, classNormal, singleBody, lanes((*Server).setLane)},
		{get, "/v1/ops/suppressions", api.ScopeObserve, classNormal, noBody, suppressions((*Server).listSuppressions)},
		{post, liftPath, api.ScopeOperate, classNormal, singleBody, suppressions((*Server).liftSuppression)},
		{get, "/v1/ops/circuits", api.ScopeObserve, classNormal, noBody, circuits((*Server).listCircuits)},
		{put, "/v1/ops/circuits/{name}", api.ScopeOperate, classNormal, singleBody, circuits((*Server).setCircuit)},
		{post, testProviderPath, api.ScopeOperate, classNormal, singleBody, providers((*Server).testProvider)},
		{get, "/v1/ops/callers", api.ScopeObserve, classNormal, noBody, (*Server).listCallers},
		{get, "/v1/ops/callers/{id}", api.ScopeObserve, classNormal, noBody, (*Server).getCaller},
		{put, "/v1/ops/callers/{id}", api.ScopeOperate, classNormal, singleBody, (*Server).putCaller},
		{post, "/v1/ops/callers/{id}/secrets", api.ScopeOperate, classNormal, singleBody, (*Server).rotateSecret},
		{get, "/v1/ops/url-check", api.ScopeObserve, classNormal, noBody, urls((*Server).checkURL)},
		{get, "/v1/ops/doctor", api.ScopeObserve, classNormal, noBody, (*Server).doctor},
		{get, backupPath, api.ScopeOperate, classStream, noBody, (*Server).backup},
		{get, "/v1/ops/lag", api.ScopeObserve, classNormal, noBody, (*Server).lag},
		{get, "/v1/ops/debug", api.ScopeOperate, classNormal, noBody, (*Server).debug},
		{get, "/v1/ops/rates", api.ScopeObserve, classNormal, noBody, (*Server).rates},
		{get, "/v1/ops/accounts", api.ScopeObserve, classNormal, noBody, (*Server).accounts},
		{post, "/v1/receipts/{provider}", "", classReceipt, receiptBody, (*Server).receipt},
		{get, "/openapi.yaml", "", classProbe, noBody, (*Server).openapi},
		{get, "/healthz", "", classProbe, noBody, (*Server).healthz},
		{get, "/readyz", "", classProbe, noBody, (*Server).readyz},
	}
}

// needs wraps handlers of routes that a server without a dependency answers with 503
// and code, before they look at the request.
func needs(code string, has func(*Deps) bool) func(handler) handler {
	return func(h handler) handler {
		return func(s *Server, x *exchange) error {
			if !has(&s.deps) {
				return notify.Unavailable(code, 0, nil)
			}
			return h(s, x)
		}
	}
}

// within gives a handler that reads history MaxWait to answer: behind a reader
// that is late or a store that is slow it would hang until the connection's end.
func within(h handler) handler {
	return func(s *Server, x *exchange) error {
		r := x.r
		ctx, stop := context.WithTimeout(r.Context(), s.cfg.MaxWait)
		defer stop()
		x.r = r.WithContext(ctx)
		defer func() { x.r = r }()
		err := h(s, x)
		if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return notify.Unavailable("history", time.Second, err)
		}
		return err
	}
}

// mux builds the handler of the table. Each path also answers the methods it
// does not have, and "/" every path there is not, both with a problem.
func (s *Server) mux(table []route) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, rt *route) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serve(rt, w, r) })
	}
	methods := map[string][]string{}
	for i := range table {
		rt := &table[i]
		handle(rt.method+" "+rt.path, rt)
		methods[rt.path] = append(methods[rt.path], rt.method)
		if rt.method == http.MethodGet {
			methods[rt.path] = append(methods[rt.path], http.MethodHead)
		}
	}
	for at, allowed := range methods {
		sort.Strings(allowed)
		allow := strings.Join(allowed, ", ")
		handle(at, &route{path: at, class: classProbe, handler: func(_ *Server, x *exchange) error {
			x.w.Header().Set("Allow", allow)
			return notify.Invalid(api.CodeMethodNotAllowed, "", "this path takes "+allow)
		}})
	}
	unknown := &route{path: "other", class: classProbe, handler: func(s *Server, x *exchange) error {
		if s.page != nil && x.r.Method == http.MethodGet && x.r.URL.Path == "/" && strings.Contains(x.r.Header.Get("Accept"), "text/html") {
			http.Redirect(&told{x.w, x}, x.r, pagePath, http.StatusSeeOther) // a browser: a person wants to look
			return nil
		}
		return &notify.Error{Kind: notify.KindNotFound, Code: api.CodeRouteNotFound, Msg: "there is no such path; GET /openapi.yaml lists them"}
	}}
	handle("/", unknown)
	const all = "DELETE, GET, HEAD, PATCH, POST, PUT"
	noPath := &route{path: "other", class: classProbe, handler: func(_ *Server, x *exchange) error {
		x.w.Header().Set("Allow", all)
		return notify.Invalid(api.CodeMethodNotAllowed, "", "this server is no proxy and takes no request without a path: a path takes some of "+all)
	}}
	if s.deps.Page != nil {
		s.page = s.deps.Page(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mux.ServeHTTP(w, r) }))
		handle(pagePath, &route{path: pagePath, class: classPage, body: formBody, handler: (*Server).servePage})
	}
	// ServeMux answers a path that is not clean with a redirect, without a request
	// id or a problem: here it is one there is not.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.RawPath
		if p == "" { // then nothing in it is escaped that matters here
			p = r.URL.Path
		}
		switch {
		case r.Method == http.MethodConnect || !strings.HasPrefix(p, "/"): // "*" is one
			s.serve(noPath, w, r)
		case isClean(p):
			mux.ServeHTTP(w, r)
		default:
			s.serve(unknown, w, r)
		}
	})
}

// isClean reports whether a path has no empty element, none of "." and none of
// "..": ServeMux redirects the others. An escaped dot is part of a name.
func isClean(p string) bool {
	if !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return true
	}
	clean := path.Clean(p)
	return p == clean || p == clean+"/"
}
