package server

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	inmemory "github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// An opt-out that could not be stored is never answered as if it were.
func TestOptOutWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	plan := faulty.NewPlan(1)
	plan.Add(faulty.Rule{Method: "Prefs.Put", Err: faulty.ErrDown})
	service, err := users.New(faulty.NewPrefs(inmemory.New().Prefs(), plan), users.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := newWorld().start(t, Config{}, func(d *Deps) { d.Users = service })
	got := ask(s, "PUT", "/v1/users/u1", token(t, "crm", api.ScopeUsers, api.ScopeRead), `{"opt_out":["push"]}`)
	if got.status != 503 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if v := service.Snapshot().Decide([]byte("u1"), notify.Push, notify.Marketing, time.Now()); v.Action != users.Send {
		t.Errorf("%v here alone, of what was refused", v.Action)
	}
}
