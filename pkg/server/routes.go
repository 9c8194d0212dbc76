package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"slices"
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
	classes
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
	query   string // its parameters, as readQuery takes them; without a token all are passed over
}

// handler answers a request. What it returns is answered as a problem.
type handler func(*exchange) error

// audited reports whether the audit log records each request of the route. It records
// operators' changes, and a backup, which carries every secret away. What operators
// change of callers is recorded where its owner is known (exchange.of).
func (rt *route) audited() bool {
	return rt.scope == api.ScopeOperate && (rt.method != http.MethodGet || rt.path == backupPath)
}

// act says of a request's body what the audit log calls the request and, where the body
// holds no secret, what of it a row shows: only what it is made of, for a body may hold
// anything.
type act func(body []byte) (action string, shown json.RawMessage)

// named is the act of routes of which only the name is recorded.
func named(action string) act { return func([]byte) (string, json.RawMessage) { return action, nil } }

// maxShown is how much of a change its row of the audit log holds, in bytes.
const maxShown = 1 << 10

// namedBy is the act of routes whose body says what they do. name is given the zero
// value where the body is not strictly a T.
func namedBy[T any](shows bool, name func(*T) string) act {
	return func(body []byte) (string, json.RawMessage) {
		in := new(T)
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if d.Decode(in) != nil {
			return name(new(T)), nil
		}
		shown, err := json.Marshal(in)
		if !shows || err != nil || len(shown) > maxShown {
			shown = nil
		}
		return name(in), shown
	}
}

// pausing is the name of what pauses something or lets it go on; or where it does neither.
func pausing(what string, paused *bool, or string) string {
	switch {
	case paused == nil:
		return what + "." + or
	case *paused:
		return what + ".pause"
	}
	return what + ".resume"
}

func laneAct(in *api.LaneChange) string { return pausing("lane", in.Paused, "set") }

func campaignAct(in *api.CampaignChange) string { return pausing("campaign", in.Paused, "rate") }

// acts are those of the routes that the audit log records.
var acts = map[string]act{
	"PUT /v1/ops/callers/{id}":           named("caller.set"),
	"POST /v1/ops/callers/{id}/secrets":  named("caller.rotate-secret"),
	"GET " + backupPath:                  named("backup"),
	"GET /v1/ops/debug":                  named("debug.bundle"),
	"GET /v1/notifications/{id}/content": named("notification.read-content"),
	"DELETE /v1/notifications/{id}":      named("notification.cancel"),
	"PATCH /v1/notifications/{id}":       named("notification.reschedule"),
	"DELETE /v1/campaigns/{id}":          named("campaign.cancel"),
	"DELETE /v1/triggers/{id}":           named("trigger.cancel"),
	"PATCH /v1/triggers/{id}":            named("trigger.reschedule"),
	"PUT /v1/users/{id}":                 named("user.set"),
	"POST /v1/ops/jobs":                  named("job.apply"),
	"POST " + liftPath:                   namedBy(true, func(*api.SuppressionLift) string { return "suppression.lift" }),
	"PUT /v1/ops/lanes/{name}":           namedBy(true, laneAct),
	"PATCH " + campaignPath:              namedBy(true, campaignAct),
	"POST " + grantsPath:                 namedBy(true, func(*api.LoadGrantRequest) string { return "load.grant" }),
	"POST " + grantPath: namedBy(false, func(in *api.LoadGrantChange) string {
		if in.To == "approved" {
			return "load.approve"
		}
		return "load.revoke"
	}),
	"POST " + testProviderPath: namedBy(false, func(in *api.ProviderTestRequest) string {
		if in.To != "" { // the log keeps no address
			return "provider.test-send"
		}
		return "provider.test"
	}),
	"POST " + jobPath: namedBy(false, func(in *jobChange) string {
		if slices.Contains(deadletter.Changes, in.Change) {
			return "job." + string(in.Change)
		}
		return "job.change"
	}),
	"PUT /v1/ops/circuits/{name}": namedBy(true, func(in *api.CircuitChange) string {
		switch in.To {
		case "open", "reset":
			return "circuit." + in.To
		case "closed":
			return "circuit.close"
		}
		return "circuit.set"
	}),
}

// act returns what the audit log says of a request of the route.
func (rt *route) act(body []byte) (action string, shown json.RawMessage) {
	name := rt.method + " " + rt.path
	if a := acts[name]; a != nil {
		return a(body)
	}
	return name, nil
}

const (
	backupPath       = "/v1/ops/backup"
	campaignPath     = "/v1/campaigns/{id}"
	liftPath         = "/v1/ops/suppressions:lift"
	jobPath          = "/v1/ops/jobs/{id}"
	testProviderPath = "/v1/ops/providers/{name}/test"
)

// routes is the API: what is not in it does not exist, and the OpenAPI document
// is held against it by a test.
func routes() []route {
	const (
		get, post, put, del, patch = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch

		history = "limit=page cursor caller=operator channel status template campaign code since=time until=time"
		letters = "limit=page cursor channel category provider class code caller template state since=time until=time " +
			"attempts where"
	)
	jobs := needs("jobs", func(d *Deps) bool { return d.Jobs != nil })
	audit := needs("audit", func(d *Deps) bool { return d.Audit != nil })
	lanes := needs("lanes", func(d *Deps) bool { return d.Lanes != nil })
	suppressions := needs("suppressions", func(d *Deps) bool { return d.Suppressions != nil })
	circuits := needs("circuits", func(d *Deps) bool { return d.Circuits != nil })
	urls := needs("triggers", func(d *Deps) bool { return d.CheckURL != nil })
	triggers := needs("triggers", func(d *Deps) bool { return d.Triggers != nil })
	callers := needs("callers", func(d *Deps) bool { return d.Callers != nil })
	providers := needs("providers", func(d *Deps) bool { return d.TestProvider != nil })
	grants := needs("load_grants", func(d *Deps) bool { return d.Grants != nil })
	schedules := needs("schedules", func(d *Deps) bool { return d.Schedules != nil })
	return []route{
		{post, "/v1/notifications", api.ScopeSend, classNormal, singleBody, sends(sendSingle), ""},
		{post, "/v1/notifications:batch", api.ScopeSend, classNormal, batchBody, sends(sendBatch), ""},
		{post, "/v1/notifications:fanout", api.ScopeSend, classNormal, fanoutBody, sends(sendFanout), ""},
		{get, "/v1/notifications", api.ScopeRead, classNormal, noBody, within(answers(listNotifications)), history},
		{get, "/v1/notifications/{id}", api.ScopeRead, classNormal, noBody, getNotification, "limit=count after"},
		{get, "/v1/notifications/{id}/timeline", api.ScopeRead, classNormal, noBody, within(answers(getTimeline)), ""},
		{get, "/v1/notifications/{id}/content", api.ScopeRead, classNormal, noBody, within(answers(getContent)), "address"},
		{del, "/v1/notifications/{id}", api.ScopeSend, classNormal, noBody, cancelNotification, ""},
		{patch, "/v1/notifications/{id}", api.ScopeSend, classNormal, singleBody, takes(rescheduleNotification), ""},
		{post, "/v1/triggers", api.ScopeTrigger, classNormal, singleBody, triggers(sends(createTrigger)), ""},
		{post, "/v1/triggers:batch", api.ScopeTrigger, classNormal, batchBody, triggers(sends(createTriggers)), ""},
		{get, "/v1/triggers", api.ScopeTrigger, classNormal, noBody, triggers(answers(listTriggers)), "limit=page cursor status caller=operator"},
		{get, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, noBody, triggers(answers(getTrigger)), ""},
		{del, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, noBody, triggers(changesTrigger(cancelTrigger)), ""},
		{patch, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, singleBody, triggers(changesTrigger(rescheduleTrigger)), ""},
		{get, "/v1/schedules", api.ScopeRead, classNormal, noBody, schedules(answers(listSchedules)), "limit=1000 cursor status user caller=operator"},
		{get, "/v1/schedules/forecast", api.ScopeObserve, classNormal, noBody, schedules(answers(forecast)), "from=time to=time"},
		{get, "/v1/campaigns", api.ScopeRead, classNormal, noBody, answers(listCampaigns), "limit=1000 cursor caller=operator"},
		{get, "/v1/campaigns/{id}", api.ScopeRead, classNormal, noBody, answers(getCampaign), "limit=count after"},
		{patch, "/v1/campaigns/{id}", api.ScopeSend, classNormal, singleBody, takes(setCampaign), ""},
		{del, "/v1/campaigns/{id}", api.ScopeSend, classNormal, noBody, cancelCampaign, ""},
		{get, "/v1/users/{id}", api.ScopeRead, classNormal, noBody, answers(getUser), ""},
		{put, "/v1/users/{id}", api.ScopeUsers, classNormal, singleBody, takes(putUser), ""},
		{get, "/v1/users/{id}/notifications", api.ScopeRead, classNormal, noBody, within(answers(userHistory)), history},
		{get, "/v1/failed", api.ScopeRead, classStream, noBody, answers(failedFeed), "limit=page after=count wait=30s"},
		{get, "/v1/tail", api.ScopeRead, classStream, noBody, tailOutcomes, "caller=operator channel category status"},
		{get, "/v1/ops/dead-letters", api.ScopeObserve, classNormal, noBody, answers(listDeadLetters), letters},
		{get, "/v1/ops/dead-letters/{id}", api.ScopeObserve, classNormal, noBody, answers(getDeadLetter), "epoch=count"},
		{post, "/v1/ops/dead-letters:top", api.ScopeObserve, classNormal, singleBody, jobs(takes(topDeadLetters)), "limit=200"},
		{post, "/v1/ops/plans", api.ScopeObserve, classNormal, batchBody, jobs(takes(makePlan)), ""},
		{get, "/v1/ops/jobs", api.ScopeObserve, classNormal, noBody, jobs(answers(listJobs)), "limit=page"},
		{post, "/v1/ops/jobs", api.ScopeOperate, classNormal, batchBody, jobs(applyPlan), ""},
		{get, jobPath, api.ScopeObserve, classNormal, noBody, jobs(answers(getJob)), ""},
		{post, jobPath, api.ScopeOperate, classNormal, singleBody, jobs(takes(changeJob)), ""},
		{get, "/v1/ops/jobs/{id}/report", api.ScopeObserve, classNormal, noBody, jobs(answers(jobReport)), "limit=page after=count"},
		{get, "/v1/ops/audit", api.ScopeObserve, classNormal, noBody, audit(answers(listAudit)), "limit=page after=count"},
		{get, "/v1/ops/audit:run", api.ScopeObserve, classStream, noBody, answers(runConservation), "since=time"},
		{get, "/v1/ops/audit:verify", api.ScopeObserve, classNormal, noBody, audit(answers(verifyAudit)), "expect"},
		{get, "/v1/ops/lanes", api.ScopeObserve, classNormal, noBody, lanes(answers(listLanes)), ""},
		{put, "/v1/ops/lanes/{name}", api.ScopeOperate, classNormal, singleBody, lanes(takes(setLane)), ""},
		{get, "/v1/ops/suppressions", api.ScopeObserve, classNormal, noBody, suppressions(answers(listSuppressions)), "limit=page cursor user_id channel address code"},
		{post, liftPath, api.ScopeOperate, classNormal, singleBody, suppressions(takes(liftSuppression)), ""},
		{get, "/v1/ops/circuits", api.ScopeObserve, classNormal, noBody, circuits(answers(listCircuits)), ""},
		{put, "/v1/ops/circuits/{name}", api.ScopeOperate, classNormal, singleBody, circuits(takes(setCircuit)), ""},
		{post, testProviderPath, api.ScopeOperate, classNormal, singleBody, providers(takes(testProvider)), ""},
		{get, "/v1/ops/callers", api.ScopeObserve, classNormal, noBody, callers(answers(listCallers)), ""},
		{get, "/v1/ops/callers/{id}", api.ScopeObserve, classNormal, noBody, callers(answers(getCaller)), ""},
		{put, "/v1/ops/callers/{id}", api.ScopeOperate, classNormal, singleBody, callers(takes(putCaller)), ""},
		{post, "/v1/ops/callers/{id}/secrets", api.ScopeOperate, classNormal, singleBody, callers(rotateSecret), ""},
		{get, grantsPath, api.ScopeObserve, classNormal, noBody, grants(answers(listGrants)), ""},
		{post, grantsPath, api.ScopeOperate, classNormal, singleBody, grants(takes(makeGrant)), ""},
		{post, grantPath, api.ScopeOperate, classNormal, singleBody, grants(takes(changeGrant)), ""},
		{get, "/v1/load-grant", api.ScopeSend, classNormal, noBody, grants(answers(ownGrant)), ""},
		{get, "/v1/ops/url-check", api.ScopeObserve, classNormal, noBody, urls(answers(checkURL)), "url"},
		{get, "/v1/ops/doctor", api.ScopeObserve, classNormal, noBody, reports("doctor"), ""},
		{get, backupPath, api.ScopeOperate, classStream, noBody, streamBackup, ""},
		{get, "/v1/ops/lag", api.ScopeObserve, classNormal, noBody, reports("lag"), ""},
		{get, "/v1/ops/debug", api.ScopeOperate, classNormal, noBody, reports("debug"), ""},
		{get, "/v1/ops/rates", api.ScopeObserve, classNormal, noBody, reports("rates"), ""},
		{get, "/v1/ops/accounts", api.ScopeObserve, classNormal, noBody, reports("accounts"), ""},
		{post, "/v1/receipts/{provider}", "", classReceipt, receiptBody, takeReceipt, ""},
		{get, "/openapi.yaml", "", classProbe, noBody, serveOpenAPI, ""},
		{get, "/healthz", "", classProbe, noBody, answerHealth, ""},
		{get, "/readyz", "", classProbe, noBody, answerReady, ""},
	}
}

// needs wraps handlers of routes that a server without a dependency answers with 503
// and code, before they look at the request.
func needs(code string, has func(*Deps) bool) func(handler) handler {
	return func(h handler) handler {
		return func(x *exchange) error {
			if !has(&x.srv.deps) {
				return notify.Unavailable(code, 0, nil)
			}
			return h(x)
		}
	}
}

// answers makes a handler of what returns an answer.
func answers[T any](f func(*exchange) (T, error)) handler {
	return func(x *exchange) error { return x.reply(f(x)) }
}

// takes makes a handler of what takes a body, one JSON value, and returns an answer.
func takes[In, Out any](f func(*exchange, In) (Out, error)) handler {
	return func(x *exchange) error {
		var in In
		if err := x.decode(&in); err != nil {
			return err
		}
		return x.reply(f(x, in))
	}
}

// within gives a handler that reads history MaxWait to answer: behind a reader
// that is late or a store that is slow it would hang until the connection's end.
func within(h handler) handler {
	return func(x *exchange) error {
		r := x.r
		ctx, stop := context.WithTimeout(r.Context(), x.srv.cfg.MaxWait)
		defer stop()
		x.r = r.WithContext(ctx)
		defer func() { x.r = r }()
		err := h(x)
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
		slices.Sort(allowed)
		allow := strings.Join(allowed, ", ")
		handle(at, &route{path: at, class: classProbe, handler: func(x *exchange) error {
			x.w.Header().Set("Allow", allow)
			return notify.Invalid(api.CodeMethodNotAllowed, "", "this path takes "+allow)
		}})
	}
	unknown := &route{path: "other", class: classProbe, handler: func(x *exchange) error {
		if s.page != nil && x.r.Method == http.MethodGet && x.r.URL.Path == "/" && strings.Contains(x.r.Header.Get("Accept"), "text/html") {
			http.Redirect(&told{x.w, x}, x.r, pagePath, http.StatusSeeOther) // a browser: a person wants to look
			return nil
		}
		return &notify.Error{Kind: notify.KindNotFound, Code: api.CodeRouteNotFound, Msg: "there is no such path; GET /openapi.yaml lists them"}
	}}
	handle("/", unknown)
	const all = "DELETE, GET, HEAD, PATCH, POST, PUT"
	noPath := &route{path: "other", class: classProbe, handler: func(x *exchange) error {
		x.w.Header().Set("Allow", all)
		return notify.Invalid(api.CodeMethodNotAllowed, "", "this server is no proxy and takes no request without a path: a path takes some of "+all)
	}}
	if s.deps.Page != nil {
		s.page = s.deps.Page(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mux.ServeHTTP(w, r) }))
		handle(pagePath, &route{path: pagePath, class: classPage, body: formBody, handler: servePage})
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
