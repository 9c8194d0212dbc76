package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/deadletter"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/store"
)

// acted counts what operators had done where the doubles keep no state.
type acted struct {
	fakeLanes
	fakeSuppressions
	lanes, lifts, backups, tests int
}

func (a *acted) Set(ctx context.Context, name, by string, to api.LaneChange) (api.Lane, error) {
	a.lanes++
	return a.fakeLanes.Set(ctx, name, by, to)
}

func (a *acted) LiftSuppression(ctx context.Context, user, address string) (int, bool, error) {
	n, still, err := a.fakeSuppressions.LiftSuppression(ctx, user, address)
	a.lifts += n
	return n, still, err
}

func (a *acted) backup(context.Context) (Snapshot, error) {
	a.backups++
	return fakeSnapshot{}, nil
}

func (a *acted) testProvider(ctx context.Context, name string, in api.ProviderTestRequest) (api.ProviderTest, error) {
	if name != "fcm" {
		return api.ProviderTest{}, notify.NotFound("provider")
	}
	if err := notify.BeforeAct(ctx); err != nil {
		return api.ProviderTest{}, err
	}
	a.tests++
	return api.ProviderTest{Provider: name, OK: true}, nil
}

// auditedWorld holds one of each thing that operators change, all of caller "shop".
type auditedWorld struct {
	*world
	acted   acted
	holds   fakeHolds
	breaks  fakeCircuits
	grants  fakeGrants
	trigger string
	ended   notify.ID // a notification that is DELIVERED
}

func newAuditedWorld(t *testing.T) *auditedWorld {
	w := &auditedWorld{world: newWorld(), holds: fakeHolds{}, grants: fakeGrants{}, breaks: fakeCircuits{"caller:shop": {Name: "caller:shop"}}}
	w.single(1, "shop", "u1")
	w.schedule(t, baseOf(2), "shop", false)
	w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop"}
	w.hooked(t, "shop")
	w.trigger = w.world.trigger(t, "shop")
	w.ended = w.single(4, "shop", "u1", notify.Row{Done: true, Default: notify.Exception{State: notify.Delivered}})
	return w
}

func (w *auditedWorld) server(t *testing.T, change func(*Deps)) *Server {
	return w.start(t, Config{}, func(d *Deps) {
		d.Lanes, d.Suppressions, d.Circuits, d.CampaignHolds = &w.acted, &w.acted, w.breaks, w.holds
		d.Grants = w.grants
		d.Backup, d.Callers, d.PlainCallbacks, d.TestProvider = w.acted.backup, w.later.Callers(), true, w.acted.testProvider
		change(d)
	})
}

// state is everything an audited request can change.
func (w *auditedWorld) state(t *testing.T) string {
	t.Helper()
	v, err := w.schedules().Get(t.Context(), baseOf(2))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := w.triggers(t).Find(t.Context(), w.trigger)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := w.later.Callers().Get(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.acted.lanes, w.acted.lifts, w.acted.backups, w.acted.tests, w.holds, w.breaks, w.grants, w.cancels, v.State, v.FireAt, tr.State, tr.FireAt, c.Version)
}

// auditedCalls is one call of each audited route that is done.
func (w *auditedWorld) auditedCalls() []struct{ route, path, body string } {
	later := `{"scheduled_at":"` + time.Now().Add(100*24*time.Hour).UTC().Format(time.RFC3339) + `"}`
	sent, waits := notify.ID{Base: baseOf(1)}.String(), notify.ID{Base: baseOf(2)}.String()
	return []struct{ route, path, body string }{
		{"PUT /v1/ops/lanes/{name}", "/v1/ops/lanes/push", `{"paused":true}`},
		{"POST " + liftPath, liftPath, `{"address":"+4915112345678"}`},
		{"PUT /v1/ops/circuits/{name}", "/v1/ops/circuits/caller:shop", `{"to":"open"}`},
		{"PUT /v1/ops/callers/{id}", "/v1/ops/callers/shop", `{"rate":7,"callback_urls":["http://127.0.0.1:9/hooks/"]}`},
		{"POST /v1/ops/callers/{id}/secrets", "/v1/ops/callers/shop/secrets", `{}`},
		{"GET " + backupPath, backupPath, ""},
		{"POST " + grantsPath, grantsPath, `{"seconds":60,"rate":1,"targets":["push"],"providers":"stub","hosts":["a"]}`},
		{"POST " + grantPath, grantsPath + "/lg_0", `{"to":"revoked"}`},
		{"POST " + testProviderPath, "/v1/ops/providers/fcm/test", `{}`},
		{"DELETE /v1/notifications/{id}", "/v1/notifications/" + sent, ""},
		{"PATCH /v1/notifications/{id}", "/v1/notifications/" + waits, later},
		{"DELETE /v1/notifications/{id}", "/v1/notifications/" + waits, ""},
		{"GET /v1/notifications/{id}/content", "/v1/notifications/" + sent + "/content", ""},
		{"PATCH " + campaignPath, "/v1/campaigns/" + campaign, `{"paused":true}`},
		{"DELETE " + campaignPath, "/v1/campaigns/" + campaign, ""},
		{"PATCH /v1/triggers/{id}", "/v1/triggers/" + w.trigger, `{"delay_seconds":60}`},
		{"DELETE /v1/triggers/{id}", "/v1/triggers/" + w.trigger, ""},
	}
}

// recorded are the routes whose requests the audit log records, but for those of jobs:
// deadletter.Manager writes their rows.
func recorded(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{
		"DELETE /v1/notifications/{id}": true, "PATCH /v1/notifications/{id}": true, "GET /v1/notifications/{id}/content": true,
		"PATCH " + campaignPath: true, "DELETE " + campaignPath: true, "PATCH /v1/triggers/{id}": true, "DELETE /v1/triggers/{id}": true,
	}
	for _, rt := range routes() {
		if rt.audited() && !strings.HasPrefix(rt.path, "/v1/ops/jobs") {
			all[rt.method+" "+rt.path] = true
		}
	}
	return all
}

// TestNoActWithoutItsRow: where the row cannot be written nothing is changed and nothing
// is shown; where it can, each call is done and has one row.
func TestNoActWithoutItsRow(t *testing.T) {
	t.Parallel()
	w := newAuditedWorld(t)
	var log *deadletter.AuditLog
	s := w.server(t, func(d *Deps) { log = d.Audit })
	plan := faulty.NewPlan(1)
	plan.Add(faulty.Rule{Method: "Rows.Swap", Err: faulty.ErrDown})
	away := w.server(t, func(d *Deps) {
		d.Audit = &deadletter.AuditLog{Store: store.AuditOver(faulty.NewPartitions(w.later.Rows(), plan))}
	})
	sre := token(t, "sre", api.Scopes[:]...)
	left := recorded(t)
	for i, c := range w.auditedCalls() {
		method, _, _ := strings.Cut(c.route, " ")
		delete(left, c.route)
		was := w.state(t)
		if got := ask(away, method, c.path, sre, c.body); got.status < 500 || w.state(t) != was {
			t.Errorf("%s without an audit log: %d %s; %s, before %s", c.route, got.status, got.body, w.state(t), was)
		}
		got := ask(s, method, c.path, sre, c.body)
		if got.status >= 300 || w.state(t) == was && !strings.HasSuffix(c.path, "/content") {
			t.Errorf("%s: %d %s; %s", c.route, got.status, got.body, was)
		}
		rows, err := log.Acts(t.Context(), uint64(i), 10)
		if err != nil || len(rows) != 1 || rows[0].Actor != "sre" || rows[0].Result != "" || got.header.Get(api.HeaderAuditID) != strconv.Itoa(i+1) {
			t.Fatalf("%s: %+v, %v", c.route, rows, err)
		}
	}
	if len(left) > 0 {
		t.Errorf("not called: %v", left)
	}
}

// TestRefusedCallsLeaveOneRow: a call that is refused changes nothing, and no row says
// that it did. Of operators' routes one row says what was refused, and so it is of
// callers' routes from where it is known whose thing it is.
func TestRefusedCallsLeaveOneRow(t *testing.T) {
	t.Parallel()
	w := newAuditedWorld(t)
	var log *deadletter.AuditLog
	s := w.server(t, func(d *Deps) { log = d.Audit })
	bare := w.server(t, func(d *Deps) { d.Backup = nil })
	looks := token(t, "sre", api.ScopeSend, api.ScopeTrigger, api.ScopeRead, api.ScopeUsers, api.ScopeObserve)
	sre := token(t, "sre", api.Scopes[:]...)
	last := func() uint64 {
		n, err := log.Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	left := recorded(t)
	refused := func(s *Server, tok, route, path, body, code string, rows int) {
		t.Helper()
		delete(left, route)
		method, _, _ := strings.Cut(route, " ")
		was, before := last(), w.state(t)
		got := ask(s, method, path, tok, body)
		if p := got.problem(t); p.Code != code {
			t.Errorf("%s %s: %d %s, want %s", route, body, got.status, got.body, code)
		}
		acts, err := log.Acts(t.Context(), was, 10)
		if err != nil || len(acts) != rows || rows == 1 && (acts[0].Result != "refused: "+code || got.header.Get(api.HeaderAuditID) != strconv.FormatUint(acts[0].Seq, 10)) {
			t.Errorf("%s %s: want %d rows with %s: %+v, %v", route, body, rows, code, acts, err)
		}
		if now := w.state(t); now != before {
			t.Errorf("%s %s changed %s to %s", route, body, before, now)
		}
	}
	for _, c := range w.auditedCalls() {
		kind, code, rows := strings.TrimSuffix(strings.Split(c.path, "/")[2], "s"), "bad_json", 1
		if kind == "op" || strings.HasSuffix(c.path, "/content") {
			refused(s, looks, c.route, c.path, c.body, "scope_missing", 0)
		} else {
			refused(s, looks, c.route, c.path, c.body, kind+"_not_found", 0)
		}
		if kind == "notification" || kind == "campaign" {
			rows = 0 // the body is read before it is known whose it is
		}
		if c.body != "" {
			refused(s, sre, c.route, c.path, `{`, code, rows)
		}
	}
	none := baseOf(9)
	for _, c := range []struct {
		route, path, body, code string
		rows                    int
	}{
		// Unknown ids.
		{"PUT /v1/ops/lanes/{name}", "/v1/ops/lanes/fax", `{"paused":true}`, "lane_not_found", 1},
		{"POST " + liftPath, liftPath, `{"address":"+0"}`, "suppression_not_found", 1},
		{"PUT /v1/ops/circuits/{name}", "/v1/ops/circuits/caller:bank", `{"to":"open"}`, "circuit_not_found", 1},
		{"PUT /v1/ops/callers/{id}", "/v1/ops/callers/a%20b", `{}`, "bad_caller", 1},
		{"POST /v1/ops/callers/{id}/secrets", "/v1/ops/callers/a%20b/secrets", `{}`, "bad_caller", 1},
		{"POST " + testProviderPath, "/v1/ops/providers/fax/test", `{}`, "provider_not_found", 1},
		{"POST " + grantsPath, grantsPath, `{"rate":-1}`, "bad_load_grant", 1},
		{"POST " + grantPath, grantsPath + "/lg_none", `{"to":"revoked"}`, "load_grant_not_found", 1},
		{"POST /v1/ops/jobs/{id}", "/v1/ops/jobs/job_2", `{"change":"pause"}`, "job_not_found", 1},
		{"DELETE /v1/notifications/{id}", "/v1/notifications/" + notify.ID{Base: none}.String(), "", "notification_not_found", 0},
		{"PATCH /v1/notifications/{id}", "/v1/notifications/" + notify.ID{Base: none}.String(), `{"scheduled_at":"2027-01-16T10:00:00Z"}`, "notification_not_found", 0},
		{"GET /v1/notifications/{id}/content", "/v1/notifications/" + notify.ID{Base: none}.String() + "/content", "", "notification_not_found", 0},
		{"PATCH " + campaignPath, "/v1/campaigns/cmp_" + none.String(), `{"paused":true}`, "campaign_not_found", 0},
		{"DELETE " + campaignPath, "/v1/campaigns/cmp_" + none.String(), "", "campaign_not_found", 0},
		{"PATCH /v1/triggers/{id}", "/v1/triggers/trg_" + none.String(), `{"delay_seconds":60}`, "trigger_not_found", 0},
		{"DELETE /v1/triggers/{id}", "/v1/triggers/trg_" + none.String(), "", "trigger_not_found", 0},
		// Conflicts, and what only the service knows to refuse.
		{"PUT /v1/ops/callers/{id}", "/v1/ops/callers/shop", `{"version":99}`, "version_changed", 1},
		{"POST /v1/ops/jobs", "/v1/ops/jobs", `{"digest":"stale"}`, "stale_plan", 1},
		{"POST /v1/ops/jobs/{id}", "/v1/ops/jobs/job_1", `{"change":"approve"}`, "own_job", 1},
		{"POST /v1/ops/jobs/{id}", "/v1/ops/jobs/job_1", `{`, "bad_json", 1},
		{"DELETE /v1/notifications/{id}", "/v1/notifications/" + w.ended.String(), "", "already_terminal", 1},
		{"PATCH /v1/notifications/{id}", "/v1/notifications/" + w.ended.String(), `{"scheduled_at":"2027-01-16T10:00:00Z"}`, "not_scheduled", 0},
		{"PATCH /v1/notifications/{id}", "/v1/notifications/" + notify.ID{Base: baseOf(2)}.String(), `{"scheduled_at":"2099-01-16T10:00:00Z"}`, "scheduled_too_far", 1},
		{"GET /v1/notifications/{id}/content", "/v1/notifications/" + notify.ID{Base: baseOf(2)}.String() + "/content", "", "not_due", 0},
		{"PATCH /v1/triggers/{id}", "/v1/triggers/" + w.trigger, `{"delay_seconds":-1}`, "out_of_range", 1},
	} {
		refused(s, sre, c.route, c.path, c.body, c.code, c.rows)
	}
	refused(bare, sre, "GET "+backupPath, backupPath, "", "backup_unavailable", 1)
	if len(left) > 0 {
		t.Errorf("not called: %v", left)
	}
	// What is cancelled cannot be moved, and cancelling it again changes nothing.
	for _, path := range []string{"/v1/triggers/" + w.trigger, "/v1/notifications/" + notify.ID{Base: baseOf(2)}.String(), "/v1/notifications/" + notify.ID{Base: baseOf(1)}.String(), "/v1/campaigns/" + campaign} {
		was := last()
		for range 2 {
			if got := ask(s, http.MethodDelete, path, sre, ""); got.status >= 300 {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
		if n := last() - was; n != 1 {
			t.Errorf("%s cancelled twice: %d rows", path, n)
		}
	}
	refused(s, sre, "PATCH /v1/triggers/{id}", "/v1/triggers/"+w.trigger, `{"delay_seconds":60}`, "trigger_cancelled", 1)
	refused(s, sre, "PATCH /v1/notifications/{id}", "/v1/notifications/"+notify.ID{Base: baseOf(2)}.String(), `{"scheduled_at":"2027-01-16T10:00:00Z"}`, "cancelled", 1)
}

// TestFoldedWhereTheStoreFails: an act that a store fails during has a second row, which
// does not say that nothing happened; readers are shown that one.
func TestFoldedWhereTheStoreFails(t *testing.T) {
	t.Parallel()
	w := newAuditedWorld(t)
	var log *deadletter.AuditLog
	plan := faulty.NewPlan(1)
	plan.Add(faulty.Rule{Method: "Callers.Put", Err: faulty.ErrDown})
	s := w.server(t, func(d *Deps) { d.Callers, log = faulty.NewCallers(w.later.Callers(), plan), d.Audit })
	got := ask(s, http.MethodPost, "/v1/ops/callers/shop/secrets", token(t, "sre", api.ScopeOperate), `{}`)
	rows, err := log.Acts(t.Context(), 0, 10)
	if err != nil || got.status < 500 || len(rows) != 2 || rows[0].Result != "" || !strings.HasPrefix(rows[1].Result, "failed: ") {
		t.Fatalf("%d, %+v, %v", got.status, rows, err)
	}
	shown := make([]api.AuditRow, len(rows))
	for i, r := range rows {
		shown[i] = api.AuditRow{Seq: r.Seq, Request: r.Request, Action: r.Action, Target: r.Target, Result: r.Result}
	}
	if shown = api.FoldAudit(shown); len(shown) != 1 || shown[0].Seq != 2 {
		t.Errorf("%+v", shown)
	}
}
