package server

import (
	"context"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	inmemory "github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/users"
)

// An opt-out that could not be stored is never answered as if it were.
func TestOptOutWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	service, err := users.New(awayPrefs{inmemory.New().Prefs()}, users.Config{})
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

// awayPrefs are profiles that cannot be stored.
type awayPrefs struct{ users.ProfileStore }

func (awayPrefs) Put(context.Context, engine.Profile) (uint64, error) { return 0, faulty.ErrDown }
