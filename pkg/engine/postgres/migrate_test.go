package postgres

import (
	"context"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, kind notify.Kind, code string) {
	t.Helper()
	e, ok := err.(*notify.Error)
	if !ok || e.Kind != kind || e.Code != code {
		t.Fatalf("error %v, want %v %s", err, kind, code)
	}
}

// pending counts migrations that are not applied.
func pending(t testing.TB, s *Store) (n int) {
	t.Helper()
	all, err := s.Status(t.Context())
	must(t, err)
	for _, m := range all {
		if m.Applied.IsZero() {
			n++
		}
	}
	return n
}

func TestMigrateUpAndDown(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{DSN: database(t)})
	wantCode(t, s.Check(t.Context()), notify.KindConflict, "store_schema")
	_, _, err := s.Prefs().Get(t.Context(), "ann")
	wantCode(t, err, notify.KindUnavailable, "store_schema")
	for range 2 { // what went down comes up again
		if n := pending(t, s); n != len(migrations) {
			t.Fatalf("%d are pending, want %d", n, len(migrations))
		}
		up, err := s.Migrate(t.Context(), engine.Up)
		must(t, err)
		if len(up) != len(migrations) || pending(t, s) != 0 {
			t.Fatalf("%d went up, %d are pending", len(up), pending(t, s))
		}
		must(t, s.Check(t.Context()))
		_, err = s.Prefs().Put(t.Context(), engine.Profile{User: "ann"})
		must(t, err)
		again, err := s.Migrate(t.Context(), engine.Up)
		must(t, err)
		if len(again) != 0 {
			t.Fatalf("%d went up again", len(again))
		}
		for i := len(migrations); i > 0; i-- {
			down, err := s.Migrate(t.Context(), engine.Down)
			must(t, err)
			if len(down) != 1 || down[0].Version != i {
				t.Fatalf("%+v went down, want %d", down, i)
			}
		}
		down, err := s.Migrate(t.Context(), engine.Down)
		must(t, err)
		if len(down) != 0 {
			t.Fatalf("%+v went down below the first", down)
		}
	}
	var left int
	must(t, s.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND relkind IN ('r', 'i') AND relname NOT LIKE 'schema_migrations%'`).Scan(&left))
	if left != 0 {
		t.Fatalf("%d tables and indexes are left", left)
	}
	_, err = s.Migrate(t.Context(), "sideways")
	wantCode(t, err, notify.KindInvalid, "bad_direction")
}

func TestMigrationsAtATime(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	steps := 0
	for range 6 {
		s := mustOpen(t, Config{DSN: dsn, MaxConns: 2})
		wg.Go(func() {
			done, err := s.Migrate(context.Background(), engine.Up)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			steps += len(done)
			mu.Unlock()
		})
	}
	wg.Wait()
	if steps != len(migrations) {
		t.Fatalf("%d steps were taken, want each of %d once", steps, len(migrations))
	}
}

func TestAMigrationThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{DSN: database(t)})
	_, err := s.pool.Exec(t.Context(), `CREATE TABLE callers (id int)`) // in the way of the second
	must(t, err)
	done, err := s.Migrate(t.Context(), engine.Up)
	if err == nil || len(done) != 1 {
		t.Fatalf("%d steps and error %v, want one step and an error", len(done), err)
	}
	wantCode(t, s.Check(t.Context()), notify.KindConflict, "store_schema")
	_, err = s.pool.Exec(t.Context(), `DROP TABLE callers`)
	must(t, err)
	_, err = s.Migrate(t.Context(), engine.Up)
	must(t, err)
	must(t, s.Check(t.Context()))
}

func TestForeignSchemas(t *testing.T) {
	t.Parallel()
	s, _ := migrated(t)
	_, err := s.pool.Exec(t.Context(), `INSERT INTO schema_migrations VALUES ($1, 'of a later release')`, len(migrations)+1)
	must(t, err)
	wantCode(t, s.Check(t.Context()), notify.KindConflict, "store_newer")
	_, err = s.Status(t.Context())
	wantCode(t, err, notify.KindConflict, "store_newer")
	for _, d := range []engine.Direction{engine.Up, engine.Down} { // which would not know what it undoes
		_, err = s.Migrate(t.Context(), d)
		wantCode(t, err, notify.KindConflict, "store_newer")
	}
	// Tables of a newer release that work with builds of this one: it starts, and undoes nothing.
	for with, fits := range map[int]bool{len(migrations) - 1: true, len(migrations): true, len(migrations) + 1: false} {
		_, err = s.pool.Exec(t.Context(), `UPDATE schema_migrations SET works_with = $1 WHERE version > $2`, with, len(migrations))
		must(t, err)
		all, err := s.Status(t.Context())
		if err := s.Check(t.Context()); (err == nil) != fits {
			t.Errorf("works with %d: %v", with, err)
		}
		if !fits {
			wantCode(t, err, notify.KindConflict, "store_newer")
			continue
		}
		if err != nil || len(all) != len(migrations) {
			t.Errorf("works with %d: %+v, %v", with, all, err)
		}
		if done, err := s.Migrate(t.Context(), engine.Up); err != nil || len(done) > 0 {
			t.Errorf("works with %d, up: %+v, %v", with, done, err)
		}
		_, err = s.Migrate(t.Context(), engine.Down)
		wantCode(t, err, notify.KindConflict, "store_newer")
	}
	// A table that a release before the column has made.
	_, err = s.pool.Exec(t.Context(), `DELETE FROM schema_migrations WHERE version > $1`, len(migrations))
	must(t, err)
	_, err = s.pool.Exec(t.Context(), `ALTER TABLE schema_migrations DROP COLUMN works_with`)
	must(t, err)
	must(t, s.Check(t.Context()))
	_, err = s.Migrate(t.Context(), engine.Up)
	must(t, err)
	must(t, s.Check(t.Context()))
	_, err = s.pool.Exec(t.Context(), `DELETE FROM schema_migrations WHERE version > 1; UPDATE schema_migrations SET name = 'other'`)
	must(t, err)
	wantCode(t, s.Check(t.Context()), notify.KindConflict, "store_schema")
	_, err = s.Migrate(t.Context(), engine.Up)
	wantCode(t, err, notify.KindConflict, "store_schema")
}
