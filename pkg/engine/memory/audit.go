package memory

import (
	"bytes"
	"context"

	"github.com/notifyd/notifyd/pkg/engine"
)

type audit struct{ s *Store }

func cloneAudit(r engine.AuditRow) engine.AuditRow {
	r.Prev, r.Hash, r.Doc = bytes.Clone(r.Prev), bytes.Clone(r.Hash), bytes.Clone(r.Doc)
	return r
}

func (a *audit) Append(ctx context.Context, next func(engine.AuditRow) (engine.AuditRow, error)) (engine.AuditRow, error) {
	if err := check(ctx); err != nil {
		return engine.AuditRow{}, err
	}
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	var last engine.AuditRow
	if n := len(a.s.audited); n > 0 {
		last = cloneAudit(a.s.audited[n-1])
	}
	seq := last.Seq + 1
	row, err := next(last)
	if err != nil {
		return engine.AuditRow{}, err
	}
	row.Seq = seq
	a.s.audited = append(a.s.audited, cloneAudit(row))
	return row, nil
}

func (a *audit) Rows(ctx context.Context, after uint64, max int) (out []engine.AuditRow, err error) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	rest := a.s.audited[min(after, uint64(len(a.s.audited))):]
	for _, r := range rest[:clamp(len(rest), max)] {
		out = append(out, cloneAudit(r))
	}
	return out, check(ctx)
}

func (a *audit) Last(ctx context.Context) (engine.AuditRow, error) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if n := len(a.s.audited); n > 0 {
		return cloneAudit(a.s.audited[n-1]), check(ctx)
	}
	return engine.AuditRow{}, check(ctx)
}
