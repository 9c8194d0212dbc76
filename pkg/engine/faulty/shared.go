package faulty

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
)

// Callers misbehaves as its plan says.
type Callers struct {
	next engine.Callers
	plan *Plan
}

// NewCallers wraps next.
func NewCallers(next engine.Callers, p *Plan) engine.Callers { return Callers{next, p} }

func (w Callers) Get(ctx context.Context, id string) (engine.Caller, bool, error) {
	return get2(ctx, w.plan, "Callers", "Get", func() (engine.Caller, bool, error) { return w.next.Get(ctx, id) })
}

func (w Callers) Put(ctx context.Context, c engine.Caller) error {
	return w.plan.do(ctx, "Callers", "Put", func() error { return w.next.Put(ctx, c) })
}

func (w Callers) List(ctx context.Context) ([]engine.Caller, error) {
	return get(ctx, w.plan, "Callers", "List", func() ([]engine.Caller, error) { return w.next.List(ctx) })
}

// Meta misbehaves as its plan says.
type Meta struct {
	next engine.Meta
	plan *Plan
}

// NewMeta wraps next.
func NewMeta(next engine.Meta, p *Plan) engine.Meta { return Meta{next, p} }

func (w Meta) GetMeta(ctx context.Context, name string) ([]byte, error) {
	return get(ctx, w.plan, "Meta", "GetMeta", func() ([]byte, error) { return w.next.GetMeta(ctx, name) })
}

func (w Meta) PutMeta(ctx context.Context, name string, value []byte) error {
	return w.plan.do(ctx, "Meta", "PutMeta", func() error { return w.next.PutMeta(ctx, name, value) })
}

func (w Meta) SwapMeta(ctx context.Context, name string, old, value []byte) (bool, error) {
	return get(ctx, w.plan, "Meta", "SwapMeta", func() (bool, error) { return w.next.SwapMeta(ctx, name, old, value) })
}

// Jobs misbehaves as its plan says.
type Jobs struct {
	next engine.Jobs
	plan *Plan
}

// NewJobs wraps next.
func NewJobs(next engine.Jobs, p *Plan) engine.Jobs { return Jobs{next, p} }

func (w Jobs) Create(ctx context.Context, j engine.Job, es ...engine.JobEntry) (engine.Job, bool, error) {
	return get2(ctx, w.plan, "Jobs", "Create", func() (engine.Job, bool, error) { return w.next.Create(ctx, j, es...) })
}

func (w Jobs) Put(ctx context.Context, j engine.Job, es ...engine.JobEntry) (engine.Job, error) {
	return get(ctx, w.plan, "Jobs", "Put", func() (engine.Job, error) { return w.next.Put(ctx, j, es...) })
}

func (w Jobs) Entries(ctx context.Context, id string, after uint64, max int) ([]engine.JobEntry, error) {
	return get(ctx, w.plan, "Jobs", "Entries", func() ([]engine.JobEntry, error) { return w.next.Entries(ctx, id, after, max) })
}

func (w Jobs) Drop(ctx context.Context, id string, version uint64) error {
	return w.plan.do(ctx, "Jobs", "Drop", func() error { return w.next.Drop(ctx, id, version) })
}

func (w Jobs) Get(ctx context.Context, id string) (engine.Job, bool, error) {
	return get2(ctx, w.plan, "Jobs", "Get", func() (engine.Job, bool, error) { return w.next.Get(ctx, id) })
}

func (w Jobs) List(ctx context.Context, max int) ([]engine.Job, error) {
	return get(ctx, w.plan, "Jobs", "List", func() ([]engine.Job, error) { return w.next.List(ctx, max) })
}

// Lease misbehaves as its plan says.
type Lease struct {
	next engine.Lease
	plan *Plan
}

// NewLease wraps next.
func NewLease(next engine.Lease, p *Plan) engine.Lease { return Lease{next, p} }

func (w Lease) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return get(ctx, w.plan, "Lease", "Acquire", func() (bool, error) { return w.next.Acquire(ctx, name, owner, ttl) })
}

func (w Lease) Renew(ctx context.Context, name, owner string, ttl time.Duration) (bool, error) {
	return get(ctx, w.plan, "Lease", "Renew", func() (bool, error) { return w.next.Renew(ctx, name, owner, ttl) })
}

func (w Lease) Release(ctx context.Context, name, owner string) error {
	return w.plan.do(ctx, "Lease", "Release", func() error { return w.next.Release(ctx, name, owner) })
}

// Limits misbehaves as its plan says.
type Limits struct {
	next engine.Limits
	plan *Plan
}

// NewLimits wraps next.
func NewLimits(next engine.Limits, p *Plan) engine.Limits { return Limits{next, p} }

func (w Limits) Take(ctx context.Context, bucket string, n int, rate float64, burst int) (int, time.Duration, error) {
	return get2(ctx, w.plan, "Limits", "Take", func() (int, time.Duration, error) { return w.next.Take(ctx, bucket, n, rate, burst) })
}

func (w Limits) Block(ctx context.Context, account string, until time.Time) error {
	return w.plan.do(ctx, "Limits", "Block", func() error { return w.next.Block(ctx, account, until) })
}

func (w Limits) Blocked(ctx context.Context, accounts []string) ([]time.Time, error) {
	return get(ctx, w.plan, "Limits", "Blocked", func() ([]time.Time, error) { return w.next.Blocked(ctx, accounts) })
}

// Filter misbehaves as its plan says.
type Filter struct {
	next engine.Filter
	plan *Plan
}

// NewFilter wraps next.
func NewFilter(next engine.Filter, p *Plan) engine.Filter { return Filter{next, p} }

func (w Filter) Add(ctx context.Context, ids []uint64) error {
	return w.plan.do(ctx, "Filter", "Add", func() error { return w.next.Add(ctx, ids) })
}

func (w Filter) Seen(ctx context.Context, ids []uint64) ([]bool, time.Time, error) {
	return get2(ctx, w.plan, "Filter", "Seen", func() ([]bool, time.Time, error) { return w.next.Seen(ctx, ids) })
}

func (w Filter) Incomplete(ctx context.Context) error {
	return w.plan.do(ctx, "Filter", "Incomplete", func() error { return w.next.Incomplete(ctx) })
}

// Audit misbehaves as its plan says.
type Audit struct {
	next engine.Audit
	plan *Plan
}

// NewAudit wraps next.
func NewAudit(next engine.Audit, p *Plan) engine.Audit { return Audit{next, p} }

func (w Audit) Append(ctx context.Context, row func(engine.AuditRow) (engine.AuditRow, error)) (engine.AuditRow, error) {
	return get(ctx, w.plan, "Audit", "Append", func() (engine.AuditRow, error) { return w.next.Append(ctx, row) })
}

func (w Audit) Rows(ctx context.Context, after uint64, max int) ([]engine.AuditRow, error) {
	return get(ctx, w.plan, "Audit", "Rows", func() ([]engine.AuditRow, error) { return w.next.Rows(ctx, after, max) })
}

func (w Audit) Last(ctx context.Context) (engine.AuditRow, error) {
	return get(ctx, w.plan, "Audit", "Last", func() (engine.AuditRow, error) { return w.next.Last(ctx) })
}
