package server

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

const campaign = "cmp_01KAJ8Q2T5E7V9XCB3M4N6P8RS"

// matrixWorld holds something of caller "owner" behind every path.
func matrixWorld() (*world, *strings.Replacer) {
	w := newWorld()
	id := w.single(1, "owner", "u1")
	base := baseOf(2)
	w.fanout(base, "owner", campaign, 4, 2, nil)
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "owner", Parts: 1, Accepted: 4, Bases: []notify.Base{base}}
	w.users["u1"] = engine.Profile{User: "u1", Version: 1}
	w.dead = []engine.DeadLetter{{ID: id, Caller: "owner", Seq: 1, Code: "secret_failure", State: "dead"}}
	return w, strings.NewReplacer(
		"/notifications/{id}", "/notifications/"+id.String(), "/campaigns/{id}", "/campaigns/"+campaign,
		"/callers/{id}", "/callers/owner", "/lanes/{name}", "/lanes/push", "{name}", "caller:shop", "/jobs/{id}", "/jobs/job_1", "/load-grants/{id}", "/load-grants/lg_1", "/users/{id}", "/users/u1", "/dead-letters/{id}", "/dead-letters/"+id.String(), "{provider}", "twilio",
	)
}

// scheduledBase waits, far ahead; it is the owner's too.
var scheduledBase = baseOf(3)

func bodyFor(rt *route) string {
	switch rt.method + " " + rt.path {
	case "PATCH /v1/notifications/{id}":
		return `{"scheduled_at":"2027-01-16T10:00:00Z"}`
	case "PATCH /v1/campaigns/{id}":
		return `{"paused":true}`
	case "PATCH /v1/triggers/{id}":
		return `{"delay_seconds":60}`
	case "POST /v1/triggers":
		return `{"callback_url":"http://127.0.0.1:9/hooks/x","delay_seconds":60}`
	case "POST /v1/triggers:batch":
		return `[{"callback_url":"http://127.0.0.1:9/hooks/x","delay_seconds":60}]`
	case "PUT /v1/ops/lanes/{name}":
		return `{"paused":true}`
	case "POST /v1/ops/suppressions:lift":
		return `{"address":"+4915112345678"}`
	case "PUT /v1/ops/circuits/{name}":
		return `{"to":"reset"}`
	case "POST /v1/ops/providers/{name}/test":
		return `{"to":"+4915112345678"}`
	}
	if rt.body == noBody {
		return ""
	}
	return `{}`
}

// Every route against no token, every wrong scope, and another caller.
func TestRouteMatrix(t *testing.T) {
	t.Parallel()
	w, paths := matrixWorld()
	s := w.start(t, Config{}, func(d *Deps) {
		report := func() Report { return func(context.Context) (any, error) { return map[string]int{"n": 1}, nil } }
		d.Conservation = noDrift
		d.Doctor, d.Lag, d.Debug, d.Backup = report(), report(), report(), noBackup
		d.Rates, d.Accounts = report(), report()
		d.Callers = w.later.Callers()
		d.Grants = fakeGrants{"good": {Hosts: []string{"example.com"}}}
		d.Receipts = map[string]Receipt{"twilio": {Signature: "X-Twilio-Signature", Take: func(*http.Request, []byte) error { return nil }}}
	})
	w.schedule(t, scheduledBase, "owner", false)
	w.hooked(t, "owner")
	for _, rt := range routes() {
		name, path, body := rt.method+" "+rt.path, paths.Replace(rt.path), bodyFor(&rt)
		switch {
		case strings.HasPrefix(rt.path, "/v1/triggers/"): // one each: DELETE ends it
			path = "/v1/triggers/" + w.trigger(t, "owner")
		case rt.path == "/v1/ops/url-check":
			path += "?url=https%3A%2F%2Fshop.example%2F"
		case rt.path == "/v1/notifications/{id}" && rt.method == http.MethodPatch:
			path = "/v1/notifications/ntf_" + scheduledBase.String()
		}
		if rt.scope == "" {
			if got := ask(s, rt.method, path, "", body, header("X-Twilio-Signature", "x")); got.status >= 300 {
				t.Errorf("%s without a token: %d %s", name, got.status, got.body)
			}
			continue
		}
		got := ask(s, rt.method, path, "", body)
		if p := got.problem(t); got.status != 401 || p.Code != "no_token" || got.header.Get("WWW-Authenticate") != `Bearer realm="notifyd"` {
			t.Errorf("%s without a token: %d %q %s", name, got.status, got.header.Get("WWW-Authenticate"), got.body)
		}
		var others []string
		for _, sc := range api.Scopes {
			looks := sc == api.ScopeOperate || sc == api.ScopeObserve // operate includes observe
			ofCallers := rt.method == http.MethodGet && (rt.scope == api.ScopeRead || rt.scope == api.ScopeTrigger)
			if sc != rt.scope && !(looks && (rt.scope == api.ScopeObserve || ofCallers)) {
				others = append(others, sc)
			}
		}
		got = ask(s, rt.method, path, token(t, "owner", others...), body)
		if p := got.problem(t); got.status != 403 || p.Code != "scope_missing" {
			t.Errorf("%s with scopes %v: %d %s", name, others, got.status, got.body)
		}
		if rt.path == "/v1/tail" {
			continue // has a test of its own
		}
		var headers []option
		if rt.path == "/v1/load-grant" {
			headers = append(headers, header(api.HeaderLoad, "good"))
		}
		got = ask(s, rt.method, path, token(t, "owner", rt.scope), body, headers...)
		if got.status >= 300 {
			t.Errorf("%s of its owner: %d %s", name, got.status, got.body)
		}
		if rt.scope == api.ScopeOperate || rt.scope == api.ScopeObserve || rt.method == http.MethodPost || rt.scope == api.ScopeUsers || rt.path == "/v1/users/{id}" {
			continue // nobody's own: operators', new, or shared by decision
		}
		got = ask(s, rt.method, path, token(t, "stranger", rt.scope), body)
		if strings.Contains(got.body, "owner") || strings.Contains(got.body, "secret_failure") {
			t.Errorf("%s shows another caller's: %s", name, got.body)
		}
		if strings.Contains(rt.path, "{id}") && rt.path != "/v1/users/{id}/notifications" {
			missing := ask(s, rt.method, strings.NewReplacer("01KAJ8Q2T5E7V9XCB3M4N6P8RS", "01KAJ8Q2T5E7V9XCB3M4N6P8RT", baseOf(1).String(), baseOf(9).String(), scheduledBase.String(), baseOf(9).String(), "/triggers/trg_", "/triggers/trg_7").Replace(path), token(t, "stranger", rt.scope), body)
			clean := func(r reply) string { return strings.ReplaceAll(r.body, r.header.Get("X-Request-Id"), "") }
			if got.status != 404 || clean(got) != clean(missing) {
				t.Errorf("%s of another caller: %d %s, of nobody: %d %s", name, got.status, got.body, missing.status, missing.body)
			}
		}
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	w, _ := matrixWorld()
	s := w.start(t, Config{}, nil)
	f := func(method, path string, status int, code, allow string) {
		t.Helper()
		got := ask(s, method, path, "", "")
		if p := got.problem(t); got.status != status || p.Code != code || got.header.Get("Allow") != allow {
			t.Errorf("%s %s: %d %s, Allow %q", method, path, got.status, got.body, got.header.Get("Allow"))
		}
	}
	f("GET", "/", 404, api.CodeRouteNotFound, "")
	f("GET", "/v2/notifications", 404, api.CodeRouteNotFound, "")
	f("POST", "/v1/notifications:else", 404, api.CodeRouteNotFound, "")
	f("POST", "/v1/notifications/x/y/z", 404, api.CodeRouteNotFound, "")
	f("PUT", "/v1/notifications", 405, api.CodeMethodNotAllowed, "GET, HEAD, POST")
	f("PATCH", "/v1/notifications:batch", 405, api.CodeMethodNotAllowed, "POST")
	f("POST", "/v1/notifications/ntf_1", 405, api.CodeMethodNotAllowed, "DELETE, GET, HEAD, PATCH")
	f("DELETE", "/healthz", 405, api.CodeMethodNotAllowed, "GET, HEAD")
	for _, path := range []string{"/v1//notifications", "/v1/notifications//", "/./v1/notifications", "/v1/users/..", "/v1/users/.", "/v1/x/../notifications", "//v1/notifications", "/v1/users/../../openapi.yaml"} {
		f("POST", path, 404, api.CodeRouteNotFound, "")
	}
}

// An id is one element of a path, whatever is in it.
func TestUserIDsInPaths(t *testing.T) {
	t.Parallel()
	s := newWorld().start(t, Config{}, nil)
	tok := token(t, "shop", api.ScopeRead, api.ScopeUsers)
	for _, id := range []string{"ann", "a/b", "a//b", "//", "/a", "../a", "a/../b", "./a", "...", "a%2Fb", "a?b=c", "a#b", "a;b", "é", "a b", "+", "*", ":", "notifications"} {
		path := "/v1/users/" + url.PathEscape(id)
		if got := ask(s, "PUT", path, tok, `{"opt_out":["push"]}`); got.status != 200 {
			t.Errorf("PUT %s: %d %s", path, got.status, got.body)
		}
		var u api.User
		got := ask(s, "GET", path, tok, "")
		if got.into(t, &u); u.UserID != id {
			t.Errorf("GET %s: %d %s", path, got.status, got.body)
		}
	}
	for _, path := range []string{"%2e", "%2e%2e", "%00", "%ff", "a%0ab", "a%C2%9Bb", "%E2%80%AEa", strings.Repeat("x", 129)} {
		for _, end := range []string{"", "/notifications"} {
			if got := ask(s, "GET", "/v1/users/"+path+end, tok, ""); got.status != 422 || got.problem(t).Code != "bad_user_id" || got.problem(t).Field != "id" {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
	}
}

// A parameter that a route does not have is refused, and so is a header that
// says two things.
func TestWhatIsNotAskedForIsRefused(t *testing.T) {
	t.Parallel()
	w, paths := matrixWorld()
	report := func(context.Context) (any, error) { return 1, nil }
	s := w.start(t, Config{}, func(d *Deps) {
		d.Conservation = noDrift
		d.Doctor, d.Lag, d.Debug, d.Backup, d.Callers = report, report, report, noBackup, w.later.Callers()
		d.Rates, d.Accounts = report, report
	})
	w.schedule(t, scheduledBase, "owner", false)
	w.hooked(t, "owner")
	tok := token(t, "owner", api.Scopes[:]...)
	for _, rt := range routes() {
		if rt.scope == "" || rt.path == "/v1/tail" {
			continue // probes, the webhooks of others, and one that has a test of its own
		}
		path := paths.Replace(rt.path)
		if rt.method == http.MethodPatch {
			path = "/v1/notifications/ntf_" + scheduledBase.String()
		}
		got := ask(s, rt.method, path+"?no_such=1", tok, bodyFor(&rt))
		if p := got.problem(t); got.status != 422 || p.Code != "unknown_field" || p.Field != "no_such" {
			t.Errorf("%s %s: %d %s", rt.method, rt.path, got.status, got.body)
		}
		if rt.body == noBody {
			continue
		}
		for _, name := range []string{"Content-Type", "Content-Encoding"} {
			got := ask(s, rt.method, path, tok, bodyFor(&rt), func(r *http.Request) { r.Header[name] = []string{"application/json", "application/json"} })
			if p := got.problem(t); got.status != 415 || p.Field != name {
				t.Errorf("two of %s for %s: %d %s", name, rt.path, got.status, got.body)
			}
		}
	}
	if len(w.taken()) != 0 {
		t.Error("intake was asked")
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	s := newWorld().start(t, Config{}, nil)
	f := func(in, want string) {
		t.Helper()
		got := ask(s, "GET", "/healthz", "", "", header("X-Request-Id", in)).header.Get("X-Request-Id")
		if want == "" && (got == in || got == "") || want != "" && got != want {
			t.Errorf("%q came back as %q", in, got)
		}
	}
	f("order-7719:2", "order-7719:2")
	f("has space", "")
	f("line\nbreak", "")
	f(strings.Repeat("x", 129), "")
	a := ask(s, "GET", "/healthz", "", "").header.Get("X-Request-Id")
	b := ask(s, "GET", "/healthz", "", "").header.Get("X-Request-Id")
	if a == b || a == "" {
		t.Errorf("ids %q and %q", a, b)
	}
}

func TestIntakeIsToldWhatItNeeds(t *testing.T) {
	t.Parallel()
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w := newWorld()
	s := w.start(t, Config{}, nil)
	tok := token(t, "shop", api.ScopeSend)
	f := func(path, route, key, traceparent, wantTrace string) {
		t.Helper()
		opts := []option{header("Content-Type", "application/json; charset=utf-8"), header("Traceparent", traceparent), header("Tracestate", "vendor=x")}
		if key != "" {
			opts = append(opts, header("Idempotency-Key", key))
		}
		if got := ask(s, "POST", path, tok, `{}`, opts...); got.status != 201 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		all := w.taken()
		m := all[len(all)-1]
		if m.Caller != "shop" || m.Route != route || m.Key != key || m.Trace != wantTrace || (m.TraceState == "vendor=x") != (wantTrace != "") || m.ContentType != "application/json; charset=utf-8" {
			t.Errorf("%+v", m)
		}
	}
	f("/v1/notifications", "POST /v1/notifications", "", good, good)
	f("/v1/notifications:batch", "POST /v1/notifications:batch", "k1", "00-zz", "")
	f("/v1/notifications:fanout", "POST /v1/notifications:fanout", "k1", strings.ToUpper(good), "")
	if got := ask(s, "POST", "/v1/notifications", tok, `{}`, header("Idempotency-Key", "")); got.status != 422 {
		t.Errorf("empty key: %d", got.status)
	}
}

// TestMutatingRoutesOfOperators: each needs the full scope, whoever only looks is
// refused, and each leaves one row in the audit log.
func TestMutatingRoutesOfOperators(t *testing.T) {
	t.Parallel()
	w, paths := matrixWorld()
	var log *deadletter.AuditLog
	s := w.start(t, Config{}, func(d *Deps) {
		d.Callers = w.later.Callers()
		log = d.Audit
	})
	w.hooked(t, "owner")
	last := func() uint64 {
		n, err := log.Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := 0
	for _, rt := range routes() {
		if !strings.HasPrefix(rt.path, "/v1/ops/") {
			continue
		}
		name, path, body := rt.method+" "+rt.path, paths.Replace(rt.path), bodyFor(&rt)
		if rt.method == http.MethodGet || rt.path == "/v1/ops/plans" || rt.path == "/v1/ops/dead-letters:top" {
			if whole := rt.path == "/v1/ops/backup" || rt.path == "/v1/ops/debug"; rt.scope != api.ScopeObserve && !whole {
				t.Errorf("%s changes nothing and needs %q", name, rt.scope)
			}
			continue
		}
		if n++; rt.scope != api.ScopeOperate {
			t.Errorf("%s needs %q", name, rt.scope)
		}
		named := regexp.MustCompile(`^[a-z]+\.[a-z-]+$`) // not the route
		was := last()
		for _, scopes := range [][]string{{}, {api.ScopeObserve}, {api.ScopeSend, api.ScopeTrigger, api.ScopeRead, api.ScopeUsers, api.ScopeObserve}} {
			if got := ask(s, rt.method, path, token(t, "sre", scopes...), body); got.status != 403 || got.problem(t).Code != "scope_missing" {
				t.Errorf("%s with %v: %d %s", name, scopes, got.status, got.body)
			}
		}
		if last() != was {
			t.Errorf("%s was recorded although it was refused at the door", name)
		}
		got := ask(s, rt.method, path, token(t, "sre", api.ScopeOperate), body, header(api.HeaderReason, "incident 7"), header(api.HeaderContext, "prod"))
		if got.status >= 300 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if strings.HasPrefix(rt.path, "/v1/ops/jobs") {
			continue // recorded by the jobs, which are a double here
		}
		acts, err := log.Acts(t.Context(), was, 10)
		if err != nil || len(acts) != 1 || acts[0].Actor != "sre" || !named.MatchString(acts[0].Action) || acts[0].Reason != "incident 7" || acts[0].Context != "prod" || acts[0].Request == "" {
			t.Errorf("%s: %+v, %v", name, acts, err)
		}
		if id := got.header.Get(api.HeaderAuditID); id != strconv.FormatUint(was+1, 10) {
			t.Errorf("%s: recorded as row %d, and the answer says %q", name, was+1, id)
		}
		// What was refused behind the door is recorded as that.
		was = last()
		if got = ask(s, rt.method, path+"?x=1", token(t, "sre", api.ScopeOperate), body); got.status != 422 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if acts, _ = log.Acts(t.Context(), was, 10); len(acts) != 1 || acts[0].Result != "refused: unknown_field" {
			t.Errorf("%s: %+v", name, acts)
		}
	}
	if n < 6 {
		t.Errorf("only %d mutating routes", n)
	}
}

// TestFeedLeavesTriggersOut: they are dead letters for operators; the feed is of
// notifications, and goes on behind them.
func TestFeedLeavesTriggersOut(t *testing.T) {
	t.Parallel()
	w := newWorld()
	id := w.single(1, "shop", "u1")
	w.dead = []engine.DeadLetter{{ID: notify.ID{Base: baseOf(7)}, Caller: "shop", Seq: 1, Channel: deadletter.ChannelTrigger}, {ID: id, Caller: "shop", Seq: 2, Channel: "sms"}, {ID: notify.ID{Base: baseOf(8)}, Caller: "shop", Seq: 3, Channel: deadletter.ChannelTrigger}}
	s := w.start(t, Config{}, nil)
	page := get[api.FailedPage](t, s, "/v1/failed", token(t, "shop", api.ScopeRead))
	if len(page.Items) != 1 || page.Items[0].NotificationID != id.String() || page.After != 3 {
		t.Errorf("%+v", page)
	}
}

// Whoever says at-least-once is taken without a key that cannot be looked up,
// and told.
func TestIdempotencyFallback(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.intake = func(_ context.Context, _ string, m request.Meta, _ []byte) (request.Answer, error) {
		return request.Answer{Status: 201, Body: []byte(`{}`), Unguarded: m.AtLeastOnce}, nil
	}
	var told []string
	s := w.start(t, Config{}, func(d *Deps) { d.Hooks.Unguarded = func(name string) { told = append(told, name) } })
	tok := token(t, "shop", api.ScopeSend)
	post := func(opts ...option) reply {
		return ask(s, "POST", "/v1/notifications", tok, `{}`, append(opts, header("Idempotency-Key", "k"))...)
	}
	if got := post(); got.status != 201 || got.header.Get(api.HeaderIdempotencyFallback) != "" {
		t.Errorf("without: %d %v", got.status, got.header)
	}
	if got := post(header(api.HeaderIdempotencyFallback, "at-least-once")); got.status != 201 || got.header.Get(api.HeaderIdempotencyFallback) != "at-least-once" {
		t.Errorf("with: %d %v", got.status, got.header)
	}
	for _, bad := range []string{"", "yes", "at-most-once"} {
		if got := post(header(api.HeaderIdempotencyFallback, bad)); got.status != 422 {
			t.Errorf("%q: %d", bad, got.status)
		}
	}
	if !slices.Equal(told, []string{"POST /v1/notifications"}) {
		t.Errorf("told of %v", told)
	}
}
