package postgres

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
	"github.com/notifyd/notifyd/pkg/users"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// calls may wait for a machine that does much else.
const patient = 30 * time.Second

// database makes an empty database and returns its DSN.
func database(t testing.TB) string {
	t.Helper()
	server := enginetest.Server(t, enginetest.PostgresEnv)
	name := "t_" + strings.ToLower(rand.Text())
	admin := func(sql string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := pgx.Connect(ctx, server)
		if err == nil {
			_, err = c.Exec(ctx, sql)
			_ = c.Close(ctx)
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	admin("CREATE DATABASE " + name)
	t.Cleanup(func() { admin("DROP DATABASE " + name + " WITH (FORCE)") })
	return named(t, server, name)
}

// named is a DSN with another database in it.
func named(t testing.TB, dsn, name string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func mustOpen(t enginetest.T, cfg Config) *Store {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = patient
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// migrated is a store in a database of its own that has its schema.
func migrated(t *testing.T) (*Store, string) {
	t.Helper()
	dsn := database(t)
	s := mustOpen(t, Config{DSN: dsn})
	if _, err := s.Migrate(t.Context(), engine.Up); err != nil {
		t.Fatal(err)
	}
	return s, dsn
}

// open gives the suites a store in one database per suite, emptied for each of
// its tests: they run one after another.
func open[E any](t *testing.T, of func(*Store) E) enginetest.Opener[E] {
	s, dsn := migrated(t)
	return func(t enginetest.T) (E, func() E) {
		if _, err := s.pool.Exec(context.Background(), emptied); err != nil {
			t.Fatalf("empty: %v", err)
		}
		mine := mustOpen(t, Config{DSN: dsn, MaxConns: 8})
		return of(mine), func() E {
			_ = mine.Close()
			mine = mustOpen(t, Config{DSN: dsn, MaxConns: 8})
			return of(mine)
		}
	}
}

const emptied = `DELETE FROM profiles; DELETE FROM callers; DELETE FROM meta; UPDATE counters SET value = 0, began = 0`

func TestPrefs(t *testing.T) { t.Parallel(); enginetest.Prefs(t, open(t, (*Store).Prefs)) }
func TestCallers(t *testing.T) {
	t.Parallel()
	enginetest.Callers(t, open(t, (*Store).Callers))
}
func TestMeta(t *testing.T) { t.Parallel(); enginetest.Meta(t, open(t, (*Store).Meta)) }

var _ users.ProfileStore = (*Prefs)(nil)
