package server

import (
	"net/http"
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

// TestOperatorsChangeWhatIsAnothers: what an operator cancels or moves of a caller
// goes through the caller's routes, and into the audit log all the same; what a
// caller does of its own does not.
func TestOperatorsChangeWhatIsAnothers(t *testing.T) {
	t.Parallel()
	later := `{"scheduled_at":"` + time.Now().Add(100*24*time.Hour).UTC().Format(time.RFC3339) + `"}`
	for name, c := range map[string]struct {
		method, body string
		make         func(t *testing.T, w *world) (path string)
	}{
		"notification": {http.MethodDelete, "", func(_ *testing.T, w *world) string {
			return "/v1/notifications/" + w.single(1, "shop", "u1").String()
		}},
		"schedule": {http.MethodDelete, "", func(t *testing.T, w *world) string {
			w.schedule(t, baseOf(2), "shop", false)
			return "/v1/notifications/" + notify.ID{Base: baseOf(2)}.String()
		}},
		"move": {http.MethodPatch, later, func(t *testing.T, w *world) string {
			w.schedule(t, baseOf(2), "shop", false)
			return "/v1/notifications/" + notify.ID{Base: baseOf(2)}.String()
		}},
		"campaign": {http.MethodDelete, "", func(_ *testing.T, w *world) string {
			w.camps[campaign] = engine.Campaign{ID: campaign, Caller: "shop"}
			return "/v1/campaigns/" + campaign
		}},
		"trigger": {http.MethodDelete, "", func(t *testing.T, w *world) string {
			w.hooked(t, "shop")
			return "/v1/triggers/" + w.trigger(t, "shop")
		}},
		"trigger's time": {http.MethodPatch, `{"delay_seconds":60}`, func(t *testing.T, w *world) string {
			w.hooked(t, "shop")
			return "/v1/triggers/" + w.trigger(t, "shop")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			path := c.make(t, w)
			var log *deadletter.AuditLog
			s := w.start(t, Config{}, func(d *Deps) { log = d.Audit })
			acts := func() []api.AuditRow {
				t.Helper()
				rows, err := log.Acts(t.Context(), 0, 10)
				if err != nil {
					t.Fatal(err)
				}
				return rows
			}
			scopes := []string{api.ScopeSend, api.ScopeTrigger, api.ScopeRead}
			if got := ask(s, c.method, path, token(t, "bank", scopes...), c.body); got.status != 404 || len(acts()) != 0 {
				t.Fatalf("another caller: %d %s, %d rows", got.status, got.body, len(acts()))
			}
			operator := token(t, "sre", append(scopes, api.ScopeOperate)...)
			plan := faulty.NewPlan(1)
			plan.Add(faulty.Rule{Method: "Rows.Swap", Err: faulty.ErrDown})
			away := w.start(t, Config{}, func(d *Deps) {
				d.Audit = &deadletter.AuditLog{Store: store.AuditOver(faulty.NewPartitions(w.later.Rows(), plan))}
			})
			if got := ask(away, c.method, path, operator, c.body); got.status < 500 {
				t.Fatalf("without an audit log: %d %s", got.status, got.body)
			}
			if got := ask(s, c.method, path, operator, c.body, header(api.HeaderReason, "incident 7")); got.status >= 300 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if rows := acts(); len(rows) != 1 || rows[0].Actor != "sre" || rows[0].Reason != "incident 7" || rows[0].Target != path[len(path)-len(rows[0].Target):] || rows[0].Target == "" {
				t.Errorf("%+v", rows)
			}
			if got := ask(s, c.method, path, token(t, "shop", scopes...), c.body); got.status >= 300 || len(acts()) != 1 {
				t.Errorf("the caller's own: %d %s, %d rows", got.status, got.body, len(acts()))
			}
		})
	}
}

// TestBackupIsRecorded: it changes nothing, and carries every secret away.
func TestBackupIsRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var log *deadletter.AuditLog
	s := w.start(t, Config{}, func(d *Deps) { log, d.Backup = d.Audit, nil })
	ask(s, http.MethodGet, "/v1/ops/backup", token(t, "sre", api.ScopeOperate), "")
	rows, err := log.Acts(t.Context(), 0, 10)
	if err != nil || len(rows) != 1 || rows[0].Actor != "sre" || rows[0].Action != "backup" || rows[0].Result != "refused: backup_unavailable" {
		t.Errorf("%+v, %v", rows, err)
	}
	s = w.start(t, Config{}, func(d *Deps) { d.Backup = noBackup })
	ask(s, http.MethodGet, "/v1/ops/backup", token(t, "sre", api.ScopeOperate), "")
	if rows, err = log.Acts(t.Context(), 1, 10); err != nil || len(rows) != 1 || rows[0].Result != "" {
		t.Errorf("made: %+v, %v", rows, err)
	}
}

// TestWhatAnActSays: of lanes and circuits the settings, of nothing else, and only what
// they are made of: a body may hold a secret, or no text at all.
func TestWhatAnActSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, body, want string }{
		{"/v1/ops/lanes/push-bulk", `{"paused":true,"reason":"a bad template"}`, `{"paused":true,"reason":"a bad template"}`},
		{"/v1/ops/lanes/push-bulk", `{"paused":true,"token":"s3cret"}`, ""},
		{"/v1/ops/lanes/push-bulk", `{"paused":"s3cret"}`, ""},
		{"/v1/ops/lanes/push-bulk", "{\"paused\":true,\"reason\":\"\xff\"}", `{"paused":true,"reason":"` + "\ufffd" + `"}`},
		{"/v1/ops/circuits/apns", `{"to":"reset"}`, `{"to":"reset"}`},
		{"/v1/ops/circuits/apns", `{"to":"` + strings.Repeat("x", 2000) + `"}`, ""},
		{"/v1/ops/callers/shop", `{"secrets":["s3cret"]}`, ""},
	} {
		t.Run("", func(t *testing.T) {
			w := newWorld()
			var log *deadletter.AuditLog
			s := w.start(t, Config{}, func(d *Deps) { log = d.Audit })
			ask(s, http.MethodPut, c.path, token(t, "sre", api.ScopeOperate), c.body)
			rows, err := log.Acts(t.Context(), 0, 10)
			if err != nil || len(rows) == 0 {
				t.Fatalf("%s: %d rows, %v", c.body, len(rows), err)
			}
			for i := range rows {
				if string(rows[i].Set) != c.want || rows[i].Digest == "" {
					t.Errorf("%s: the row says %s, want %s", c.body, rows[i].Set, c.want)
				}
			}
		})
	}
}
