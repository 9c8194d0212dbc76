package cassandra

import (
	"context"
	"encoding/json"
	"math"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

type audit struct{ log numbered }

func (a audit) Append(ctx context.Context, next func(last engine.AuditRow) (engine.AuditRow, error)) (row engine.AuditRow, err error) {
	_, _, err = a.log.append(ctx, func(r logRow, _ int) ([][]byte, error) {
		last, err := readAudit(r)
		if err != nil {
			return nil, err
		}
		if row, err = next(last); err != nil {
			return nil, err
		}
		row.Seq = uint64(r.n) + 1
		v, err := json.Marshal(row)
		if err != nil {
			return nil, notify.Invalid("bad_audit", "", "the row cannot be stored")
		}
		return [][]byte{v}, nil
	})
	if err != nil {
		return engine.AuditRow{}, err
	}
	return row, nil
}

func readAudit(r logRow) (row engine.AuditRow, err error) {
	if r.n == 0 {
		return row, nil
	}
	if json.Unmarshal(r.data, &row) != nil || row.Seq != uint64(r.n) {
		return engine.AuditRow{}, corrupt("a row of the audit log")
	}
	return row, nil
}

func (a audit) Rows(ctx context.Context, after uint64, max int) ([]engine.AuditRow, error) {
	page, err := a.log.page(ctx, after, math.MaxUint64, max)
	if err != nil || len(page) == 0 {
		return nil, err
	}
	out := make([]engine.AuditRow, len(page))
	for i := range page {
		if out[i], err = readAudit(page[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (a audit) Last(ctx context.Context) (engine.AuditRow, error) {
	r, err := a.log.last(ctx)
	if err != nil {
		return engine.AuditRow{}, err
	}
	return readAudit(r)
}
