package store

import (
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/rows"
)

type audit struct{ rows rows.Rows }

// Append calls next again if another was faster.
func (a audit) Append(ctx context.Context, next func(engine.AuditRow) (engine.AuditRow, error)) (engine.AuditRow, error) {
	for {
		last, err := a.Last(ctx)
		if err != nil {
			return engine.AuditRow{}, err
		}
		key := num(last.Seq + 1)
		row, err := next(last)
		if err != nil {
			return engine.AuditRow{}, err
		}
		row.Seq = numberAt(key)
		v, err := pack("bad_audit", "row", row)
		if err != nil {
			return engine.AuditRow{}, err
		}
		won, err := a.rows.Swap(ctx, rows.Change{Part: tableAudit, If: []rows.Row{{Key: key}}, Do: []rows.Row{{Key: key, Value: v}}})
		switch {
		case err != nil:
			return engine.AuditRow{}, err
		case won:
			return row, nil
		}
	}
}

func readAudit(r rows.Row) (engine.AuditRow, error) {
	row, err := unpack[engine.AuditRow](r)
	if err == nil && num(row.Seq) != r.Key {
		err = corrupt(r.Key)
	}
	return row, err
}

func (a audit) Rows(ctx context.Context, after uint64, max int) ([]engine.AuditRow, error) {
	return list(ctx, a.rows, tableAudit, rows.Range{After: num(after)}, max, readAudit)
}

func (a audit) Last(ctx context.Context) (engine.AuditRow, error) {
	last, err := list(ctx, a.rows, tableAudit, rows.Range{Back: true}, 1, readAudit)
	if err != nil || len(last) == 0 {
		return engine.AuditRow{}, err
	}
	return last[0], nil
}
