package engine

// AuditRow is one row of the audit log: a document about one action, and the hash that
// chains it to the previous row.
type AuditRow struct {
	Seq  uint64 // 1, 2, 3 and so on, without gaps
	Prev []byte // the Hash of the previous row; nil in the first row
	Hash []byte
	Doc  []byte // JSON; the engine does not read it
}
