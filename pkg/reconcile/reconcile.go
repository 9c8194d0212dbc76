package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/ops"
	"github.com/notifyd/notifyd/pkg/schedule"
	"github.com/notifyd/notifyd/pkg/stream"
	"github.com/notifyd/notifyd/pkg/timer"
	"github.com/notifyd/notifyd/pkg/trigger"
)

// Triggers is what trigger.Reconciler has for this.
type Triggers interface {
	Report(ctx context.Context) (trigger.Report, error)
	Repair(ctx context.Context, fs []trigger.Finding) ([]bool, error)
}

// Audit is what audit.Auditor has for this.
type Audit interface {
	Notifications(ctx context.Context, since time.Time, max int) (api.Conservation, error)
	Again(ctx context.Context, ids []notify.ID) ([]api.Drift, error)
}

// History finds the original of a notification.
type History interface {
	Find(ctx context.Context, id notify.ID) (engine.Found, error)
}

// Schedules tells whether a timer still counts: notify.KindNotFound where nobody
// knows its schedule.
type Schedules interface {
	Get(ctx context.Context, base notify.Base) (schedule.View, error)
}

// Log takes records; nil means that every one is durable.
type Log interface {
	Append(ctx context.Context, recs []stream.Record) error
}

// Config of a Reconciler. What has no default is required.
type Config struct {
	Triggers  Triggers
	Audit     Audit
	History   History
	Status    engine.Status
	Timers    engine.Timers
	Schedules Schedules
	Log       Log
	Shards    int // of the timer engine

	// Grace is how far past due the timer of a notification must be. Default 15 min.
	Grace time.Duration
	// MaxFindings is how many findings a report lists; all are counted.
	// Default 10,000.
	MaxFindings int
	// MaxAge is how old a report may be when it is applied. Default 15 min.
	MaxAge time.Duration
	// Hit is told of named points, for tests. Default: nobody is.
	Hit func(string)
}

// Reconciler reports and repairs. Safe for concurrent use; two repairs at a time
// would append a record twice, which changes no outcome.
type Reconciler struct{ cfg Config }

// New returns a Reconciler; it starts nothing.
func New(cfg Config) (*Reconciler, error) {
	def := func(d *time.Duration, is time.Duration) {
		if *d == 0 {
			*d = is
		}
	}
	def(&cfg.Grace, 15*time.Minute)
	def(&cfg.MaxAge, 15*time.Minute)
	if cfg.MaxFindings == 0 {
		cfg.MaxFindings = 10_000
	}
	if cfg.Hit == nil {
		cfg.Hit = func(string) {}
	}
	if cfg.Triggers == nil || cfg.Audit == nil || cfg.History == nil || cfg.Status == nil || cfg.Timers == nil ||
		cfg.Schedules == nil || cfg.Log == nil || cfg.Shards < 1 || cfg.Grace < 0 || cfg.MaxAge < 0 || cfg.MaxFindings < 1 {
		return nil, errors.New("reconcile: Triggers, Audit, History, Status, Timers, Schedules, Log and Shards are required, and no number may be below 0")
	}
	return &Reconciler{cfg: cfg}, nil
}

// Report looks at all triggers that are not over, and at the notifications that
// were accepted since then (zero: all that are kept); it changes nothing. It takes
// as long as an audit does. An error means that a store or the log was away.
func (r *Reconciler) Report(ctx context.Context, since time.Time) (ops.Findings, error) {
	began := time.Now()
	ts, err := r.cfg.Triggers.Report(ctx)
	if err != nil {
		return ops.Findings{}, err
	}
	ledger, err := r.cfg.Audit.Notifications(ctx, since, r.cfg.MaxFindings)
	if err != nil {
		return ops.Findings{}, err
	}
	rep := Report{
		ID: "rec_" + notify.NewBase(began).String(), Made: time.Now().UnixMilli(), Rows: ts.Rows, Index: ts.Index,
		Notifications: ledger.Accepted, Counts: map[string]int{}, Findings: []Finding{},
		Truncated: ts.Truncated || ledger.Truncated,
	}
	if !since.IsZero() {
		rep.Since = since.UnixMilli()
	}
	for _, f := range ts.Findings {
		rep.add(Finding{Kind: KindTrigger, Finding: f}, 0, r.cfg.MaxFindings)
	}
	for class, n := range ts.Counts {
		rep.Counts[class] += n
	}
	for i := range ledger.Findings {
		rep.add(findingOf(&ledger.Findings[i]), 0, r.cfg.MaxFindings)
	}
	for class, n := range ledger.Classes {
		rep.Counts[classOf[class]] += int(n)
	}
	if err := r.late(ctx, &rep); err != nil {
		return ops.Findings{}, err
	}
	rep.Took = time.Since(began)
	rep.Digest = rep.digest()
	b, err := json.Marshal(&rep)
	return findings(&rep, b), err
}

func findingOf(d *api.Drift) Finding {
	return Finding{
		Kind: KindNotification, Finding: trigger.Finding{Class: classOf[d.Class], ID: d.ID, Caller: d.Caller, State: d.State},
		Updated: d.Updated, Detail: d.Detail,
	}
}

// findings is what there is to know of a report.
func findings(rep *Report, b []byte) ops.Findings {
	out := ops.Findings{Report: b, Digest: rep.Digest, Counts: rep.Counts, Listed: len(rep.Findings)}
	for i := range rep.Findings {
		if rep.Findings[i].mends() {
			out.Mend++
		}
	}
	return out
}

// Check says whether a report may be applied: notify.KindInvalid for one that was
// altered, notify.KindConflict for one that is older than MaxAge.
func (r *Reconciler) Check(report json.RawMessage) (ops.Findings, error) {
	rep, err := read(report)
	if err != nil {
		return ops.Findings{}, err
	}
	if time.Since(time.UnixMilli(rep.Made)) > r.cfg.MaxAge {
		return ops.Findings{}, &notify.Error{Kind: notify.KindConflict, Code: "stale_report", Field: "report", Msg: "the report is too old: make another"}
	}
	return findings(&rep, nil), nil
}

const page = 500 // timers read at a time

// late finds the timers of notifications that nobody has released: due longer ago
// than Grace, and of a generation that still counts.
func (r *Reconciler) late(ctx context.Context, rep *Report) error {
	past := time.Now().Add(-r.cfg.Grace).UnixMilli()
	for shard := range r.cfg.Shards {
		minutes, err := r.cfg.Timers.Minutes(ctx, uint16(shard), 0, past/60_000)
		if err != nil {
			return err
		}
		for _, m := range minutes {
			if err := r.lateIn(ctx, engine.TimerPartition{Minute: m, Shard: uint16(shard)}, past, rep); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Reconciler) lateIn(ctx context.Context, p engine.TimerPartition, until int64, rep *Report) error {
	var cursor engine.TimerCursor
	for {
		ts, err := r.cfg.Timers.Scan(ctx, p, cursor, until, page)
		if err != nil {
			return err
		}
		for i := range ts {
			t := &ts[i]
			var e notify.Envelope
			if t.Kind != timer.KindEnvelope || notify.DecodeEnvelope(t.Payload, &e) != nil {
				continue
			}
			counts, err := r.counts(ctx, t)
			if err != nil {
				return err
			}
			if !counts {
				continue
			}
			rep.add(Finding{
				Kind: KindNotification, Detail: "its timer is due, and nobody has released it",
				Finding: trigger.Finding{Class: Late, ID: e.ID(firstOf(&e)).String(), Caller: e.Caller, State: waits(&e), NextAt: t.FireAt, Shard: p.Shard, Minute: p.Minute},
			}, int(max(e.Count, 1)), r.cfg.MaxFindings)
		}
		if len(ts) < page {
			return nil
		}
		cursor = engine.TimerCursor{FireAt: ts[len(ts)-1].FireAt, ID: ts[len(ts)-1].ID}
	}
}

// counts reports whether a timer's schedule was neither cancelled nor moved away
// from it: else it goes with its minute.
func (r *Reconciler) counts(ctx context.Context, t *engine.Timer) (bool, error) {
	if t.Head.IsZero() {
		return true, nil
	}
	v, err := r.cfg.Schedules.Get(ctx, t.Head)
	if err != nil && notify.KindOf(err) != notify.KindNotFound {
		return false, err
	}
	return err == nil && v.State == engine.SchedulePending && v.Gen == t.Gen, nil
}

func firstOf(e *notify.Envelope) uint32 {
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	rd.Next(&rec)
	return rec.Index
}

func waits(e *notify.Envelope) string {
	if e.Derived() {
		return notify.Deferred.String()
	}
	return notify.Scheduled.String()
}
