package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/pkg/notify"
)

//go:embed migrations/*.sql
var files embed.FS

// Direction of Migrate.
type Direction string

// Up applies all that is pending; Down undoes the latest one, and drops what its
// tables hold.
const (
	Up   Direction = "up"
	Down Direction = "down"
)

// Migration is one step of the schema.
type Migration struct {
	Version  int       // 1 for the first; no number is left out
	Name     string    // of its file
	Applied  time.Time // zero: pending
	up, down string
}

// migrations are those this build knows, in order.
var migrations = mustLoad(files)

func mustLoad(from fs.FS) (out []Migration) {
	names, err := fs.Glob(from, "migrations/*.up.sql")
	if err != nil {
		panic(err)
	}
	for i, name := range names { // sorted
		stem := strings.TrimSuffix(path.Base(name), ".up.sql")
		number, rest, _ := strings.Cut(stem, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			panic(fmt.Sprintf("migration %s is not number %d", name, i+1))
		}
		up, err := fs.ReadFile(from, name)
		if err != nil {
			panic(err)
		}
		down, err := fs.ReadFile(from, "migrations/"+stem+".down.sql")
		if err != nil {
			panic(err)
		}
		out = append(out, Migration{Version: i + 1, Name: rest, up: string(up), down: string(down)})
	}
	return out
}

// migrating is the advisory lock of Migrate: "notifyd" in hex.
const migrating = 0x6e6f7469667964

// Migrate changes the schema and returns the steps that were taken. Each is one
// transaction. Of two at a time the second waits and finds nothing to do.
func (s *Store) Migrate(ctx context.Context, to Direction) ([]Migration, error) {
	if to != Up && to != Down {
		return nil, notify.Invalid("bad_direction", "direction", "migrations go up or down")
	}
	var done []Migration
	err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := c.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(migrating)); err != nil {
			return err
		}
		// With a context of its own: else the connection goes back with the lock.
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
			defer cancel()
			if _, err := c.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(migrating)); err != nil {
				_ = c.Conn().Close(ctx) // which frees it, too
			}
		}()
		if _, err := c.Exec(ctx, `CREATE TABLE IF NOT EXISTS schema_migrations (version int PRIMARY KEY, name text NOT NULL, applied timestamptz NOT NULL DEFAULT now())`); err != nil {
			return err
		}
		have, err := s.applied(ctx, c)
		if err != nil {
			return err
		}
		if err := foreign(have); err != nil {
			return err
		}
		todo := migrations[len(have):]
		if to == Down {
			todo = nil
			if n := len(have); n > 0 {
				todo = migrations[n-1 : n]
			}
		}
		for _, m := range todo {
			if err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return step(ctx, tx, m, to) }); err != nil {
				return err
			}
			done = append(done, m)
		}
		return nil
	})
	return done, s.failed(err)
}

func step(ctx context.Context, tx pgx.Tx, m Migration, to Direction) error {
	script, mark, args := m.up, `INSERT INTO schema_migrations (version, name) VALUES ($1, $2)`, []any{m.Version, m.Name}
	if to == Down {
		script, mark, args = m.down, `DELETE FROM schema_migrations WHERE version = $1`, args[:1]
	}
	if _, err := tx.Exec(ctx, script); err != nil { // without arguments: several statements
		return fmt.Errorf("migration %d_%s %s: %w", m.Version, m.Name, to, err)
	}
	_, err := tx.Exec(ctx, mark, args...)
	return err
}

// Status returns all migrations this build knows, and when they were applied.
// notify.KindConflict (store_newer) if the database has ones it does not know.
func (s *Store) Status(ctx context.Context) ([]Migration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	have, err := s.applied(ctx, s.pool)
	if err != nil {
		return nil, translate(err)
	}
	if err := foreign(have); err != nil {
		return nil, err
	}
	out := append([]Migration(nil), migrations...)
	for i := range have {
		out[i].Applied = have[i].Applied
	}
	return out, nil
}

// applied returns what the database has, in order; none without the table.
func (s *Store) applied(ctx context.Context, q querier) (out []Migration, err error) {
	var there bool
	if err := q.QueryRow(ctx, `SELECT to_regclass('schema_migrations') IS NOT NULL`).Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := q.Query(ctx, `SELECT version, name, applied FROM schema_migrations ORDER BY version`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Migration, err error) {
		return m, row.Scan(&m.Version, &m.Name, &m.Applied)
	})
}

// fits compares what a database has with what this build needs.
func fits(have []Migration) error {
	if err := foreign(have); err != nil {
		return err
	}
	if len(have) < len(migrations) {
		return misfit("store_schema", schemaRepair)
	}
	return nil
}

// foreign refuses a database that another release made.
func foreign(have []Migration) error {
	for i, m := range have {
		switch {
		case i >= len(migrations):
			return misfit("store_newer", fmt.Sprintf("PostgreSQL holds the tables of a newer release (migration %d_%s, this one knows %d)", m.Version, m.Name, len(migrations)))
		case m.Version != i+1 || m.Name != migrations[i].Name:
			return misfit("store_schema", fmt.Sprintf("migration %d_%s in PostgreSQL is none of this release: another release's database, or one that was changed by hand", m.Version, m.Name))
		}
	}
	return nil
}
