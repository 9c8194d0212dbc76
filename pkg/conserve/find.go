package conserve

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/timer"
)

// triggerSource finds errors of triggers, and repairs them.
type triggerSource interface {
	findDrift(ctx context.Context, rep *Report) error
	// mendFindings checks each finding again, and repairs it only if the row of the trigger has not
	// changed since the finding was made. It returns true for each finding that it repaired.
	mendFindings(ctx context.Context, fs []Finding) ([]bool, error)
}

// triggerChecks is the triggerSource that reads the rows of triggers.
type triggerChecks struct{ *Auditor }

// findDrift classifies the row of every open trigger (engine.TriggerOpen), and adds findings to
// rep.
func (a triggerChecks) findDrift(ctx context.Context, rep *Report) error {
	now, waiting := time.Now(), map[string]int{}
	err := eachTriggerPage(ctx, a.Auditor, engine.TriggerOpen, func(rows []engine.Trigger) (bool, error) {
		rep.Rows += len(rows)
		for i := range rows {
			t := &rows[i]
			class, err := a.classify(ctx, t, now)
			if err != nil {
				return false, err
			}
			if class != "" {
				rep.addFinding(Finding{
					Kind: KindTrigger, Class: class, ID: t.ID, Caller: t.Caller, State: triggerStates[t.State], Version: t.Version,
					Gen: t.Gen, NextAt: t.NextAt, LeaseUntil: t.LeaseUntil,
				}, 1, a.cfg.MaxListed)
			}
			if t.State < engine.TriggerFired {
				waiting[t.Caller]++
			}
		}
		return true, nil
	})
	if err == nil {
		a.cfg.Waiting(waiting)
	}
	return err
}

// dueMargin is longer than the time for which a trigger may be only in the delay queue, without a
// timer. A message may wait in the delay queue for up to engine.MaxQueueDelay.
const dueMargin = engine.MaxQueueDelay + time.Minute

// classify returns the class of the drift that a trigger's row shows, or "" if the row is right.
func (a triggerChecks) classify(ctx context.Context, t *engine.Trigger, now time.Time) (string, error) {
	tm, ok := a.cfg.Triggers.Timer(t)
	if !ok {
		a.cfg.Logger.Error("the id of a trigger cannot be read", slog.String("id", t.ID))
		return Unreadable, nil
	}
	past := now.Add(-a.cfg.Grace).UnixMilli()
	switch {
	case t.State == engine.TriggerPending && t.NextAt < past:
		return Late, nil
	case t.State == engine.TriggerInFlight && t.LeaseUntil < past:
		return ClaimExpired, nil
	case t.State == engine.TriggerFailed && t.NextAt != 0 && t.Ended < past:
		return LetterOwed, nil
	case t.State != engine.TriggerPending, t.NextAt <= now.Add(dueMargin).UnixMilli(), t.NextAt > now.Add(a.cfg.Ahead).UnixMilli():
		// A trigger that is due at about this time may be only in the queue, without a timer.
		return "", nil
	}
	if has, err := hasTimer(ctx, a.Auditor, &tm); err != nil || has {
		return "", err
	}
	return Missing, nil
}

func (a triggerChecks) mendFindings(ctx context.Context, fs []Finding) ([]bool, error) {
	place := map[string]int{} // index in fs, by the trigger's id
	var ids []string
	for i := range fs {
		if repairs[KindTrigger][fs[i].Class] {
			place[fs[i].ID], ids = i, append(ids, fs[i].ID)
		}
	}
	done := make([]bool, len(fs))
	if len(ids) == 0 {
		return done, nil
	}
	rows, err := a.cfg.Rows.Get(ctx, ids)
	if err != nil {
		return nil, retryable("trigger_store", err)
	}
	now := time.Now()
	var timers, letters, again []engine.Trigger
	for _, t := range rows {
		f := &fs[place[t.ID]]
		if t.ID == "" || t.Version != f.Version {
			continue
		}
		class, err := a.classify(ctx, &t, now)
		if err != nil {
			return nil, retryable("timer_store", err)
		}
		if class != f.Class {
			continue
		}
		switch class {
		case Missing:
			timers = append(timers, t)
		case LetterOwed:
			letters = append(letters, t)
		default:
			again = append(again, t)
		}
	}
	mended, err := a.cfg.Triggers.Mend(ctx, timers, letters, again)
	for _, id := range mended {
		done[place[id]] = true
	}
	return done, err
}

// findTimers reads the timers that are overdue, or due within Config.Ahead. It adds to rep a
// finding for each shard in which timers of a past minute are still stored because no scheduler has
// released them, and a finding for each timer whose trigger is missing or whose payload cannot be
// decoded. If the parameter notifications is true, it also adds a finding for each overdue timer of
// a notification.
func findTimers(ctx context.Context, a *Auditor, rep *Report, notifications bool) error {
	now := time.Now()
	shards, err := a.cfg.Shards()
	if err != nil {
		return err
	}
	for shard := range uint16(shards.Most()) {
		state, err := a.cfg.Timers.Shard(ctx, shard)
		if err != nil {
			return err
		}
		minutes, err := a.cfg.Timers.Buckets(ctx, shard, 0, now.Add(a.cfg.Ahead).UnixMilli()/60_000)
		if err != nil {
			return err
		}
		open := false
		for _, m := range minutes {
			if end := (m + 1) * 60_000; !open && end < now.Add(-a.cfg.Open).UnixMilli() {
				open = true // the oldest minute is enough: later minutes wait for it
				rep.addFinding(Finding{Kind: KindTrigger, Class: OpenBucket, Shard: shard, Minute: m, Owner: state.Owner, Closed: state.Closed}, 1, a.cfg.MaxListed)
			}
			if err := findInMinute(ctx, a, engine.TimerPartition{Bucket: m, Shard: shard}, now, rep, notifications); err != nil {
				return err
			}
		}
	}
	return nil
}

// findInMinute does the work of findTimers for one minute of one shard.
func findInMinute(ctx context.Context, a *Auditor, p engine.TimerPartition, now time.Time, rep *Report, notifications bool) error {
	past := now.Add(-a.cfg.Grace)
	var cursor engine.TimerCursor
	for {
		ts, err := a.cfg.Timers.Scan(ctx, p, cursor, (p.Bucket+1)*60_000-1, a.cfg.Page)
		if err != nil {
			return err
		}
		var ids []string
		var orphans []Finding // orphans[i] is the finding if the trigger ids[i] has no row
		for i := range ts {
			t := &ts[i]
			switch f := (Finding{Kind: KindTrigger, Class: Orphan, Shard: p.Shard, Minute: p.Bucket, NextAt: t.FireAt}); {
			case t.Kind == timer.KindEnvelope && notifications && t.FireAt <= past.UnixMilli():
				if err := findLateTimer(ctx, a, t, f, rep); err != nil {
					return err
				}
			case t.Kind == engine.TimerOfTrigger:
				rep.Index++
				base, _, ok := a.cfg.Triggers.TriggerOf(t.Payload)
				if !ok {
					f.Class = Unreadable
					rep.addFinding(f, 1, a.cfg.MaxListed)
				} else if base.Time().Before(past) { // the timer of a new trigger is written a moment before its row
					f.ID = a.cfg.Triggers.ID(base)
					ids, orphans = append(ids, f.ID), append(orphans, f)
				}
			}
		}
		rows, err := a.cfg.Rows.Get(ctx, ids)
		if err != nil {
			return err
		}
		for i := range rows {
			if rows[i].ID == "" {
				rep.addFinding(orphans[i], 1, a.cfg.MaxListed)
			}
		}
		if len(ts) < a.cfg.Page {
			return nil
		}
		cursor = engine.TimerCursor{FireAt: ts[len(ts)-1].FireAt, ID: ts[len(ts)-1].ID}
	}
}

// findLateTimer adds a finding for the overdue timer t of a notification. It adds none if the
// schedule was cancelled or has another timer now, because t is then removed together with its
// minute.
func findLateTimer(ctx context.Context, a *Auditor, t *engine.Timer, f Finding, rep *Report) error {
	var e notify.Envelope
	if notify.DecodeEnvelope(t.Payload, &e) != nil {
		return nil
	}
	f.State = notify.Deferred.String()
	if !e.Derived() {
		f.State = notify.Scheduled.String()
	}
	if !t.Head.IsZero() {
		v, err := a.cfg.Schedules.Get(ctx, t.Head)
		if err != nil && notify.KindOf(err) != notify.KindNotFound {
			return err
		}
		if err != nil || v.State != engine.SchedulePending || v.Gen != t.Gen {
			return nil
		}
	}
	f.Kind, f.Class, f.ID, f.Caller = KindNotification, Late, e.ID(firstIndex(&e)).String(), e.Caller
	f.Detail = "the timer of the notification is due, but no scheduler has released it"
	rep.addFinding(f, int(max(e.Count, 1)), a.cfg.MaxListed)
	return nil
}

// firstIndex returns the index of the first receiver of an envelope.
func firstIndex(e *notify.Envelope) uint32 {
	rd, rec := notify.ReadReceivers(e.Receivers), notify.Receiver{}
	rd.Next(&rec)
	return rec.Index
}

// retryable turns an error of a store into notify.KindUnavailable, so that a job waits and tries
// again. An error that already has another kind is not changed.
func retryable(what string, err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind != notify.KindInternal {
		return err
	}
	return notify.Unavailable(what, 2*time.Second, err)
}
