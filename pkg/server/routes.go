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

// routeClass says which limits apply to a route.
type routeClass uint8

const (
	classProbe   routeClass = iota // answered under any load
	classNormal                    // counts against MaxInFlight
	classStream                    // may last long; counts against MaxStreams
	classReceipt                   // without a token; counts against maxReceipts
	classPage                      // the operator page; counts against maxPages
	classes
)

// bodySize says how large the body of a route may be.
type bodySize uint8

const (
	noBody bodySize = iota
	singleBody
	batchBody
	fanoutBody
	receiptBody
	formBody // forms of the operator page; only few of its requests have a body
)

// route is a row of the route table.
type route struct {
	method  string
	path    string // ServeMux pattern without method
	scope   string // scope that the token must have; empty: no token
	class   routeClass
	body    bodySize
	handler handler
	query   string // parameters in the form of readQuery; routes without a token ignore parameters
}

// handler answers a request. If it returns an error, the error is sent as an api.Problem.
type handler func(*exchange) error

// audited returns true if the audit log records every request of the route. These are the changes
// by operators, and backups, because a backup contains every secret. A debug bundle contains no
// secret, and operators need it while the store of the audit log is down. For other routes see
// exchange.auditIfForeign.
func (rt *route) audited() bool {
	return rt.scope == api.ScopeOperate && (rt.method != http.MethodGet || rt.path == backupPath)
}

// describeFunc returns the name of an act and the part of the request body that the audit log may
// show. This part contains only known fields. It is nil if the body may contain a secret.
type describeFunc func(body []byte) (action string, shown json.RawMessage)

// fixedAction returns a describeFunc that always returns the same name, and shows nothing of the
// body.
func fixedAction(action string) describeFunc {
	return func([]byte) (string, json.RawMessage) { return action, nil }
}

// maxShown is how many bytes of a body an audit row may show.
const maxShown = 1 << 10

// bodyAction returns a describeFunc that decodes the body and gets the name of the act from the
// function in the parameter name. If the body is not exactly a T in JSON, that function gets the
// zero value of T. If the parameter shows is true, the audit row also shows the body.
func bodyAction[T any](shows bool, name func(*T) string) describeFunc {
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

// pauseAction returns the name of an act: <what>.pause or <what>.resume. If paused is nil, it
// returns <what>.<lastPart>.
func pauseAction(what string, paused *bool, lastPart string) string {
	switch {
	case paused == nil:
		return what + "." + lastPart
	case *paused:
		return what + ".pause"
	}
	return what + ".resume"
}

func laneAct(in *api.LaneChange) string { return pauseAction("lane", in.Paused, "set") }

func campaignAct(in *api.CampaignChange) string { return pauseAction("campaign", in.Paused, "rate") }

// routeActs describes the routes that the audit log records.
var routeActs = map[string]describeFunc{
	"PUT /v1/ops/callers/{id}":           fixedAction("caller.set"),
	"POST /v1/ops/callers/{id}/secrets":  fixedAction("caller.rotate-secret"),
	"GET " + backupPath:                  fixedAction("backup"),
	"GET /v1/notifications/{id}/content": fixedAction("notification.read-content"),
	"DELETE /v1/notifications/{id}":      fixedAction("notification.cancel"),
	"PATCH /v1/notifications/{id}":       fixedAction("notification.reschedule"),
	"DELETE /v1/campaigns/{id}":          fixedAction("campaign.cancel"),
	"DELETE /v1/triggers/{id}":           fixedAction("trigger.cancel"),
	"PATCH /v1/triggers/{id}":            fixedAction("trigger.reschedule"),
	"PUT /v1/users/{id}":                 fixedAction("user.set"),
	"POST /v1/ops/jobs":                  fixedAction("job.apply"),
	"POST " + liftPath:                   bodyAction(true, func(*api.SuppressionLift) string { return "suppression.lift" }),
	"PUT /v1/ops/lanes/{name}":           bodyAction(true, laneAct),
	"PATCH " + campaignPath:              bodyAction(true, campaignAct),
	"POST " + grantsPath:                 bodyAction(true, func(*api.LoadGrantRequest) string { return "load.grant" }),
	"POST " + grantPath: bodyAction(false, func(in *api.LoadGrantChange) string {
		if in.To == "approved" {
			return "load.approve"
		}
		return "load.revoke"
	}),
	"POST " + testProviderPath: bodyAction(false, func(in *api.ProviderTestRequest) string {
		if in.To != "" { // To is an address, which the audit log must not show; so bodyAction gets false
			return "provider.test-send"
		}
		return "provider.test"
	}),
	"POST " + jobPath: bodyAction(false, func(in *jobChange) string {
		if slices.Contains(deadletter.Changes, in.Change) {
			return "job." + string(in.Change)
		}
		return "job.change"
	}),
	"PUT /v1/ops/circuits/{name}": bodyAction(true, func(in *api.CircuitChange) string {
		switch in.To {
		case "open", "reset":
			return "circuit." + in.To
		case "closed":
			return "circuit.close"
		}
		return "circuit.set"
	}),
}

// act returns the name of the act of a request, and what the audit log shows of its body.
func (rt *route) act(body []byte) (action string, shown json.RawMessage) {
	name := rt.method + " " + rt.path
	if a := routeActs[name]; a != nil {
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

// routes returns all routes of the API. A test compares them with the OpenAPI document.
func routes() []route {
	const (
		get, post, put, del, patch = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch

		history = "limit=page cursor caller=operator channel status template campaign code since=time until=time"
		letters = "limit=page cursor channel category provider class code caller template state since=time until=time " +
			"attempts where"
	)
	jobs := requireDep("jobs", func(d *Deps) bool { return d.Jobs != nil })
	audit := requireDep("audit", func(d *Deps) bool { return d.Audit != nil })
	lanes := requireDep("lanes", func(d *Deps) bool { return d.Lanes != nil })
	suppressions := requireDep("suppressions", func(d *Deps) bool { return d.Suppressions != nil })
	circuits := requireDep("circuits", func(d *Deps) bool { return d.Circuits != nil })
	urls := requireDep("triggers", func(d *Deps) bool { return d.CheckURL != nil })
	triggers := requireDep("triggers", func(d *Deps) bool { return d.Triggers != nil })
	callers := requireDep("callers", func(d *Deps) bool { return d.Callers != nil })
	providers := requireDep("providers", func(d *Deps) bool { return d.TestProvider != nil })
	grants := requireDep("load_grants", func(d *Deps) bool { return d.Grants != nil })
	schedules := requireDep("schedules", func(d *Deps) bool { return d.Schedules != nil })
	return []route{
		{post, "/v1/notifications", api.ScopeSend, classNormal, singleBody, sendHandler(sendSingle), ""},
		{post, "/v1/notifications:batch", api.ScopeSend, classNormal, batchBody, sendHandler(sendBatch), ""},
		{post, "/v1/notifications:fanout", api.ScopeSend, classNormal, fanoutBody, sendHandler(sendFanout), ""},
		{get, "/v1/notifications", api.ScopeRead, classNormal, noBody, withMaxWait(answerHandler(listNotifications)), history},
		{get, "/v1/notifications/{id}", api.ScopeRead, classNormal, noBody, getNotification, "limit=count after"},
		{get, "/v1/notifications/{id}/timeline", api.ScopeRead, classNormal, noBody, withMaxWait(answerHandler(getTimeline)), ""},
		{get, "/v1/notifications/{id}/content", api.ScopeRead, classNormal, noBody, withMaxWait(answerHandler(getContent)), "address"},
		{del, "/v1/notifications/{id}", api.ScopeSend, classNormal, noBody, cancelNotification, ""},
		{patch, "/v1/notifications/{id}", api.ScopeSend, classNormal, singleBody, bodyHandler(rescheduleNotification), ""},
		{post, "/v1/triggers", api.ScopeTrigger, classNormal, singleBody, triggers(sendHandler(createTrigger)), ""},
		{post, "/v1/triggers:batch", api.ScopeTrigger, classNormal, batchBody, triggers(sendHandler(createTriggers)), ""},
		{get, "/v1/triggers", api.ScopeTrigger, classNormal, noBody, triggers(answerHandler(listTriggers)), "limit=page cursor status caller=operator"},
		{get, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, noBody, triggers(answerHandler(getTrigger)), ""},
		{del, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, noBody, triggers(changesTrigger(cancelTrigger)), ""},
		{patch, "/v1/triggers/{id}", api.ScopeTrigger, classNormal, singleBody, triggers(changesTrigger(rescheduleTrigger)), ""},
		{get, "/v1/schedules", api.ScopeRead, classNormal, noBody, schedules(answerHandler(listSchedules)), "limit=1000 cursor status user caller=operator"},
		{get, "/v1/schedules/forecast", api.ScopeObserve, classNormal, noBody, schedules(answerHandler(forecast)), "from=time to=time"},
		{get, "/v1/campaigns", api.ScopeRead, classNormal, noBody, answerHandler(listCampaigns), "limit=1000 cursor caller=operator"},
		{get, "/v1/campaigns/{id}", api.ScopeRead, classNormal, noBody, answerHandler(getCampaign), "limit=count after"},
		{patch, "/v1/campaigns/{id}", api.ScopeSend, classNormal, singleBody, bodyHandler(setCampaign), ""},
		{del, "/v1/campaigns/{id}", api.ScopeSend, classNormal, noBody, cancelCampaign, ""},
		{get, "/v1/users/{id}", api.ScopeRead, classNormal, noBody, answerHandler(getUser), ""},
		{put, "/v1/users/{id}", api.ScopeUsers, classNormal, singleBody, bodyHandler(putUser), ""},
		{get, "/v1/users/{id}/notifications", api.ScopeRead, classNormal, noBody, withMaxWait(answerHandler(userHistory)), history},
		{get, "/v1/failed", api.ScopeRead, classStream, noBody, answerHandler(failedFeed), "limit=page after=count wait=30s"},
		{get, "/v1/tail", api.ScopeRead, classStream, noBody, tailOutcomes, "caller=operator channel category status"},
		{get, "/v1/ops/dead-letters", api.ScopeObserve, classNormal, noBody, answerHandler(listDeadLetters), letters},
		{get, "/v1/ops/dead-letters/{id}", api.ScopeObserve, classNormal, noBody, answerHandler(getDeadLetter), "epoch=count"},
		{post, "/v1/ops/dead-letters:top", api.ScopeObserve, classNormal, singleBody, jobs(bodyHandler(topDeadLetters)), "limit=200"},
		{post, "/v1/ops/plans", api.ScopeObserve, classNormal, batchBody, jobs(bodyHandler(makePlan)), ""},
		{get, "/v1/ops/jobs", api.ScopeObserve, classNormal, noBody, jobs(answerHandler(listJobs)), "limit=page"},
		{post, "/v1/ops/jobs", api.ScopeOperate, classNormal, batchBody, jobs(applyPlan), ""},
		{get, jobPath, api.ScopeObserve, classNormal, noBody, jobs(answerHandler(getJob)), ""},
		{post, jobPath, api.ScopeOperate, classNormal, singleBody, jobs(bodyHandler(changeJob)), ""},
		{get, "/v1/ops/jobs/{id}/report", api.ScopeObserve, classNormal, noBody, jobs(answerHandler(jobReport)), "limit=page after=count"},
		{get, "/v1/ops/audit", api.ScopeObserve, classNormal, noBody, audit(answerHandler(listAudit)), "limit=page after=count"},
		{get, "/v1/ops/audit:run", api.ScopeObserve, classStream, noBody, answerHandler(runConservation), "since=time"},
		{get, "/v1/ops/audit:verify", api.ScopeObserve, classNormal, noBody, audit(answerHandler(verifyAudit)), "expect"},
		{get, "/v1/ops/lanes", api.ScopeObserve, classNormal, noBody, lanes(answerHandler(listLanes)), ""},
		{put, "/v1/ops/lanes/{name}", api.ScopeOperate, classNormal, singleBody, lanes(bodyHandler(setLane)), ""},
		{get, "/v1/ops/suppressions", api.ScopeObserve, classNormal, noBody, suppressions(answerHandler(listSuppressions)), "limit=page cursor user_id channel address code"},
		{post, liftPath, api.ScopeOperate, classNormal, singleBody, suppressions(bodyHandler(liftSuppression)), ""},
		{get, "/v1/ops/circuits", api.ScopeObserve, classNormal, noBody, circuits(answerHandler(listCircuits)), ""},
		{put, "/v1/ops/circuits/{name}", api.ScopeOperate, classNormal, singleBody, circuits(bodyHandler(setCircuit)), ""},
		{post, testProviderPath, api.ScopeOperate, classNormal, singleBody, providers(bodyHandler(testProvider)), ""},
		{get, "/v1/ops/callers", api.ScopeObserve, classNormal, noBody, callers(answerHandler(listCallers)), ""},
		{get, "/v1/ops/callers/{id}", api.ScopeObserve, classNormal, noBody, callers(answerHandler(getCaller)), ""},
		{put, "/v1/ops/callers/{id}", api.ScopeOperate, classNormal, singleBody, callers(bodyHandler(putCaller)), ""},
		{post, "/v1/ops/callers/{id}/secrets", api.ScopeOperate, classNormal, singleBody, callers(rotateSecret), ""},
		{get, grantsPath, api.ScopeObserve, classNormal, noBody, grants(answerHandler(listGrants)), ""},
		{post, grantsPath, api.ScopeOperate, classNormal, singleBody, grants(bodyHandler(makeGrant)), ""},
		{post, grantPath, api.ScopeOperate, classNormal, singleBody, grants(bodyHandler(changeGrant)), ""},
		{get, "/v1/load-grant", api.ScopeSend, classNormal, noBody, grants(answerHandler(ownGrant)), ""},
		{get, "/v1/ops/url-check", api.ScopeObserve, classNormal, noBody, urls(answerHandler(checkURL)), "url"},
		{get, "/v1/ops/doctor", api.ScopeObserve, classNormal, noBody, reportHandler("doctor"), ""},
		{get, backupPath, api.ScopeOperate, classStream, noBody, streamBackup, ""},
		{get, "/v1/ops/lag", api.ScopeObserve, classNormal, noBody, reportHandler("lag"), ""},
		{get, "/v1/ops/debug", api.ScopeOperate, classNormal, noBody, reportHandler("debug"), ""},
		{get, "/v1/ops/rates", api.ScopeObserve, classNormal, noBody, reportHandler("rates"), ""},
		{get, "/v1/ops/accounts", api.ScopeObserve, classNormal, noBody, reportHandler("accounts"), ""},
		{post, "/v1/receipts/{provider}", "", classReceipt, receiptBody, takeReceipt, ""},
		{get, "/openapi.yaml", "", classProbe, noBody, serveOpenAPI, ""},
		{get, "/healthz", "", classProbe, noBody, answerHealth, ""},
		{get, "/readyz", "", classProbe, noBody, answerReady, ""},
	}
}

// requireDep returns a function that wraps the handler of a route. If the dependency of the route
// is missing, the wrapped handler answers 503 with this error code, and does not read the request.
func requireDep(code string, has func(*Deps) bool) func(handler) handler {
	return func(h handler) handler {
		return func(x *exchange) error {
			if !has(&x.srv.deps) {
				return notify.Unavailable(code, 0, nil)
			}
			return h(x)
		}
	}
}

// answerHandler makes a handler from a function that returns an answer.
func answerHandler[T any](f func(*exchange) (T, error)) handler {
	return func(x *exchange) error { return x.reply(f(x)) }
}

// bodyHandler makes a handler from a function that gets the decoded JSON body and returns an
// answer.
func bodyHandler[In, Out any](f func(*exchange, In) (Out, error)) handler {
	return func(x *exchange) error {
		var in In
		if err := x.decode(&in); err != nil {
			return err
		}
		return x.reply(f(x, in))
	}
}

// withMaxWait wraps a handler that reads the history, so that it ends after MaxWait. Otherwise a
// slow store could block the handler until the deadline of the connection.
func withMaxWait(h handler) handler {
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

// mux builds the handler of the route table. If the path of a request is unknown or does not allow
// the method, this handler answers with an api.Problem.
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
			return notify.Invalid(api.CodeMethodNotAllowed, "", "this path allows only "+allow)
		}})
	}
	unknown := &route{path: "other", class: classProbe, handler: func(x *exchange) error {
		if s.page != nil && x.r.Method == http.MethodGet && x.r.URL.Path == "/" && strings.Contains(x.r.Header.Get("Accept"), "text/html") {
			http.Redirect(&statusRecorder{x.w, x}, x.r, pagePath, http.StatusSeeOther) // the client is a browser
			return nil
		}
		return &notify.Error{Kind: notify.KindNotFound, Code: api.CodeRouteNotFound, Msg: "there is no such path; GET /openapi.yaml lists all paths"}
	}}
	handle("/", unknown)
	const all = "DELETE, GET, HEAD, PATCH, POST, PUT"
	noPath := &route{path: "other", class: classProbe, handler: func(x *exchange) error {
		x.w.Header().Set("Allow", all)
		return notify.Invalid(api.CodeMethodNotAllowed, "", "this server is not a proxy; a request needs a path, with one of the methods "+all)
	}}
	if s.deps.Page != nil {
		s.page = s.deps.Page(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mux.ServeHTTP(w, r) }))
		handle(pagePath, &route{path: pagePath, class: classPage, body: formBody, handler: servePage})
	}
	// ServeMux would redirect a path that is not clean, and the answer would have no request id and
	// no api.Problem. So such a path is treated as an unknown path.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := r.URL.RawPath
		if p == "" { // the path has no escapes that matter here
			p = r.URL.Path
		}
		switch {
		case r.Method == http.MethodConnect || !strings.HasPrefix(p, "/"): // for example "*"
			s.serve(noPath, w, r)
		case isClean(p):
			mux.ServeHTTP(w, r)
		default:
			s.serve(unknown, w, r)
		}
	})
}

// isClean returns true if no element of the path is empty, "." or "..". ServeMux redirects paths
// that are not clean. An escaped dot counts as part of a name.
func isClean(p string) bool {
	if !strings.Contains(p, "//") && !strings.Contains(p, "/.") {
		return true
	}
	clean := path.Clean(p)
	return p == clean || p == clean+"/"
}
