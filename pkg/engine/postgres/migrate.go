package postgres

import (
	"context"
	"embed"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the migrations of this build, in order.
var migrations = engine.LoadMigrations(migrationFiles, "sql")

// migrateLock is the advisory lock of Migrate: "notifyd" in hex.
const migrateLock = 0x6e6f7469667964

// Migrate changes the schema. With engine.Up it applies all missing migrations. With
// engine.Down it undoes the latest migration. It returns the migrations that it applied or
// undid. Each migration is one transaction. If two processes call Migrate at the same time,
// the second process waits for the first. With engine.Up the second process then finds
// nothing to do.
func (s *Store) Migrate(ctx context.Context, dir engine.Direction) ([]engine.Migration, error) {
	if dir != engine.Up && dir != engine.Down {
		return nil, notify.Invalid("bad_direction", "direction", fmt.Sprintf(`must be "up" or "down", not %q`, string(dir)))
	}
	var done []engine.Migration
	err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		if _, err := c.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(migrateLock)); err != nil {
			return err
		}
		// Unlock even if ctx has ended: otherwise the connection returns to the pool with the lock.
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
			defer cancel()
			if _, err := c.Exec(ctx, `SELECT pg_advisory_unlock($1)`, int64(migrateLock)); err != nil {
				_ = c.Conn().Close(ctx) // closing the connection also frees the lock
			}
		}()
		if _, err := c.Exec(ctx, `CREATE TABLE IF NOT EXISTS schema_migrations (version int PRIMARY KEY, name text NOT NULL, applied timestamptz NOT NULL DEFAULT now()); ALTER TABLE schema_migrations ADD COLUMN IF NOT EXISTS works_with int`); err != nil {
			return err
		}
		all, err := s.appliedMigrations(ctx, c)
		if err != nil {
			return err
		}
		have, err := knownMigrations(all)
		if err == nil && dir == engine.Down && len(all) > len(have) {
			err = newerError(all[len(all)-1])
		}
		if err != nil {
			return err
		}
		todo := migrations[len(have):]
		if dir == engine.Down {
			todo = nil
			if n := len(have); n > 0 {
				todo = migrations[n-1 : n]
			}
		}
		for _, m := range todo {
			if err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return applyStep(ctx, tx, m, dir) }); err != nil {
				return err
			}
			done = append(done, m)
		}
		return nil
	})
	return done, s.handleError(err)
}

// applyStep runs the script of m for the direction dir, and updates the table
// schema_migrations.
func applyStep(ctx context.Context, tx pgx.Tx, m engine.Migration, dir engine.Direction) error {
	mark, args := `INSERT INTO schema_migrations (version, name, works_with) VALUES ($1, $2, $3)`, []any{m.Version, m.Name, m.WorksWith}
	if dir == engine.Down {
		mark, args = `DELETE FROM schema_migrations WHERE version = $1`, args[:1]
	}
	if _, err := tx.Exec(ctx, m.Script[dir]); err != nil { // without arguments, because the script has several statements
		return fmt.Errorf("migration %d_%s %s: %w", m.Version, m.Name, dir, err)
	}
	_, err := tx.Exec(ctx, mark, args...)
	return err
}

// Status returns all migrations of this build, and when they were applied. It returns
// notify.KindConflict (store_newer) if the database has migrations of a newer release and
// this build does not work with the tables of these migrations.
func (s *Store) Status(ctx context.Context) ([]engine.Migration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	all, err := s.appliedMigrations(ctx, s.pool)
	if err != nil {
		return nil, translate(err)
	}
	have, err := knownMigrations(all)
	if err != nil {
		return nil, err
	}
	out := append([]engine.Migration(nil), migrations...)
	for i := range have {
		out[i].Applied = have[i].Applied
	}
	return out, nil
}

// appliedMigrations returns the migrations of the database, in order. It returns no
// migrations if the table schema_migrations does not exist.
func (s *Store) appliedMigrations(ctx context.Context, q querier) (out []engine.Migration, err error) {
	var exists bool
	if err := q.QueryRow(ctx, `SELECT to_regclass('schema_migrations') IS NOT NULL`).Scan(&exists); err != nil || !exists {
		return nil, err
	}
	// An earlier release may have made the table, without the column works_with.
	rows, err := q.Query(ctx, `SELECT version, name, applied, COALESCE((to_jsonb(m) ->> 'works_with')::int, version) FROM schema_migrations m ORDER BY version`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m engine.Migration, err error) {
		return m, row.Scan(&m.Version, &m.Name, &m.Applied, &m.WorksWith)
	})
}

// checkSchema returns an error if this build does not work with a database that has the
// applied migrations.
func checkSchema(applied []engine.Migration) error {
	have, err := knownMigrations(applied)
	if err == nil && len(have) < len(migrations) {
		err = schemaError("store_schema", schemaRepair)
	}
	return err
}

// knownMigrations returns the applied migrations that this build has too. It returns an error
// if the database has a migration of a newer release and this build does not work with the
// tables of that migration. It also returns an error if an applied migration has a different
// name in this build.
func knownMigrations(applied []engine.Migration) ([]engine.Migration, error) {
	for i, m := range applied {
		switch {
		case i >= len(migrations) && m.WorksWith > len(migrations):
			return nil, newerError(m)
		case i < len(migrations) && (m.Version != i+1 || m.Name != migrations[i].Name):
			return nil, schemaError("store_schema", fmt.Sprintf("migration %d_%s in PostgreSQL is unknown to this release: the database is of another release, or was changed by hand; check postgres.dsn", m.Version, m.Name))
		}
	}
	return applied[:min(len(applied), len(migrations))], nil
}

func newerError(m engine.Migration) error {
	return schemaError("store_newer", fmt.Sprintf("PostgreSQL has the tables of a newer release (it has migration %d_%s, but this build knows only migrations 1 to %d): start that release or a newer one", m.Version, m.Name, len(migrations)))
}
