package trigger

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Dead are the triggers that failed for good, for operators and their tools: the
// state rows themselves, so it knows of a requeue at once. Safe for concurrent
// use.
type Dead struct{ s *Service }

// Dead returns the failed triggers of all callers.
func (s *Service) Dead() Dead { return Dead{s} }

// DeadFilter selects; empty fields select all.
type DeadFilter struct {
	Caller string
	Reason string // of the row, e.g. http_503, timeout, late
	Class  string // of the last call; "none": there was none
	// Since and Until bound when it failed, in [Since, Until), ms since 1970; 0:
	// open.
	Since, Until int64
}

func (f *DeadFilter) selects(l *DeadLetter) bool {
	return (f.Reason == "" || f.Reason == l.Reason) && (f.Class == "" || f.Class == l.Class) &&
		l.Failed >= f.Since && (f.Until == 0 || l.Failed < f.Until)
}

// A List reads at most this many rows before it says how far it came.
const deadScan = 10 * MaxPage

// List returns matching ones, newest id first, behind cursor ("": from the
// newest), at most max (1 to MaxPage), and where to go on; "" at the end. Fewer
// than max, even none, do not mean that it is the end.
func (d Dead) List(ctx context.Context, f DeadFilter, cursor string, max int) (out []DeadLetter, next string, err error) {
	if max < 1 || max > MaxPage {
		return nil, "", notify.Invalid("out_of_range", "limit", "must be from 1 to 1000")
	}
	for range deadScan / MaxPage {
		rows, err := d.s.list(ctx, f.Caller, engine.TriggerFailed, cursor, MaxPage)
		if err != nil {
			return nil, "", err
		}
		for i := range rows {
			cursor = rows[i].ID
			if l := letter(&rows[i]); f.selects(&l) {
				if out = append(out, l); len(out) == max {
					return out, cursor, nil
				}
			}
		}
		if len(rows) < MaxPage {
			return out, "", nil
		}
	}
	return out, cursor, nil
}

// Get returns one; notify.KindNotFound for a trigger that is not FAILED.
func (d Dead) Get(ctx context.Context, id string) (DeadLetter, error) {
	row, err := d.s.Find(ctx, id)
	if err == nil && row.State != engine.TriggerFailed {
		err = notify.NotFound("dead_letter")
	}
	if err != nil {
		return DeadLetter{}, err
	}
	return letter(&row), nil
}

// Requeue makes a FAILED trigger due now, with all its attempts before it again,
// under the next generation and the same id. done is false, without an error,
// for one that is not FAILED (any more). Errors: notify.KindNotFound;
// notify.KindConflict with a wait while its dead letter is being written;
// notify.KindUnavailable when it is not known whether it was requeued: ask again.
func (d Dead) Requeue(ctx context.Context, id string) (done bool, err error) {
	return d.requeue(ctx, id, func(*engine.Trigger) bool { return true })
}

// RequeueIf is Requeue for a trigger that failed as l says, and not since once
// more: done is false if its generation or its claims are others.
func (d Dead) RequeueIf(ctx context.Context, l DeadLetter) (done bool, err error) {
	return d.requeue(ctx, l.ID, func(row *engine.Trigger) bool { return row.Gen == l.Gen && row.Epoch == l.Epoch })
}

func (d Dead) requeue(ctx context.Context, id string, as func(*engine.Trigger) bool) (done bool, err error) {
	var began time.Time
	var index []engine.Timer
	gen := uint32(0) // that this call tries to make, once it tried
	row, err := d.s.changeRow(ctx, func() (engine.Trigger, error) { return d.s.Find(ctx, id) }, func(row *engine.Trigger, now int64) (bool, error) {
		base, err := parseID(row.ID)
		switch {
		case err != nil:
			return false, notify.NotFound("trigger")
		case row.State != engine.TriggerFailed || !as(row):
			gen = 0
			return false, nil
		case row.NextAt != 0:
			return false, &notify.Error{Kind: notify.KindConflict, Code: "dead_letter_owed", Msg: "its dead letter is being written", RetryAfter: retryLater}
		}
		row.State, row.Gen, row.Reason = engine.TriggerPending, row.Gen+1, "requeued"
		row.FireAt, row.NextAt, row.Ended, row.LeaseUntil, row.Attempts = now, now, 0, 0, 0
		// Claims that were lost count anew.
		row.Log = slices.DeleteFunc(slices.Clone(row.Log), func(a engine.Attempt) bool { return a.Class == ClassLost })
		if began.IsZero() {
			began = time.Now()
		}
		gen, index = row.Gen, []engine.Timer{indexRow(base, row)}
		if err := d.s.cfg.Later.Put(ctx, index); err != nil { // before the state row, as always
			return false, unavailable("timer_store", err)
		}
		return true, nil
	})
	if err != nil || gen == 0 || row.Gen != gen {
		return false, err
	}
	d.s.cfg.Census.add(row.Caller, 1)
	return true, d.s.reindex(ctx, began, index)
}

// DecodeDeadLetter reads a record of triggers-dlq. It returns notify.ErrNewer for one of
// a newer release.
func DecodeDeadLetter(value []byte) (l DeadLetter, err error) {
	if err := json.Unmarshal(value, &l); err != nil {
		return l, notify.Invalid("bad_record", "value", "is no record of "+TopicDLQ)
	}
	if l.Version > 1 {
		return l, notify.Newer("a record of "+TopicDLQ, l.Version, 1)
	}
	if _, err := parseID(l.ID); err != nil || l.Version != 1 {
		return l, notify.Invalid("bad_record", "version", "is of another release")
	}
	return l, nil
}
