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

// Store is a pool of connections to one database. Methods may be called from any
// goroutine.
type Store struct {
	pool    *pgxpool.Pool
	timeout time.Duration
	prefs   Prefs

	closing sync.Once
}

// Open checks cfg and returns a Store. It does not wait for a server: one that is
// away is notify.KindUnavailable from each call, until it is back. Check tells
// whether there is one and whether its schema fits. Close it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = setting.Fill(cfg)
	pc, err := cfg.pool()
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

// Close ends all connections; calls that are under way are waited for.
func (s *Store) Close() error {
	s.closing.Do(s.pool.Close)
	return nil
}

// Check asks a primary whether its schema is the one of this build:
// notify.KindConflict (store_schema, store_newer) if not, KindUnavailable if
// none answers.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	have, err := s.applied(ctx, s.pool)
	if err != nil {
		return translate(err)
	}
	return fits(have)
}

// querier is what a pool, a connection and a transaction have in common.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// do bounds a call, translates its error, and calls fn once more where the first
// connection turned out to be dead before anything was sent: after a failover
// the pool holds many such.
func (s *Store) do(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := fn(ctx)
	if err != nil && pgconn.SafeToRetry(err) && ctx.Err() == nil {
		err = fn(ctx)
	}
	return s.failed(err)
}

// failed translates an error. A server that became read-only is a primary no
// more: its connections are given up, and the next ones find who is.
func (s *Store) failed(err error) error {
	if readOnly(err) {
		s.pool.Reset()
	}
	return translate(err)
}

// one reads a single row into dst; ok is false when there is none.
func (s *Store) one(ctx context.Context, dst []any, sql string, args ...any) (ok bool, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		err := s.pool.QueryRow(ctx, sql, args...).Scan(dst...)
		if ok = err == nil; noRows(err) {
			err = nil
		}
		return err
	})
	return ok, err
}

// many reads rows with scan.
func (s *Store) many(ctx context.Context, scan func(pgx.Rows) error, reset func(), sql string, args ...any) error {
	return s.do(ctx, func(ctx context.Context) error {
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

// Meta returns the table of identity and versions.
func (s *Store) Meta() engine.Meta { return meta{s} }

type meta struct{ s *Store }

func (m meta) GetMeta(ctx context.Context, name string) (value []byte, err error) {
	ok, err := m.s.one(ctx, []any{&value}, `SELECT value FROM meta WHERE name = $1`, name)
	if !ok {
		return nil, err
	}
	return value, nil
}

func (m meta) PutMeta(ctx context.Context, name string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	return m.s.do(ctx, func(ctx context.Context) error {
		_, err := m.s.pool.Exec(ctx, `INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, name, value)
		return err
	})
}

// SwapMeta may send its statement twice, when the first answer is lost: the second
// finds value stored.
func (m meta) SwapMeta(ctx context.Context, name string, old, value []byte) (stored bool, err error) {
	if value == nil {
		value = []byte{}
	}
	sql, args := `UPDATE meta SET value = $2 WHERE name = $1 AND value IN ($2, $3)`, []any{name, value, old}
	if old == nil {
		sql = `INSERT INTO meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE meta.value = excluded.value`
		args = args[:2]
	}
	err = m.s.do(ctx, func(ctx context.Context) error {
		tag, err := m.s.pool.Exec(ctx, sql, args...)
		stored = err == nil && tag.RowsAffected() == 1
		return err
	})
	return stored, err
}

func changed(code, what string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: "the " + what + " was changed since it was read"}
}

// corrupt reports a value that this package did not write.
func corrupt(what, key string) error {
	return notify.Corrupt("store", fmt.Sprintf("%s %q", what, key))
}

// Callers returns the contract of callers.
func (s *Store) Callers() engine.Callers { return callers{s} }

// Prefs returns the contract of profiles.
func (s *Store) Prefs() *Prefs { return &s.prefs }
