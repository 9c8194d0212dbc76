package engine

// Job is a long operation that an operator started. After a crash it continues from its
// Cursor.
type Job struct {
	ID      string
	Kind    string
	Name    string // a (Kind, Name) has only one job, so starting a job twice is safe
	State   string
	Cursor  []byte
	Spec    []byte // JSON; its fields depend on Kind
	Result  []byte // JSON; its fields depend on Kind
	Created int64  // ms since 1970
	Updated int64
	Version uint64 // raised by each Put
}

// JobEntry is one document of a job: a line of the job's report, or a part of the set on which the
// job works.
type JobEntry struct {
	At  uint64 // position, ascending; a later entry with the same At replaces the earlier entry
	Doc []byte
}
