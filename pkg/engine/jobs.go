package engine

// Job is a long-running piece of operations work, resumed from its cursor
// after a crash.
type Job struct {
	ID      string
	Kind    string
	Name    string // idempotent: one job per (Kind, Name)
	State   string
	Cursor  []byte
	Spec    []byte // JSON, kind's own
	Result  []byte // JSON, kind's own
	Created int64  // ms since 1970
	Updated int64
	Version uint64 // raised by each Put
}

// JobEntry is one line of a job's report.
type JobEntry struct {
	At  uint64 // ascending within a job; the same again replaces
	Doc []byte
}
