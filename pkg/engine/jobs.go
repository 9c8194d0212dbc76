package engine

import "context"

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

// Jobs keeps jobs and their reports.
type Jobs interface {
	// Create stores a job, or returns the one that has its (Kind, Name) and
	// false. The entries are stored with it, both or none. Its id has never been
	// used, by a job that was dropped neither: an engine may refuse it then
	// (notify.KindConflict).
	Create(ctx context.Context, j Job, entries ...JobEntry) (Job, bool, error)
	// Put stores j if the stored version is j.Version; else notify.KindConflict.
	// The entries are stored with it, both or none.
	Put(ctx context.Context, j Job, entries ...JobEntry) (Job, error)
	Get(ctx context.Context, id string) (j Job, ok bool, err error)
	// Drop forgets a job, its name and its entries, all or none, if the stored
	// version is version; else, and for no job, notify.KindConflict.
	Drop(ctx context.Context, id string, version uint64) error
	// List returns jobs, newest first.
	List(ctx context.Context, max int) ([]Job, error)
	// Entries returns a job's entries with At > after, ascending.
	Entries(ctx context.Context, id string, after uint64, max int) ([]JobEntry, error)
}
