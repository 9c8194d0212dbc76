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
	Start, End int64 // the log contains offsets [Start, End)
	Committed  int64 // offset that the partition's consumer group has committed
}

// Log is the part of the log that an audit uses: the topics of first attempts and of retries of
// every lane.
type Log interface {
	// Bounds returns the current offsets of each partition.
	Bounds(ctx context.Context) (map[log.TopicPartition]Bounds, error)
	// Read calls fn with every record whose offset is in [starts, ends) of its partition, in order.
	// It reads only the partitions in starts. It returns notify.KindGone if one of these records was
	// trimmed from the log.
	Read(ctx context.Context, starts, ends map[log.TopicPartition]int64, fn func(log.TopicPartition, *log.Record) error) error
	// Lost reports whether damage of the log destroyed this record.
	Lost(tp log.TopicPartition, offset int64) bool
}

// History contains the methods of history.Store that an audit uses.
type History interface {
	Sync(ctx context.Context, ends map[history.Part]int64) error
	Chunks(ctx context.Context, from map[history.Part]int64, since int64, fn func(*engine.Found) error) (map[history.Part]int64, error)
	Unsealed(p history.Part, from, below int64, fn func(*engine.Found) error) error
	Counted(f *engine.Found) (int64, error)
	Find(ctx context.Context, id notify.ID) (engine.Found, error)
	ChunksOf(base notify.Base) ([]history.Held, error)
	Has(base notify.Base) (bool, error)
	Kept(now time.Time) time.Time
}

// Schedules contains the methods of schedule.Service that an audit uses.
type Schedules interface {
	List(ctx context.Context, caller string, after notify.Base, max int) ([]schedule.View, error)
	Get(ctx context.Context, base notify.Base) (schedule.View, error)
	Timers(ctx context.Context, v schedule.View) (schedule.View, []engine.Timer, error)
}

// Triggers contains the methods of trigger.Mender that this package uses. They decode the payloads
// of timers and messages, and repair rows of triggers.
type Triggers interface {
	// TriggerOf returns the trigger and the generation of the payload of a timer, or of a message of the
	// delay queue.
	TriggerOf(body []byte) (base notify.Base, gen uint32, ok bool)
	ID(base notify.Base) string
	// Timer returns the timer that a waiting trigger must have. It returns false if the trigger's
	// id cannot be decoded.
	Timer(t *engine.Trigger) (engine.Timer, bool)
	// Mend gets three lists of triggers. It writes the timer of each trigger in the list timers and
	// the dead letter of each trigger in the list letters, and makes each trigger in the list redo
	// due now. Mend changes a trigger's row only if the row is still the same as in the list. It
	// returns the ids of the triggers that it repaired.
	Mend(ctx context.Context, timers, letters, redo []engine.Trigger) (mended []string, err error)
}

// Producer appends records to the log. Append returns nil once every record is durable.
type Producer interface {
	Append(ctx context.Context, recs []log.Record) error
}

// Spill is the buffer of records that were accepted while the log was unreachable: intake.Spill.
type Spill interface {
	Peek(ctx context.Context, max int) ([]engine.Spilled, error)
}

// Config configures an Auditor. A field without a default is required, unless its comment says what
// nil means. For an Auditor that only checks triggers, Rows, Triggers, Timers and Shards are
// enough.
type Config struct {
	Log       Log
	History   History
	Status    engine.Status
	Timers    engine.Timers
	Cold      engine.ColdTimers
	Spill     Spill
	Schedules Schedules
	Rows      engine.Triggers // rows of triggers
	Triggers  Triggers
	Producer  Producer
	Shards    engine.Shards // shards of the timer engine

	// Queue calls fn with the body of every message of the delay queue, including messages that a
	// dispatcher has received. nil: the engine cannot list its messages.
	Queue func(ctx context.Context, fn func(body []byte) error) error
	// Held returns how many messages are in the delay queue. It is required if Queue is nil. If
	// Held returns more than 0, one of the messages may belong to the checked trigger, so the audit
	// does not know whether the trigger has a message.
	Held func(ctx context.Context) (int, error)
	// Away returns an error while this process cannot audit. nil: this process can always audit.
	Away func() error
	// Waiting is called after each check of all triggers. Its parameter contains, by caller, the
	// number of waiting triggers. nil: not called.
	Waiting func(map[string]int)
	// Logger gets an error for each row that cannot be decoded.
	Logger *slog.Logger `default:"discard"`

	// First contains the topics of first attempts.
	First []string
	// Apart is true if a schedule and its timers are stored in two writes. After a crash between
	// the two writes, a schedule has no timers, and the caller got no answer. The audit does not
	// count such a schedule as drift if it was made before Born, the start of this process.
	Apart bool
	Born  time.Time
	// Settle is the time between two checks of a suspect. It must be longer than a worker needs to
	// commit its offsets.
	Settle time.Duration `default:"2s"`
	// Rounds is how many rounds in a row a suspect must stay unchanged before it counts as drift.
	Rounds int `default:"3"`
	// Batch is how many suspects are checked together. Each suspect takes 200 bytes of memory.
	Batch int `default:"100_000"`
	// MaxFindings is how many findings of a class an audit lists.
	MaxFindings int `default:"100"`
	// MaxGroups is how many groups (caller, channel, hour) an audit counts separately. Callers of
	// further groups are added up as "(others)".
	MaxGroups int `default:"10_000"`

	// Grace is how late something may be before it becomes a finding: a trigger or a timer of a
	// notification after its due time, and a claim after the end of its lease. Grace must be
	// longer than any deferral.
	Grace time.Duration `default:"15m"`
	// Ahead is how far into the future the timers of triggers are checked. It must be at least
	// twice the time between two checks, and so short that none of these timers is still in the
	// cold tier.
	Ahead time.Duration `default:"2h"`
	// Open is how long after the end of a minute its timers may still be stored. After that, the
	// minute becomes a finding.
	Open time.Duration `default:"5m"`
	// MaxListed is how many findings a report lists. The report counts all findings.
	MaxListed int `default:"10_000"`
	// MaxAge is the greatest age of a report when it is applied.
	MaxAge time.Duration `default:"15m"`
	// Page is how many rows or timers are read at a time.
	Page int `default:"500"`
	// Hit is called at named points, for tests. nil: not called.
	Hit func(string)
}

// Auditor audits, reports and repairs. It is safe for concurrent use. Only one audit runs at a
// time; other audits wait. Two repairs may run at the same time. They may append the same record
// twice, which changes no outcome.
type Auditor struct {
	cfg           Config
	turn          chan struct{}                    // capacity 1; the running audit has put a value into it
	notifications notificationSource               // the Auditor itself, or a replacement in tests
	triggers      triggerSource                    // triggerChecks, or a replacement in tests
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

// Run audits everything that was accepted at the time since or later. If since is zero, it audits
// everything that is stored. It returns an error if a store or the log is unreachable, or if the
// history is damaged.
func (a *Auditor) Run(ctx context.Context, since time.Time) (api.Conservation, error) {
	r := newRun(a, since, a.cfg.MaxFindings)
	return r.runSteps(ctx, r.readBounds, r.countOriginals, r.countSpilled, r.countSchedules, r.confirmSuspects, r.findRowsAlone, (&triggerRun{run: r}).countTriggers)
}

// Notifications does the same as Run, but it does not audit triggers, and it lists up to max
// findings of each class.
func (a *Auditor) Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error) {
	r := newRun(a, since, max)
	return r.runSteps(ctx, r.readBounds, r.countOriginals, r.countSpilled, r.countSchedules, r.confirmSuspects, r.findRowsAlone)
}

// Recheck audits only these notifications. It returns the drift that Run would now find for them.
// For a notification that was never accepted, or that is no longer stored, it returns no drift.
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

// findWithRows returns a notification and the rows of its chunk. The result ok is false if the
// notification is unknown or no longer stored.
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
