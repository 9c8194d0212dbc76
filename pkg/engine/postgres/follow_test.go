package postgres

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	service "github.com/notifyd/notifyd/pkg/users"
)

// background runs fn until the test ends, or stop is called.
func background(t *testing.T, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// until waits for something that a server does.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within two minutes", what)
		}
	}
}

func muted(s *service.Service, user string) bool {
	return s.Snapshot().Decide([]byte(user), notify.Push, notify.Marketing, time.Now()).Action == service.OptedOut
}

// Two processes: a write that one has acknowledged must be visible in the other within a
// second. The test prints the measured time.
func TestOptOutBindsInAnotherProcess(t *testing.T) {
	t.Parallel()
	for _, notified := range []bool{true, false} {
		name := "NOTIFY lost"
		if notified {
			name = "NOTIFY heard"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, dsn := migrated(t)
			two := mustOpen(t, Config{DSN: dsn})
			cfg := service.Config{}
			if notified {
				cfg.Poll = time.Hour // else a poll could be what does it
			}
			a, err := service.New(one.Prefs(), service.Config{})
			must(t, err)
			must(t, a.Load(t.Context()))
			b, err := service.New(two.Prefs(), cfg)
			must(t, err)
			if notified {
				background(t, func(ctx context.Context) error { return two.Listen(ctx, b.Wake) })
			}
			background(t, b.Run)
			// The first may come before the other one listens: it looks once it does.
			bind := func(user string) time.Duration {
				_, err := a.Put(t.Context(), engine.Profile{User: user, OptOut: []string{"push"}})
				must(t, err)
				answered := time.Now()
				until(t, user, func() bool { return muted(b, user) })
				return time.Since(answered)
			}
			bind("first")
			var took []time.Duration
			for i := range 20 {
				took = append(took, bind(fmt.Sprint("u", i)))
			}
			slices.Sort(took)
			t.Logf("opt-out bound in another process, %s: median %v, longest %v of %d", name, took[len(took)/2], took[len(took)-1], len(took))
		})
	}
}

func TestListenConnectsAnew(t *testing.T) {
	t.Parallel()
	s, _ := migrated(t)
	woken := make(chan struct{}, 1000)
	stop := background(t, func(ctx context.Context) error { return s.Listen(ctx, func() { woken <- struct{}{} }) })
	wake := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(2 * time.Minute):
			t.Fatalf("not woken: %s", what)
		}
	}
	wake("by the start: changes may have been before it")
	listening := func() (n int) {
		must(t, s.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN notifyd_profiles'`).Scan(&n))
		return n
	}
	until(t, "listens", func() bool { return listening() == 1 })
	version, err := s.Prefs().Put(t.Context(), engine.Profile{User: "ann"})
	must(t, err)
	wake("by a change")
	must(t, s.Prefs().PutMany(t.Context(), []engine.Profile{{User: "bob"}, {User: "cid"}}))
	wake("by an import")
	var ended bool
	must(t, s.pool.QueryRow(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN notifyd_profiles'`).Scan(&ended))
	wake("by the new connection: changes may have been between")
	until(t, "listens again", func() bool { return listening() == 1 })
	_, err = s.Prefs().Put(t.Context(), engine.Profile{User: "ann", Version: version})
	must(t, err)
	wake("by a change, after it connected anew")
	stop()
	until(t, "its connection is closed", func() bool { return listening() == 0 })
}

// If a transaction has taken a version and commits late, no reader sees a later version
// before it.
func TestVersionsBecomeVisibleInOrder(t *testing.T) {
	t.Parallel()
	s, _ := migrated(t)
	p := s.Prefs()
	tx, err := s.pool.Begin(t.Context())
	must(t, err)
	var held int64
	must(t, tx.QueryRow(t.Context(), `SELECT put_profile('slow', '{}', 0)`).Scan(&held))
	put := make(chan uint64, 1)
	go func() {
		v, err := p.Put(context.Background(), engine.Profile{User: "quick"})
		if err != nil {
			t.Error(err)
		}
		put <- v
	}()
	// The later one waits for the earlier: it shows as a lock that is not granted.
	until(t, "the later one waits", func() bool {
		var n int
		must(t, s.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
		return n == 1
	})
	changes, err := p.Changes(t.Context(), 0, 10)
	must(t, err)
	if len(changes) != 0 {
		t.Fatalf("%+v is visible before what has an earlier version", changes)
	}
	must(t, tx.Commit(t.Context()))
	if v := <-put; v != uint64(held)+1 {
		t.Fatalf("version %d after %d", v, held)
	}
	changes, err = p.Changes(t.Context(), 0, 10)
	must(t, err)
	if len(changes) != 2 || changes[0].Profile.User != "slow" || changes[1].Profile.User != "quick" {
		t.Fatalf("changes %+v", changes)
	}
}

// A follower must detect a promoted standby that lacked commits: its counter is behind, or
// it is ahead again by changes of a timeline that began before the version that the
// follower has seen.
func TestLostVersionsAreNoticed(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]string{
		"behind":   `UPDATE counters SET value = value - 1`,
		"overtook": `UPDATE counters SET value = value + 5, timeline = 'another', began = value - 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dsn := migrated(t)
			p := s.Prefs()
			for _, user := range []string{"ann", "bob"} {
				_, err := p.Put(t.Context(), engine.Profile{User: user})
				must(t, err)
			}
			changes, err := p.Changes(t.Context(), 0, 10)
			must(t, err)
			_, err = s.pool.Exec(t.Context(), lose)
			must(t, err)
			for range 2 {
				_, err = p.Changes(t.Context(), changes[1].Version, 10)
				wantCode(t, err, notify.KindUnavailable, engine.CodeRegressed)
			}
			_, err = p.Version(t.Context())
			must(t, err)
			_, err = p.Changes(t.Context(), 0, 10)
			must(t, err)
			fresh := mustOpen(t, Config{DSN: dsn}) // saw nothing, so lost nothing
			_, err = fresh.Prefs().Changes(t.Context(), 0, 10)
			must(t, err)
		})
	}
	t.Run("a failover that lost nothing", func(t *testing.T) {
		t.Parallel()
		s, _ := migrated(t)
		p := s.Prefs()
		v, err := p.Put(t.Context(), engine.Profile{User: "ann"})
		must(t, err)
		_, err = p.Changes(t.Context(), 0, 10)
		must(t, err)
		_, err = s.pool.Exec(t.Context(), `UPDATE counters SET timeline = 'another', began = value, value = value + 3`)
		must(t, err)
		_, err = p.Changes(t.Context(), v, 10)
		must(t, err)
	})
}
