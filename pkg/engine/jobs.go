package engine

import "context"

// Job is a long-running piece of operations work, resumed from its cursor
// after a crash.
type Job struct {
	ID      string
	Kind    string
	Name    string // idempotent: one job per (Kind, Name)
	State   string // "running", "paused", "done", "stopped", "failed"
	Cursor  []byte
	Spec    []byte // JSON, kind's own
	Result  []byte // JSON, kind's own
	Created int64  // ms since 1970
	Updated int64
	Version uint64 // raised by each Put
}

// Jobs keeps jobs.
type Jobs interface {
	// Create stores a job, or returns the one that has its (Kind, Name) and
	// false.
	Create(ctx context.Context, j Job) (Job, bool, error)
	// Put stores j if the stored version is j.Version; else notify.KindConflict.
	Put(ctx context.Context, j Job) (Job, error)
	Get(ctx context.Context, id string) (j Job, ok bool, err error)
	// List returns jobs, newest first.
	List(ctx context.Context, max int) ([]Job, error)
}
