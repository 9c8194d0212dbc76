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
var files embed.FS

// migrations are those this build knows, in order.
var migrations = engine.LoadMigrations(files, "sql")

// migrating is the advisory lock of Migrate: "notifyd" in hex.
const migrating = 0x6e6f7469667964

// Migrate changes the schema, down by the latest step only, and returns the steps that were taken. Each is one
// transaction. Of two at a time the second waits and finds nothing to do.
func (s *Store) Migrate(ctx context.Context, to engine.Direction) ([]engine.Migration, error) {
	if to != engine.Up && to != engine.Down {
		return nil, notify.Invalid("bad_direction", "direction", "migrations go up or down")
	}
	var done []engine.Migration
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
		if _, err := c.Exec(ctx, `CREATE TABLE IF NOT EXISTS schema_migrations (version int PRIMARY KEY, name text NOT NULL, applied timestamptz NOT NULL DEFAULT now()); ALTER TABLE schema_migrations ADD COLUMN IF NOT EXISTS works_with int`); err != nil {
			return err
		}
		all, err := s.applied(ctx, c)
		if err != nil {
			return err
		}
		have, err := known(all)
		if err == nil && to == engine.Down && len(all) > len(have) {
			err = newer(all[len(all)-1])
		}
		if err != nil {
			return err
		}
		todo := migrations[len(have):]
		if to == engine.Down {
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

func step(ctx context.Context, tx pgx.Tx, m engine.Migration, to engine.Direction) error {
	mark, args := `INSERT INTO schema_migrations (version, name, works_with) VALUES ($1, $2, $3)`, []any{m.Version, m.Name, m.WorksWith}
	if to == engine.Down {
		mark, args = `DELETE FROM schema_migrations WHERE version = $1`, args[:1]
	}
	if _, err := tx.Exec(ctx, m.Script[to]); err != nil { // without arguments: several statements
		return fmt.Errorf("migration %d_%s %s: %w", m.Version, m.Name, to, err)
	}
	_, err := tx.Exec(ctx, mark, args...)
	return err
}

// Status returns all migrations this build knows, and when they were applied.
// notify.KindConflict (store_newer) if the database has ones it does not work with.
func (s *Store) Status(ctx context.Context) ([]engine.Migration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	all, err := s.applied(ctx, s.pool)
	if err != nil {
		return nil, translate(err)
	}
	have, err := known(all)
	if err != nil {
		return nil, err
	}
	out := append([]engine.Migration(nil), migrations...)
	for i := range have {
		out[i].Applied = have[i].Applied
	}
	return out, nil
}

// applied returns what the database has, in order; none without the table.
func (s *Store) applied(ctx context.Context, q querier) (out []engine.Migration, err error) {
	var there bool
	if err := q.QueryRow(ctx, `SELECT to_regclass('schema_migrations') IS NOT NULL`).Scan(&there); err != nil || !there {
		return nil, err
	}
	// A release before the column works_with may have made the table.
	rows, err := q.Query(ctx, `SELECT version, name, applied, COALESCE((to_jsonb(m) ->> 'works_with')::int, version) FROM schema_migrations m ORDER BY version`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m engine.Migration, err error) {
		return m, row.Scan(&m.Version, &m.Name, &m.Applied, &m.WorksWith)
	})
}

// fits compares what a database has with what this build needs.
func fits(all []engine.Migration) error {
	have, err := known(all)
	if err == nil && len(have) < len(migrations) {
		err = misfit("store_schema", schemaRepair)
	}
	return err
}

// known returns those of all that this build knows. It refuses a database that another
// release made, unless that release's tables work with this build too.
func known(all []engine.Migration) ([]engine.Migration, error) {
	for i, m := range all {
		switch {
		case i >= len(migrations) && m.WorksWith > len(migrations):
			return nil, newer(m)
		case i < len(migrations) && (m.Version != i+1 || m.Name != migrations[i].Name):
			return nil, misfit("store_schema", fmt.Sprintf("migration %d_%s in PostgreSQL is none of this release: another release's database, or one that was changed by hand", m.Version, m.Name))
		}
	}
	return all[:min(len(all), len(migrations))], nil
}

func newer(m engine.Migration) error {
	return misfit("store_newer", fmt.Sprintf("PostgreSQL holds the tables of a newer release (migration %d_%s, this one knows %d)", m.Version, m.Name, len(migrations)))
}
