package postgres

import (
	"context"
	"encoding/json"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type callers struct{ s *Store }

func (c callers) Get(ctx context.Context, id string) (out engine.Caller, ok bool, err error) {
	var doc []byte
	ok, err = c.s.queryOne(ctx, []any{&doc}, `SELECT doc FROM callers WHERE id = $1`, id)
	if !ok {
		return out, false, err
	}
	if json.Unmarshal(doc, &out) != nil {
		return engine.Caller{}, false, corruptError("caller", id)
	}
	return out, true, nil
}

func (c callers) Put(ctx context.Context, in engine.Caller) error {
	if in.ID == "" {
		return notify.Invalid("bad_caller", "id", "a caller must have an id")
	}
	old := in.Version
	in.Version++
	doc, err := json.Marshal(in)
	if err != nil {
		e := notify.Invalid("bad_caller", "", "the caller cannot be written as JSON")
		e.Err = err
		return e
	}
	if old >= math.MaxInt64 {
		return changedError("caller_changed", "caller")
	}
	sql := `UPDATE callers SET version = $2, doc = $3 WHERE id = $1 AND version = $2 - 1`
	if old == 0 {
		sql = `INSERT INTO callers VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
	}
	return c.s.withRetry(ctx, func(ctx context.Context) error {
		tag, err := c.s.pool.Exec(ctx, sql, in.ID, int64(in.Version), doc)
		if err == nil && tag.RowsAffected() == 0 {
			err = changedError("caller_changed", "caller")
		}
		return err
	})
}

func (c callers) List(ctx context.Context) (out []engine.Caller, err error) {
	err = c.s.queryAll(ctx, func(rows pgx.Rows) error {
		var id string
		var doc []byte
		var one engine.Caller
		if err := rows.Scan(&id, &doc); err != nil {
			return err
		}
		if json.Unmarshal(doc, &one) != nil {
			return corruptError("caller", id)
		}
		out = append(out, one)
		return nil
	}, func() { out = nil }, `SELECT id, doc FROM callers ORDER BY id`)
	return out, err
}
