package server

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// putter is a trigger.Later over timers in memory.
type putter struct{ *world }

func (p putter) Put(ctx context.Context, ts []engine.Timer) error {
	return p.later.Timers().Put(ctx, notify.SpreadOver(laterShards), ts)
}

// triggers is the real service over stores in memory; of callers it knows those
// in the map.
func (w *world) triggers(t testing.TB) *trigger.Service {
	t.Helper()
	out, err := trigger.NewEgress(trigger.EgressConfig{Policy: trigger.EgressPolicy{
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, AnyPort: true, Plain: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := trigger.New(trigger.Config{Triggers: w.later.Triggers(), Callers: w.later.Callers(), Idem: w.later.Idem(), Later: putter{w}, Egress: out})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// hooked lets a caller register triggers.
func (w *world) hooked(t testing.TB, caller string) {
	t.Helper()
	if err := w.later.Callers().Put(t.Context(), engine.Caller{ID: caller, CallbackURLs: []string{"http://127.0.0.1:9/hooks/"}, Secrets: []engine.CallerSecret{{Secret: trigger.NewSecret()}}}); err != nil {
		t.Fatal(err)
	}
}

// trigger registers one and returns its id.
func (w *world) trigger(t testing.TB, caller string) string {
	t.Helper()
	a, err := w.triggers(t).Register(t.Context(), request.Meta{Caller: caller, Route: "POST /v1/triggers"}, []byte(`{"callback_url":"http://127.0.0.1:9/hooks/x","payload":"p","delay_seconds":900}`))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(a.Body), `"trigger_id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

type fakeCircuits map[string]api.Circuit

func (f fakeCircuits) List(context.Context) (out api.Circuits) {
	for _, c := range f {
		out.Items = append(out.Items, c)
	}
	return out
}

func (f fakeCircuits) Set(ctx context.Context, name, to string) (api.Circuit, error) {
	c, ok := f[name]
	if !ok {
		return c, notify.NotFound("circuit")
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return c, err
	}
	c.State, c.Pinned = to, to != "reset"
	f[name] = c
	return c, nil
}

func TestTriggerRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	w.hooked(t, "shop")
	tok, stranger := token(t, "shop", api.ScopeTrigger), token(t, "bank", api.ScopeTrigger)
	operator := token(t, "sre", api.ScopeTrigger, api.ScopeOperate)

	const body = `{"callback_url":"http://127.0.0.1:9/hooks/hold?x=1","payload":{"hold":"h-1"},"delay_seconds":900}`
	with := func(key string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(api.HeaderIdempotencyKey, key) }
	}
	first := ask(s, "POST", "/v1/triggers", tok, body, with("k"))
	var made api.TriggerAccepted
	if first.into(t, &made); first.status != 201 || !strings.HasPrefix(made.TriggerID, "trg_") || time.Until(made.FireAt) < 800*time.Second {
		t.Fatalf("%d %s", first.status, first.body)
	}
	again := ask(s, "POST", "/v1/triggers", tok, body, with("k"))
	if again.body != first.body || again.header.Get(api.HeaderIdempotencyReplayed) != "true" {
		t.Errorf("again: %d %s", again.status, again.body)
	}
	if p := ask(s, "POST", "/v1/triggers", stranger, body).problem(t); p.Status != 409 || p.Code != "no_secret" {
		t.Errorf("a caller without a secret: %+v", p)
	}

	path := "/v1/triggers/" + made.TriggerID
	got := get[api.TriggerStatus](t, s, path, tok)
	if got.Status != "PENDING" || got.Caller != "shop" || got.PayloadBytes != len(`{"hold":"h-1"}`) || got.NextAttemptAt == nil || !strings.HasPrefix(got.Next, "It fires at ") {
		t.Errorf("%+v", got)
	}
	for _, method := range []string{"GET", "DELETE", "PATCH"} {
		if p := ask(s, method, path, stranger, map[string]string{"PATCH": `{"delay_seconds":1}`}[method]).problem(t); p.Status != 404 {
			t.Errorf("%s of another caller: %+v", method, p)
		}
	}
	if get[api.TriggerStatus](t, s, path, operator).TriggerID != made.TriggerID {
		t.Error("an operator does not see it")
	}

	var moved api.TriggerStatus
	reply := ask(s, "PATCH", path, tok, `{"delay_seconds":60}`)
	if reply.into(t, &moved); reply.status != 200 || moved.Generation != 1 || time.Until(moved.FireAt) > time.Minute {
		t.Errorf("%d %s", reply.status, reply.body)
	}
	if p := ask(s, "PATCH", path, tok, `{"delay_seconds":60,"x":1}`).problem(t); p.Status != 422 {
		t.Errorf("%+v", p)
	}
	for range 2 {
		var ended api.TriggerStatus
		reply = ask(s, "DELETE", path, tok, "")
		if reply.into(t, &ended); reply.status != 200 || ended.Status != "CANCELLED" || ended.EndedAt == nil || ended.NextAttemptAt != nil {
			t.Errorf("%d %s", reply.status, reply.body)
		}
	}
	if p := ask(s, "PATCH", path, tok, `{"delay_seconds":60}`).problem(t); p.Status != 409 {
		t.Errorf("%+v", p)
	}

	batch := ask(s, "POST", "/v1/triggers:batch", tok, "["+body+`,{"callback_url":"http://127.0.0.1:9/other","delay_seconds":1}]`)
	var result api.TriggerBatchResult
	if batch.into(t, &result); batch.status != 200 || result.Accepted != 1 || result.Rejected != 1 || result.Results[1].Error.Field != "callback_url" {
		t.Errorf("%d %s", batch.status, batch.body)
	}
}

func TestListTriggers(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	w.hooked(t, "shop")
	w.hooked(t, "bank")
	ids := map[string]bool{}
	var last string
	for range 3 {
		last = w.trigger(t, "shop")
		ids[last] = true
	}
	w.trigger(t, "bank")
	tok, operator := token(t, "shop", api.ScopeTrigger), token(t, "sre", api.ScopeTrigger, api.ScopeOperate)
	if _, err := w.triggers(t).Cancel(t.Context(), "shop", last); err != nil {
		t.Fatal(err)
	}
	a := get[api.TriggerPage](t, s, "/v1/triggers?limit=2", tok)
	b := get[api.TriggerPage](t, s, "/v1/triggers?limit=2&cursor="+a.Cursor, tok)
	for _, i := range append(a.Items, b.Items...) {
		if !ids[i.TriggerID] {
			t.Errorf("%s is listed twice, or is another's", i.TriggerID)
		}
		delete(ids, i.TriggerID)
	}
	if len(ids) != 0 || b.Cursor != "" {
		t.Errorf("%d are missing, then %q", len(ids), b.Cursor)
	}
	bank := token(t, "bank", api.ScopeTrigger)
	for what, refused := range map[string]reply{
		"another caller's":  ask(s, "GET", "/v1/triggers?limit=2&cursor="+a.Cursor, bank, ""),
		"another listing's": ask(s, "GET", "/v1/triggers?status=PENDING&cursor="+a.Cursor, tok, ""),
		"an id":             ask(s, "GET", "/v1/triggers?cursor="+last, tok, ""),
	} {
		if refused.status != 422 || refused.problem(t).Code != "bad_cursor" {
			t.Errorf("%s cursor: %d %s", what, refused.status, refused.body)
		}
	}
	if p := get[api.TriggerPage](t, s, "/v1/triggers?status=CANCELLED", tok); len(p.Items) != 1 || p.Items[0].TriggerID != last {
		t.Errorf("%+v", p)
	}
	if p := get[api.TriggerPage](t, s, "/v1/triggers", operator); len(p.Items) != 4 {
		t.Errorf("an operator sees %d", len(p.Items))
	}
	if p := get[api.TriggerPage](t, s, "/v1/triggers?caller=bank", operator); len(p.Items) != 1 {
		t.Errorf("of bank: %d", len(p.Items))
	}
	for _, q := range []string{"?status=DONE", "?limit=0", "?cursor=x", "?caller=bank", "?x=1"} {
		if got := ask(s, "GET", "/v1/triggers"+q, tok, ""); got.status != 422 {
			t.Errorf("%s: %d %s", q, got.status, got.body)
		}
	}
}

// TestTriggerNext: one sentence for every state a row may be in.
func TestTriggerNext(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(t0)
	f := func(want string, row engine.Trigger) {
		t.Helper()
		if got := nextOfTrigger(&row, now); !strings.Contains(got, want) {
			t.Errorf("%+v: %q, want %q", row, got, want)
		}
	}
	f("It fires at 2027-01-15T08:01:00.000Z", engine.Trigger{State: engine.TriggerPending, NextAt: t0 + 60_000})
	f("waits for a dispatcher", engine.Trigger{State: engine.TriggerPending, NextAt: t0})
	f("Attempt 2 will be made at 2027-01-15T08:01:00.000Z (http_503)", engine.Trigger{State: engine.TriggerPending, NextAt: t0 + 60_000, Attempts: 1, Reason: "http_503"})
	f("does not count as an attempt", engine.Trigger{State: engine.TriggerPending, NextAt: t0 + 60_000, Deferrals: 1, Reason: "circuit_open"})
	f("claimed it", engine.Trigger{State: engine.TriggerInFlight})
	f("answered", engine.Trigger{State: engine.TriggerFired})
	f("cancelled", engine.Trigger{State: engine.TriggerCancelled})
	f("max_lateness", engine.Trigger{State: engine.TriggerExpired})
	f("failed for good (http_410)", engine.Trigger{State: engine.TriggerFailed, Reason: "http_410"})
}

// What failed before the URL was set is not told; another URL changes nothing of
// that, and without one it is forgotten.
func TestCallerOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, func(d *Deps) { d.Callers = w.later.Callers() })
	op := token(t, "sre", api.ScopeOperate)
	since := func(url string) int64 {
		t.Helper()
		var c api.Caller
		got := ask(s, "PUT", "/v1/ops/callers/shop", op, `{"callback_urls":["https://shop.example/hooks/"],"outcomes_url":"`+url+`"}`)
		if got.into(t, &c); got.status != 200 || c.OutcomesURL != url {
			t.Fatalf("%d %s", got.status, got.body)
		}
		row, _, err := w.later.Callers().Get(t.Context(), "shop")
		if err != nil || row.OutcomesURL != url {
			t.Fatalf("%+v, %v", row, err)
		}
		return row.OutcomesSince
	}
	if since("https://shop.example/hooks/failed") == 0 {
		t.Error("no time")
	}
	row, _, err := w.later.Callers().Get(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	row.OutcomesSince = 5
	if err := w.later.Callers().Put(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if got := since("https://shop.example/hooks/elsewhere"); got != 5 {
		t.Errorf("since %d, not 5", got)
	}
	if got := since(""); got != 0 {
		t.Errorf("since %d without a URL", got)
	}
}

func TestCallerRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, func(d *Deps) { d.Callers, d.PlainCallbacks = w.later.Callers(), true })
	op := token(t, "sre", api.ScopeOperate)
	put := func(id, body string) reply { return ask(s, "PUT", "/v1/ops/callers/"+id, op, body) }
	for _, id := range []string{"%1b%5b31mred%0d%0a", "%E2%80%AEgnp.exe", "%3Cscript%3E", "a%20b", "%2A", "%2e%2e", "%2e"} { // no token may have these
		if got := put(id, `{}`); got.status != 422 || got.problem(t).Code != "bad_caller" {
			t.Errorf("%s: %d %s", id, got.status, got.body)
		}
	}
	if got := ask(s, "GET", "/v1/ops/callers/shop", op, ""); got.status != 404 {
		t.Errorf("%d %s", got.status, got.body)
	}
	var c api.Caller
	got := put("shop", `{"callback_urls":["HTTPS://Shop.example/hooks/","http://127.0.0.1:9/"],"max_in_flight":7}`)
	if got.into(t, &c); got.status != 200 || c.Version != 1 || c.MaxInFlight != 7 || strings.Join(c.CallbackURLs, " ") != "http://127.0.0.1:9/ https://shop.example/hooks/" {
		t.Fatalf("%d %s", got.status, got.body)
	}
	for _, bad := range []struct{ body, field string }{
		{`{"id":"bank"}`, "id"}, {`{"rate":-1}`, ""}, {`{"secrets":[]}`, "secrets"},
		{`{"callback_urls":["ftp://x/"]}`, "callback_urls[0]"}, {`{"callback_urls":["https://u:p@x/"]}`, "callback_urls[0]"},
		{`{"callback_urls":["https://shop.example/"],"outcomes_url":"https://other.example/failed"}`, "outcomes_url"}, {`{"outcomes_url":"https://shop.example/"}`, "outcomes_url"},
	} {
		if p := put("shop", bad.body).problem(t); p.Status != 422 || p.Field != bad.field {
			t.Errorf("%s: %+v", bad.body, p)
		}
	}
	if p := put("shop", `{"version":9}`).problem(t); p.Status != 409 {
		t.Errorf("%+v", p)
	}

	var one, two api.RotatedSecret
	rotate := func(body string, into *api.RotatedSecret) {
		t.Helper()
		got := ask(s, "POST", "/v1/ops/callers/shop/secrets", op, body)
		if got.into(t, into); got.status != 201 || !strings.HasPrefix(into.Secret, "whsec_") {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	rotate(`{}`, &one)
	rotate(`{"overlap_seconds":3600}`, &two)
	if one.OldUntil != nil || two.OldUntil == nil || time.Until(*two.OldUntil) > time.Hour || one.Secret == two.Secret {
		t.Errorf("%+v, %+v", one, two)
	}
	if p := ask(s, "POST", "/v1/ops/callers/shop/secrets", op, `{"overlap_seconds":-1}`).problem(t); p.Status != 422 {
		t.Errorf("%+v", p)
	}
	// Settings leave the secrets alone, and nothing shows them.
	put("shop", `{"callback_urls":["https://shop.example/"]}`)
	for _, path := range []string{"/v1/ops/callers/shop", "/v1/ops/callers"} {
		got := ask(s, "GET", path, op, "")
		if got.status != 200 || strings.Contains(got.body, "whsec_") || strings.Count(got.body, "created_at") != 2 {
			t.Errorf("%s: %s", path, got.body)
		}
	}
}

func TestCircuitAndURLRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld()
	s := w.start(t, Config{}, nil)
	op := token(t, "sre", api.ScopeOperate)
	got := ask(s, "PUT", "/v1/ops/circuits/caller:shop", op, `{"to":"open"}`)
	var c api.Circuit
	if got.into(t, &c); got.status != 200 || c.State != "open" || !c.Pinned {
		t.Errorf("%d %s", got.status, got.body)
	}
	if p := ask(s, "PUT", "/v1/ops/circuits/caller:bank", op, `{"to":"open"}`).problem(t); p.Status != 404 {
		t.Errorf("%+v", p)
	}
	if p := ask(s, "PUT", "/v1/ops/circuits/caller:shop", op, `{"to":"ajar"}`).problem(t); p.Status != 422 || p.Field != "to" {
		t.Errorf("%+v", p)
	}
	v := get[api.URLVerdict](t, s, "/v1/ops/url-check?url=https%3A%2F%2Fshop.example%2F", op)
	if v.URL != "https://shop.example/" || !v.Allowed {
		t.Errorf("%+v", v)
	}
	if p := ask(s, "GET", "/v1/ops/url-check", op, "").problem(t); p.Status != 422 {
		t.Errorf("%+v", p)
	}
}

// A URL that the policy does not allow (any more) is refused where it is set, and does
// not keep a caller that has it from being disabled.
func TestOutcomesURLIsAdmittedWhenSet(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var closed atomic.Bool
	s := w.start(t, Config{}, func(d *Deps) {
		d.Callers = w.later.Callers()
		d.AdmitURL = func(field, _ string) error {
			if closed.Load() {
				return notify.Invalid("url_refused", field, "the policy does not allow it")
			}
			return nil
		}
	})
	put := func(path, more string) reply {
		return ask(s, "PUT", "/v1/ops/callers/shop", token(t, "sre", api.ScopeOperate),
			`{"callback_urls":["https://shop.example/hooks/"],"outcomes_url":"https://shop.example/hooks/`+path+`"`+more+`}`)
	}
	if got := put("a", ""); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	closed.Store(true)
	if got := put("b", ""); got.status != 422 {
		t.Errorf("a URL that is refused: %d %s", got.status, got.body)
	}
	if got := put("a", `,"disabled":true`); got.status != 200 {
		t.Errorf("disabled with the URL that stood: %d %s", got.status, got.body)
	}
}
