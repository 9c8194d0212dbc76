package engine

// AuditRow is one row of the audit log: what was done, and the hash that chains
// it to the row before.
type AuditRow struct {
	Seq  uint64 // 1 for the first; no number is left out
	Prev []byte // hash of the row before; nil for the first
	Hash []byte
	Doc  []byte // JSON; what it says is the caller's
}
