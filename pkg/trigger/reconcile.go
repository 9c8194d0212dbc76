package trigger

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/fault"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// ReconcilerConfig of a Reconciler. Triggers, Timers, Shards, Later and Dead are
// required; the zero value of the others means their default.
type ReconcilerConfig struct {
	Triggers engine.Triggers
	Timers   engine.Timers
	Shards   int // of the timer engine
	Later    Later
	Dead     DeadLog
	Census   *Census // told what the scan counted; nil: nobody is

	// Grace is how far past due a waiting trigger, or past its lease a claim, must be.
	Grace time.Duration `default:"15m" min:"0"`
	// Ahead is how far ahead index rows are looked for; at least twice the time between runs,
	// less than the cold tier's border.
	Ahead time.Duration `default:"2h" min:"0"`
	// Open is how far in the past a minute with timers must lie to be a finding: nobody
	// releases it.
	Open time.Duration `default:"5m" min:"0"`
	// MaxFindings is how many findings a report lists; all are counted.
	MaxFindings int `default:"10000" min:"1"`
	// MaxAge is how old a report may be when it is applied.
	MaxAge time.Duration `default:"15m" min:"0"`
	// Page is how many rows are read at a time.
	Page int `default:"500" min:"1"`
	// Events are told of records for triggers-dlq and of swaps.
	Events Events
	// Logger is told of rows that cannot be read.
	Logger *slog.Logger `default:"discard"`

	hit func(string)
}

// Reconciler finds triggers that nothing leads to any more, and repairs what a
// report of it says. Safe for concurrent use.
type Reconciler struct {
	cfg ReconcilerConfig

	mu      sync.Mutex
	applied int64 // when the latest applied report was made, ms since 1970
}

// NewReconciler returns a Reconciler; it starts nothing.
func NewReconciler(cfg ReconcilerConfig) (*Reconciler, error) {
	cfg = setting.Fill(cfg)
	if cfg.hit == nil {
		cfg.hit = fault.Hit
	}
	if cfg.Triggers == nil || cfg.Timers == nil || cfg.Later == nil || cfg.Dead == nil || cfg.Shards < 1 {
		return nil, errors.New("trigger: Triggers, Timers, Shards, Later and Dead are required")
	}
	if err := setting.Err("reconciler", &cfg); err != nil {
		return nil, err
	}
	return &Reconciler{cfg: cfg}, nil
}

// Run reports and applies every interval until ctx ends, and tells told of both;
// a failed run is tried again with the next.
func (r *Reconciler) Run(ctx context.Context, interval time.Duration, told func(Report, Applied, error)) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		rep, err := r.Report(ctx)
		var done Applied
		if err == nil {
			done, err = r.Apply(ctx, rep)
		}
		if told != nil && ctx.Err() == nil {
			told(rep, done, err)
		}
	}
}

// Report reads every row that something is owed to (engine.TriggerOpen), and the
// index rows of what is due soon; it changes nothing. An error means that a store
// was away.
func (r *Reconciler) Report(ctx context.Context) (Report, error) {
	now := time.Now()
	rep := newReport(now)
	add := func(f Finding) {
		rep.Counts[f.Class]++
		if len(rep.Findings) < r.cfg.MaxFindings {
			rep.Findings = append(rep.Findings, f)
		} else {
			rep.Truncated = true
		}
	}
	waiting := map[string]int{}
	err := r.open(ctx, func(rows []engine.Trigger) error {
		rep.Rows += len(rows)
		for i := range rows {
			class, err := r.class(ctx, &rows[i], now)
			if err != nil {
				return err
			}
			if class != "" {
				add(findingOf(class, &rows[i]))
			}
			if !terminal(rows[i].State) {
				waiting[rows[i].Caller]++
			}
		}
		return nil
	})
	if err != nil {
		return Report{}, err
	}
	for shard := range r.cfg.Shards {
		if err := r.shard(ctx, uint16(shard), now, &rep, add); err != nil {
			return Report{}, err
		}
	}
	if r.cfg.Census != nil {
		r.cfg.Census.set(waiting)
	}
	rep.Took = time.Since(now)
	rep.Digest = rep.digest()
	return rep, nil
}

// open pages through all open rows. The cursor is the last id of a page, whatever
// is in it: a page of rows that need nothing hides none behind it.
func (r *Reconciler) open(ctx context.Context, fn func([]engine.Trigger) error) error {
	var after engine.TriggerCursor
	for {
		rows, err := r.cfg.Triggers.List(ctx, "", engine.TriggerOpen, after, r.cfg.Page)
		if err != nil {
			return err
		}
		if err := fn(rows); err != nil {
			return err
		}
		if len(rows) < r.cfg.Page {
			return nil
		}
		after.ID = rows[len(rows)-1].ID
	}
}

// class says what is wrong with a row; "": nothing.
func (r *Reconciler) class(ctx context.Context, t *engine.Trigger, now time.Time) (string, error) {
	base, err := parseID(t.ID)
	if err != nil {
		r.cfg.Logger.Error("a trigger whose id cannot be read", slog.String("id", t.ID))
		return FindUnreadable, nil
	}
	past := now.Add(-r.cfg.Grace).UnixMilli()
	switch t.State {
	case engine.TriggerPending:
		switch {
		case t.NextAt < past:
			return FindOverdue, nil
		case t.NextAt <= now.Add(indexMargin).UnixMilli() || t.NextAt > now.Add(r.cfg.Ahead).UnixMilli():
			// What is due about now may be in the queue and nowhere else.
			return "", nil
		}
		has, err := r.indexed(ctx, base, t)
		if err != nil || has {
			return "", err
		}
		return FindNoIndex, nil
	case engine.TriggerInFlight:
		if t.LeaseUntil < past {
			return FindClaimExpired, nil
		}
	case engine.TriggerFailed:
		if t.NextAt != 0 && t.Ended < past {
			return FindLetterOwed, nil
		}
	}
	return "", nil
}

// indexMargin is more than any wait that stays in the queue without an index
// row (DispatcherConfig.Hold may be up to engine.MaxQueueDelay).
const indexMargin = engine.MaxQueueDelay + time.Minute

// indexed reports whether the index row of a waiting trigger is there: one
// point read.
func (r *Reconciler) indexed(ctx context.Context, base notify.Base, t *engine.Trigger) (bool, error) {
	id := timerID(base, t.Gen)
	p := engine.TimerPartition{Minute: t.NextAt / 60_000, Shard: engine.ShardOf(id, r.cfg.Shards)}
	rows, err := r.cfg.Timers.Scan(ctx, p, engine.TimerCursor{FireAt: t.NextAt, ID: before(id)}, t.NextAt, 1)
	return err == nil && len(rows) == 1 && bytes.Equal(rows[0].ID, id), err
}

// before returns the last timer id there can be before id, which is not all
// zeros.
func before(id []byte) []byte {
	const longest = 64
	out := bytes.Clone(id)
	for i := len(out) - 1; i >= 0; i-- {
		out[i]--
		if out[i] != 0xff {
			break
		}
	}
	return append(out, bytes.Repeat([]byte{0xff}, longest-len(out))...)
}

// shard looks through the timers of a shard up to Ahead: minutes that nobody
// released, and index rows without a state row.
func (r *Reconciler) shard(ctx context.Context, shard uint16, now time.Time, rep *Report, add func(Finding)) error {
	state, err := r.cfg.Timers.Shard(ctx, shard)
	if err != nil {
		return err
	}
	minutes, err := r.cfg.Timers.Minutes(ctx, shard, 0, now.Add(r.cfg.Ahead).UnixMilli()/60_000)
	if err != nil {
		return err
	}
	open := false
	for _, m := range minutes {
		if end := (m + 1) * 60_000; !open && end < now.Add(-r.cfg.Open).UnixMilli() {
			open = true // the oldest says it; the others are behind it
			add(Finding{Class: FindOpenBucket, Shard: shard, Minute: m, Owner: state.Owner, Closed: state.Closed})
		}
		if err := r.partition(ctx, engine.TimerPartition{Minute: m, Shard: shard}, now, rep, add); err != nil {
			return err
		}
	}
	return nil
}

// partition looks for index rows without a state row. A create that is under
// way has them for a moment.
func (r *Reconciler) partition(ctx context.Context, p engine.TimerPartition, now time.Time, rep *Report, add func(Finding)) error {
	var cursor engine.TimerCursor
	for {
		ts, err := r.cfg.Timers.Scan(ctx, p, cursor, (p.Minute+1)*60_000-1, r.cfg.Page)
		if err != nil {
			return err
		}
		var ids []string
		var of []engine.Timer
		for _, t := range ts {
			if t.Kind != TimerKind {
				continue
			}
			rep.Index++
			m, ok := decodeMessage(t.Payload)
			switch {
			case !ok:
				add(Finding{Class: FindUnreadable, Shard: p.Shard, Minute: p.Minute, NextAt: t.FireAt})
			case now.Sub(m.base.Time()) > r.cfg.Grace:
				ids, of = append(ids, idOf(m.base)), append(of, t)
			}
		}
		rows, err := r.cfg.Triggers.Get(ctx, ids)
		if err != nil {
			return err
		}
		for i := range rows {
			if rows[i].ID == "" {
				add(Finding{Class: FindOrphanIndex, ID: ids[i], Shard: p.Shard, Minute: p.Minute, NextAt: of[i].FireAt})
			}
		}
		if len(ts) < r.cfg.Page {
			return nil
		}
		last := ts[len(ts)-1]
		cursor = engine.TimerCursor{FireAt: last.FireAt, ID: last.ID}
	}
}
