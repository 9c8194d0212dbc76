package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Store is a pool of connections to one database. Any goroutine may call its methods.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	prefs   Prefs

	closing sync.Once
}

// Open checks cfg and returns a Store. It does not wait for a server. While no primary
// answers, each call of the Store returns notify.KindUnavailable. Check reports whether a
// primary answers and whether this build works with its schema. The caller must call Close.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	pc, err := cfg.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, translate(err)
	}
	s := &Store{pool: pool, timeout: cfg.Timeout}
	s.prefs.s = s
	return s, nil
}

// Close waits until running calls have ended and closes all connections.
func (s *Store) Close() error {
	s.closing.Do(s.pool.Close)
	return nil
}

// Check returns nil if this build works with the schema of the primary. Otherwise it
// returns notify.KindConflict with code store_schema or store_newer. If no primary answers,
// it returns KindUnavailable.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	have, err := s.appliedMigrations(ctx, s.pool)
	if err != nil {
		return translate(err)
	}
	return checkSchema(have)
}

// querier has the methods that a pool, a connection and a transaction share.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// withRetry calls fn with a context that ends after s.timeout, and translates the error of
// fn. If the connection was dead before anything was sent, withRetry calls fn once more.
// The second call is useful after a failover, when the pool contains many dead connections.
func (s *Store) withRetry(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := fn(ctx)
	if err != nil && pgconn.SafeToRetry(err) && ctx.Err() == nil {
		err = fn(ctx)
	}
	return s.handleError(err)
}

// handleError translates an error. If the server refused a write because it is now a standby,
// handleError also closes all connections. New connections then go to the new primary.
func (s *Store) handleError(err error) error {
	if readOnly(err) {
		s.pool.Reset()
	}
	return translate(err)
}

// queryOne reads one row into dst. The result ok is false if the query returns no row.
func (s *Store) queryOne(ctx context.Context, dst []any, sql string, args ...any) (ok bool, err error) {
	err = s.withRetry(ctx, func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, sql, args...).Scan(dst...)
		if ok = err == nil; noRows(err) {
			err = nil
		}
		return err
	})
	return ok, err
}

// queryAll calls the function scan for each row. Before each attempt it calls the function
// reset, which must discard the rows of an earlier attempt, so that a retry does not add
// rows twice.
func (s *Store) queryAll(ctx context.Context, scan func(pgx.Rows) error, reset func(), sql string, args ...any) error {
	return s.withRetry(ctx, func(ctx context.Context) error {
		reset()
		rows, err := s.pool.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// Meta returns the Meta table of this database.
func (s *Store) Meta() engine.Meta { return meta{s} }

type meta struct{ s *Store }

func (m meta) GetMeta(ctx context.Context, name string) (value []byte, err error) {
	ok, err := m.s.queryOne(ctx, []any{&value}, `SELECT value FROM meta WHERE name = $1`, name)
	if !ok {
		return nil, err
	}
	return value, nil
}

func (m meta) PutMeta(ctx context.Context, name string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	return m.s.withRetry(ctx, func(ctx context.Context) error {
		_, err := m.s.pool.Exec(ctx, `INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, name, value)
		return err
	})
}

// SwapMeta implements engine.Meta. A caller whose answer was lost may call SwapMeta again.
// SwapMeta then finds newValue already stored and returns true.
func (m meta) SwapMeta(ctx context.Context, name string, oldValue, newValue []byte) (stored bool, err error) {
	if newValue == nil {
		newValue = []byte{}
	}
	sql, args := `UPDATE meta SET value = $2 WHERE name = $1 AND value IN ($2, $3)`, []any{name, newValue, oldValue}
	if oldValue == nil {
		sql = `INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE meta.value = excluded.value`
		args = args[:2]
	}
	err = m.s.withRetry(ctx, func(ctx context.Context) error {
		tag, err := m.s.pool.Exec(ctx, sql, args...)
		stored = err == nil && tag.RowsAffected() == 1
		return err
	})
	return stored, err
}

// changedError returns the error of a write whose expected version is not the stored
// version.
func changedError(code, what string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: "the " + what + " was changed since it was read"}
}

// corruptError returns the error for a stored value that this package cannot read.
func corruptError(what, key string) error {
	return notify.Corrupt("store", fmt.Sprintf("%s %q", what, key))
}

// Callers returns the callers of this database.
func (s *Store) Callers() engine.Callers { return callers{s} }

// Prefs returns the profiles of this database.
func (s *Store) Prefs() *Prefs { return &s.prefs }
