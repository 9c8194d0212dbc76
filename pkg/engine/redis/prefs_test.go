package redis

import (
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/engine/faulty"
	"github.com/notifyd/notifyd/pkg/engine/memory"
)

func TestCachedPrefs(t *testing.T) {
	t.Parallel()
	addr := enginetest.Server(t, enginetest.RedisEnv)
	enginetest.Prefs(t, func(t enginetest.T) (engine.Prefs, func() engine.Prefs) {
		next := memory.New().Prefs()
		return open(addr, func(s *Store) engine.Prefs { return s.CachedPrefs(next) })(t)
	})
}

// An opt-out written by one process is what the other reads next; one that is
// written around the cache within a second; and what is known is read while the
// store, the cache, or both are away.
func TestCachedPrefsBetweenProcesses(t *testing.T) {
	t.Parallel()
	srv := startServer(t)
	store, plan := memory.New().Prefs(), faulty.NewPlan(1)
	next := faulty.NewPrefs(store, plan)
	a, b := srv.connect(shortly).CachedPrefs(next), srv.connect(shortly).CachedPrefs(next)
	profile := func(optOut string) engine.Profile { return engine.Profile{User: "u", OptOut: []string{optOut}} }
	want := func(p engine.Prefs, optOut string) {
		t.Helper()
		got, ok, err := p.Get(bg, "u")
		if err != nil || !ok || len(got.OptOut) != 1 || got.OptOut[0] != optOut {
			t.Fatalf("%+v %v %v, want %s", got, ok, err, optOut)
		}
	}
	if _, ok, err := b.Get(bg, "u"); ok || err != nil {
		t.Fatal(ok, err) // cached as well: there is none
	}
	v, err := a.Put(bg, profile("push"))
	must(t, err)
	want(b, "push")
	reads := plan.Calls("Prefs.Get")
	want(b, "push")
	want(a, "push")
	if n := plan.Calls("Prefs.Get") - reads; n > 2 { // none, unless the machine took a second
		t.Errorf("%d reads of the store", n)
	}
	// A reader that was slow brings an older version: it is not kept.
	a.(*cachedPrefs).keep(bg, "u", engine.Profile{User: "u", Version: v - 1, OptOut: []string{"old"}}, true)
	want(b, "push")
	must(t, a.PutMany(bg, []engine.Profile{profile("sms")}))
	want(b, "sms")
	_, err = store.Put(bg, profile("email"))
	must(t, err)
	time.Sleep(profileFresh + 10*time.Millisecond)
	want(b, "email")

	heal := plan.Add(faulty.Rule{Method: "Prefs.*", Err: faulty.ErrDown})
	time.Sleep(profileFresh + 10*time.Millisecond)
	want(a, "email")
	_, err = a.Put(bg, profile("marketing"))
	wantUnavailable(t, "a write", err) // never a lie
	heal()
	srv.kill()
	want(a, "email")
	_, err = a.Put(bg, profile("marketing"))
	must(t, err)
	want(b, "marketing")
	srv.start()
	srv.await(func() bool { return a.(*cachedPrefs).s.Ping(bg) == nil && b.(*cachedPrefs).s.Ping(bg) == nil })
	time.Sleep(profileFresh + 10*time.Millisecond)
	want(b, "marketing")
}
