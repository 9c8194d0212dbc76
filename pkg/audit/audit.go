package audit

import (
	"cmp"
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
	"github.com/notifyd/notifyd/pkg/stream"
)

// Bounds of a partition of the log.
type Bounds struct {
	Start, End int64 // offsets that the log holds: [Start, End)
	Committed  int64 // what the group that reads it has committed
}

// Log is the log as an audit reads it: the topics of first attempts and of
// retries of every lane.
type Log interface {
	// Bounds returns where each partition stands, as of now.
	Bounds(ctx context.Context) (map[stream.TopicPartition]Bounds, error)
	// Read calls fn with every record of [from, to) of each partition of from,
	// in order. notify.KindGone: the log was trimmed behind a from, or meanwhile.
	Read(ctx context.Context, from, to map[stream.TopicPartition]int64, fn func(stream.TopicPartition, *stream.Record) error) error
	// Lost reports whether the log lost a record to damage.
	Lost(tp stream.TopicPartition, offset int64) bool
}

// History is what history.Store has for an audit.
type History interface {
	Sync(ctx context.Context, ends map[history.Part]int64) error
	Chunks(ctx context.Context, from map[history.Part]int64, since int64, fn func(*engine.Found) error) (map[history.Part]int64, error)
	Unsealed(p history.Part, from, below int64, fn func(*engine.Found) error) error
	Earlier(f *engine.Found) (bool, error)
	Find(ctx context.Context, id notify.ID) (engine.Found, error)
	Of(base notify.Base) ([]history.Held, error)
	Has(base notify.Base) (bool, error)
	Kept(now time.Time) time.Time
}

// Schedules is what schedule.Service has for an audit.
type Schedules interface {
	List(ctx context.Context, caller string, after notify.Base, max int) ([]schedule.View, error)
	Get(ctx context.Context, base notify.Base) (schedule.View, error)
	Timers(ctx context.Context, v schedule.View) (schedule.View, []engine.Timer, error)
}

// Triggers audits triggers: fn gets every one with where its evidence lies, ""
// for none. Run decides what is none.
type Triggers interface {
	Audit(ctx context.Context, since int64, fn func(t *engine.Trigger, evidence string)) error
}

// Config of an Auditor. All but Triggers and what has a default is required.
type Config struct {
	Log       Log
	History   History
	Status    engine.Status
	Timers    engine.Timers
	Cold      engine.ColdTimers
	Spill     engine.Spill
	Schedules Schedules
	Triggers  Triggers // nil: there are none
	Shards    int      // of the timer engine

	// First is the topics of first attempts.
	First []string
	// Apart: schedules and their timers are not stored in one commit, so that a
	// crash may leave one without, of a request that was never answered. Those
	// made before Born, the start of this process, are then no drift.
	Apart bool
	Born  time.Time
	// Settle is the wait between two looks at a suspect; longer than a commit of
	// offsets takes. Default 2 s.
	Settle time.Duration
	// Rounds is how often a suspect that stands still is looked at. Default 3.
	Rounds int
	// Batch is how many suspects are looked at together: 200 bytes each.
	// Default 100,000.
	Batch int
	// MaxFindings is how many findings of a class a report lists. Default 100.
	MaxFindings int
	// MaxGroups is how many groups a report has. Default 10,000.
	MaxGroups int
}

func (c Config) withDefaults() Config {
	c.Settle = cmp.Or(c.Settle, 2*time.Second)
	c.Rounds = cmp.Or(c.Rounds, 3)
	c.Batch = cmp.Or(c.Batch, 100_000)
	c.MaxFindings = cmp.Or(c.MaxFindings, 100)
	c.MaxGroups = cmp.Or(c.MaxGroups, 10_000)
	return c
}

// Auditor adds up. Safe for concurrent use; one run at a time, others wait.
type Auditor struct {
	cfg Config
	one chan struct{} // holds one: whose turn it is
}

// New returns an Auditor; it starts nothing.
func New(cfg Config) *Auditor {
	return &Auditor{cfg: cfg.withDefaults(), one: make(chan struct{}, 1)}
}

// Run audits what was accepted since then (zero: all that is kept). An error
// means that a store or the log was away, or that the history is damaged.
func (a *Auditor) Run(ctx context.Context, since time.Time) (api.Conservation, error) {
	r := a.newRun(since, a.cfg.MaxFindings)
	return r.through(ctx, r.begin, r.originals, r.spilled, r.schedules, r.confirm, r.rowsAlone, r.triggers)
}

// Notifications is Run without triggers, and lists up to max findings of a class.
func (a *Auditor) Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error) {
	r := a.newRun(since, max)
	return r.through(ctx, r.begin, r.originals, r.spilled, r.schedules, r.confirm, r.rowsAlone)
}

// Again returns those of the notifications whose outcome is missing and to which
// nothing leads: what Run says of them now. One that nobody accepted, or that is
// no longer kept, is none of them.
func (a *Auditor) Again(ctx context.Context, ids []notify.ID) ([]api.Drift, error) {
	r := a.newRun(time.Time{}, len(ids))
	look := func(ctx context.Context) error {
		for _, id := range ids {
			if err := r.one(ctx, id); err != nil {
				return err
			}
		}
		return nil
	}
	rep, err := r.through(ctx, r.begin, look, r.confirm)
	return rep.Findings, err
}

func (a *Auditor) newRun(since time.Time, findings int) *run {
	r := &run{a: a, cfg: &a.cfg, most: findings, groups: map[group]*api.Ledger{}, listed: map[string]int{}, suspects: map[place]*suspect{}}
	if !since.IsZero() {
		r.since = since.UnixMilli()
		r.rep.Since = &since
	}
	r.rep.States, r.rep.Waiting, r.rep.Classes = map[string]int64{}, map[string]int64{}, map[string]int64{}
	r.rep.Findings = []api.Drift{}
	return r
}

// through takes the steps, one run at a time.
func (r *run) through(ctx context.Context, steps ...func(context.Context) error) (api.Conservation, error) {
	select {
	case r.a.one <- struct{}{}:
		defer func() { <-r.a.one }()
	case <-ctx.Done(): // who went away does not keep its place in the line
		return api.Conservation{}, ctx.Err()
	}
	r.now = time.Now()
	r.rep.At = r.now.UTC()
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return api.Conservation{}, err
		}
	}
	r.finish()
	r.rep.TookMS = time.Since(r.now).Milliseconds()
	return r.rep, nil
}
