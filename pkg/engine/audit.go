package engine

import "context"

// AuditRow is one row of the audit log: what was done, and the hash that chains
// it to the row before.
type AuditRow struct {
	Seq  uint64 // 1 for the first; no number is left out
	Prev []byte // hash of the row before; nil for the first
	Hash []byte
	Doc  []byte // JSON; what it says is the caller's
}

// Audit keeps the audit log. Rows are added, and never changed.
type Audit interface {
	// Append adds the row that make returns for the last row (the zero AuditRow:
	// there is none), as its next: Seq is its Seq + 1. Of many who append at a
	// time each sees the one before.
	Append(ctx context.Context, make func(last AuditRow) (AuditRow, error)) (AuditRow, error)
	// Rows returns rows with Seq > after, ascending.
	Rows(ctx context.Context, after uint64, max int) ([]AuditRow, error)
	// Last returns the last row; the zero AuditRow: there is none.
	Last(ctx context.Context) (AuditRow, error)
}
