package conserve

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/schedule"
	"github.com/notifyd/notifyd/pkg/setting"
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
	Bounds(ctx context.Context) (map[log.TopicPartition]Bounds, error)
	// Read calls fn with every record of [from, to) of each partition of from,
	// in order. notify.KindGone: the log was trimmed behind a from, or meanwhile.
	Read(ctx context.Context, from, to map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error
	// Lost reports whether the log lost a record to damage.
	Lost(tp log.TopicPartition, offset int64) bool
}

// History is what history.Store has for an audit.
type History interface {
	Sync(ctx context.Context, ends map[history.Part]int64) error
	Chunks(ctx context.Context, from map[history.Part]int64, since int64, fn func(*engine.Found) error) (map[history.Part]int64, error)
	Unsealed(p history.Part, from, below int64, fn func(*engine.Found) error) error
	Counted(f *engine.Found) (int64, error)
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

// Triggers is what trigger.Mender has for this: it reads what leads to a trigger,
// and repairs rows.
type Triggers interface {
	// Lead reads the payload of a timer, or a message of the delay queue.
	Lead(body []byte) (base notify.Base, gen uint32, ok bool)
	ID(base notify.Base) string
	// Timer returns the timer that leads to a waiting trigger; false: its id cannot
	// be read.
	Timer(t *engine.Trigger) (engine.Timer, bool)
	// Mend writes timers, writes dead letters and makes rows due again. Each row
	// is changed only while it is the one given. It returns the ids of those repaired.
	Mend(ctx context.Context, timers, letters, again []engine.Trigger) (mended []string, err error)
}

// Producer takes records; nil means that every one is durable.
type Producer interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Spill holds what was accepted while the log was away: intake.Spill.
type Spill interface {
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
}

// Config of an Auditor. What has no default is required. Checks of triggers alone
// need Rows, Triggers, Timers and Shards.
type Config struct {
	Log       Log
	History   History
	Status    engine.Status
	Timers    engine.Timers
	Cold      engine.ColdTimers
	Spill     Spill
	Schedules Schedules
	Rows      engine.Triggers // of triggers
	Triggers  Triggers
	Producer  Producer
	Shards    engine.Shards // of the timer engine

	// Queue calls fn with the body of every message of the delay queue, those
	// that a dispatcher holds included. nil: the engine does not show them.
	Queue func(ctx context.Context, fn func(body []byte) error) error
	// Held returns how many messages the delay queue holds. It is required where
	// Queue is nil: while there are any, each may be of the trigger that is looked
	// for, so the evidence of that trigger is unknown.
	Held func(ctx context.Context) (int, error)
	// Away returns why this process cannot audit. Default: it can.
	Away func() error
	// Waiting is told how many triggers of each caller wait, after each look at all
	// triggers. Default: not called.
	Waiting func(map[string]int)
	// Logger is told of rows that cannot be read.
	Logger *slog.Logger `default:"discard"`

	// First is the topics of first attempts.
	First []string
	// Apart: schedules and their timers are not stored in one commit, so that a
	// crash may leave one without, of a request that was never answered. Those
	// made before Born, the start of this process, are then no drift.
	Apart bool
	Born  time.Time
	// Settle is the wait between two looks at a suspect; longer than a commit of
	// offsets takes.
	Settle time.Duration `default:"2s"`
	// Rounds is how often a suspect that stands still is looked at.
	Rounds int `default:"3"`
	// Batch is how many suspects are looked at together: 200 bytes each.
	Batch int `default:"100_000"`
	// MaxFindings is how many findings of a class an audit lists.
	MaxFindings int `default:"100"`
	// MaxGroups is how many groups an audit has.
	MaxGroups int `default:"10_000"`

	// Grace is how far past due a trigger or the timer of a notification, or past
	// its lease a claim, must be: longer than any deferral.
	Grace time.Duration `default:"15m"`
	// Ahead is how far ahead timers of triggers are looked for; at least twice the
	// time between runs, less than the cold tier's border.
	Ahead time.Duration `default:"2h"`
	// Open is how far in the past a minute with timers must lie to be a finding.
	Open time.Duration `default:"5m"`
	// MaxListed is how many findings a report lists; all are counted.
	MaxListed int `default:"10_000"`
	// MaxAge is how old a report may be when it is applied.
	MaxAge time.Duration `default:"15m"`
	// Page is how many rows or timers are read at a time.
	Page int `default:"500"`
	// Hit is told of named points, for tests. Default: not called.
	Hit func(string)
}

// Auditor adds up, reports and repairs. Safe for concurrent use; one run at a time,
// others wait. Two repairs at a time would append a record twice, which changes no
// outcome.
type Auditor struct {
	cfg      Config
	one      chan struct{}                    // holds one: whose turn it is
	books    books                            // the Auditor itself, or a test's
	triggers triggerSource                    // triggerChecks, or a test's
	latest   atomic.Pointer[api.Conservation] // of Audit
}

type books interface {
	Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error)
	Again(ctx context.Context, ids []notify.ID) ([]api.Drift, error)
}

// New returns an Auditor; it starts nothing.
func New(cfg Config) *Auditor {
	cfg = setting.Fill(cfg)
	if cfg.Away == nil {
		cfg.Away = func() error { return nil }
	}
	if cfg.Waiting == nil {
		cfg.Waiting = func(map[string]int) {}
	}
	if cfg.Hit == nil {
		cfg.Hit = func(string) {}
	}
	a := &Auditor{cfg: cfg, one: make(chan struct{}, 1)}
	a.books, a.triggers = a, triggerChecks{a}
	return a
}

// Run audits what was accepted since then (zero: all that is kept). An error
// means that a store or the log was away, or that the history is damaged.
func (a *Auditor) Run(ctx context.Context, since time.Time) (api.Conservation, error) {
	r := newRun(a, since, a.cfg.MaxFindings)
	return r.through(ctx, r.begin, r.originals, r.spilled, r.schedules, r.confirm, r.rowsAlone, (&triggerRun{run: r}).all)
}

// Notifications is Run without triggers, and lists up to max findings of a class.
func (a *Auditor) Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error) {
	r := newRun(a, since, max)
	return r.through(ctx, r.begin, r.originals, r.spilled, r.schedules, r.confirm, r.rowsAlone)
}

// Again returns those of the notifications whose outcome is missing and to which
// nothing leads: what Run says of them now. One that nobody accepted, or that is
// no longer kept, is none of them.
func (a *Auditor) Again(ctx context.Context, ids []notify.ID) ([]api.Drift, error) {
	r := newRun(a, time.Time{}, len(ids))
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

// found returns a notification and the rows of its chunk; false: it is no longer
// kept.
func (a *Auditor) found(ctx context.Context, id notify.ID) (f engine.Found, rows []notify.Row, ok bool, err error) {
	f, err = a.cfg.History.Find(ctx, id)
	switch kind := notify.KindOf(err); {
	case err != nil && (kind == notify.KindNotFound || kind == notify.KindGone):
		return f, nil, false, nil
	case err != nil:
		return f, nil, false, err
	}
	rows, err = a.cfg.Status.Chunk(ctx, f.Envelope.Chunk)
	return f, rows, err == nil, err
}
