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

// Bounds are the offsets of one partition of the log.
type Bounds struct {
	Start, End int64 // the log holds offsets [Start, End)
	Committed  int64 // offset that the partition's consumer group has committed
}

// Log is what an audit needs of the log: the topics of first attempts and of retries of
// every lane.
type Log interface {
	// Bounds returns the present offsets of each partition.
	Bounds(ctx context.Context) (map[log.TopicPartition]Bounds, error)
	// Read calls fn with every record of [from, to) of each partition in from, in order.
	// It returns notify.KindGone if the log was trimmed past one of these records.
	Read(ctx context.Context, from, to map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error
	// Lost reports whether the log lost a record to damage.
	Lost(tp log.TopicPartition, offset int64) bool
}

// History is what an audit needs of history.Store.
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

// Schedules is what an audit needs of schedule.Service.
type Schedules interface {
	List(ctx context.Context, caller string, after notify.Base, max int) ([]schedule.View, error)
	Get(ctx context.Context, base notify.Base) (schedule.View, error)
	Timers(ctx context.Context, v schedule.View) (schedule.View, []engine.Timer, error)
}

// Triggers is what this package needs of trigger.Mender: it says which trigger a timer or a
// message belongs to, and repairs rows.
type Triggers interface {
	// Lead returns the trigger and the generation that the payload of a timer, or a message
	// of the delay queue, belongs to.
	Lead(body []byte) (base notify.Base, gen uint32, ok bool)
	ID(base notify.Base) string
	// Timer returns the timer that a waiting trigger must have. It returns false if the
	// trigger's id cannot be read.
	Timer(t *engine.Trigger) (engine.Timer, bool)
	// Mend writes the timers of the triggers in timers and the dead letters of those in
	// letters, and makes those in again due again. It changes a row only if the row is
	// still the one given. It returns the ids of the triggers that it repaired.
	Mend(ctx context.Context, timers, letters, again []engine.Trigger) (mended []string, err error)
}

// Producer appends records to the log. Append returns nil once every record is durable.
type Producer interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Spill is the buffer of records that were accepted while the log was away: intake.Spill.
type Spill interface {
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
}

// Config configures an Auditor. A field without a default is required. An Auditor that only
// checks triggers needs no more than Rows, Triggers, Timers and Shards.
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

	// Queue calls fn with the body of every message of the delay queue, also of messages
	// that a dispatcher holds. nil: the engine cannot list its messages.
	Queue func(ctx context.Context, fn func(body []byte) error) error
	// Held returns how many messages the delay queue holds. It is required if Queue is
	// nil: while there are any, one may belong to the trigger in question, so the evidence
	// of that trigger is unknown.
	Held func(ctx context.Context) (int, error)
	// Away returns an error while this process cannot audit. Default: it always can.
	Away func() error
	// Waiting is called after each look at all triggers, with how many wait by caller.
	// Default: not called.
	Waiting func(map[string]int)
	// Logger gets an error for each row that cannot be read.
	Logger *slog.Logger `default:"discard"`

	// First holds the topics of first attempts.
	First []string
	// Apart says that a schedule and its timers are not stored in one commit. A crash
	// between the two leaves a schedule without timers, whose request was never answered.
	// Such a schedule from before Born, the start of this process, is then no drift.
	Apart bool
	Born  time.Time
	// Settle is the wait between two looks at a suspect. It must be longer than a commit of
	// offsets takes.
	Settle time.Duration `default:"2s"`
	// Rounds is in how many rounds a suspect must stand still to be drift.
	Rounds int `default:"3"`
	// Batch is how many suspects are looked at together; each takes 200 bytes of memory.
	Batch int `default:"100_000"`
	// MaxFindings is how many findings of a class an audit lists.
	MaxFindings int `default:"100"`
	// MaxGroups is how many groups (caller, channel, hour) an audit keeps apart. Further
	// callers are added up as "(others)".
	MaxGroups int `default:"10_000"`

	// Grace is how far past its due time a trigger or the timer of a notification must be
	// to be a finding, or a claim past its lease. It must be longer than any deferral.
	Grace time.Duration `default:"15m"`
	// Ahead is how far ahead of now timers of triggers are looked for. It must be at least
	// twice the time between runs, and less than the cold tier's border.
	Ahead time.Duration `default:"2h"`
	// Open is how long ago a minute that still holds timers must be over to be a finding.
	Open time.Duration `default:"5m"`
	// MaxListed is how many findings a report lists. It counts all.
	MaxListed int `default:"10_000"`
	// MaxAge is how old a report may be when it is applied.
	MaxAge time.Duration `default:"15m"`
	// Page is how many rows or timers are read at a time.
	Page int `default:"500"`
	// Hit is called at named points, for tests. Default: not called.
	Hit func(string)
}

// Auditor audits, reports and repairs. It is safe for concurrent use. One audit runs at a
// time, and further ones wait. Two repairs may run at the same time: they append a record
// twice, which changes no outcome.
type Auditor struct {
	cfg           Config
	turn          chan struct{}                    // capacity 1; the audit that runs holds its slot
	notifications notificationSource               // the Auditor itself, or a test's
	triggers      triggerSource                    // triggerChecks, or a test's
	latest        atomic.Pointer[api.Conservation] // the result of the latest Audit
}

// notificationSource audits notifications.
type notificationSource interface {
	Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error)
	Recheck(ctx context.Context, ids []notify.ID) ([]api.Drift, error)
}

// New returns an Auditor. It starts no goroutine.
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
	a := &Auditor{cfg: cfg, turn: make(chan struct{}, 1)}
	a.notifications, a.triggers = a, triggerChecks{a}
	return a
}

// Run audits what was accepted since then (zero: all that is kept). It returns an error if a
// store or the log is away, or if the history is damaged.
func (a *Auditor) Run(ctx context.Context, since time.Time) (api.Conservation, error) {
	r := newRun(a, since, a.cfg.MaxFindings)
	return r.runSteps(ctx, r.readBounds, r.countOriginals, r.countSpilled, r.countSchedules, r.confirmSuspects, r.findRowsAlone, (&triggerRun{run: r}).countTriggers)
}

// Notifications is Run without triggers, and lists up to max findings of a class.
func (a *Auditor) Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error) {
	r := newRun(a, since, max)
	return r.runSteps(ctx, r.readBounds, r.countOriginals, r.countSpilled, r.countSchedules, r.confirmSuspects, r.findRowsAlone)
}

// Recheck audits these notifications alone. It returns the drift that Run would find of them
// now. A notification that was never accepted, or that is no longer kept, gives no drift.
func (a *Auditor) Recheck(ctx context.Context, ids []notify.ID) ([]api.Drift, error) {
	r := newRun(a, time.Time{}, len(ids))
	look := func(ctx context.Context) error {
		for _, id := range ids {
			if err := r.countOne(ctx, id); err != nil {
				return err
			}
		}
		return nil
	}
	rep, err := r.runSteps(ctx, r.readBounds, look, r.confirmSuspects)
	return rep.Findings, err
}

// findWithRows returns a notification and the rows of its chunk. ok is false if the
// notification is not known, or no longer kept.
func (a *Auditor) findWithRows(ctx context.Context, id notify.ID) (f engine.Found, rows []notify.Row, ok bool, err error) {
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
