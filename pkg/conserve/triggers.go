package conserve

import (
	"bytes"
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Where the evidence of a trigger that is pending lies.
const (
	triggerTimer = "trigger_timer" // a timer leads to it
	triggerQueue = "trigger_queue" // a message does
	triggerClaim = "trigger_claim" // a dispatcher has claimed it
	// triggerUnknown: nothing is known to lead to it, while the queue holds messages
	// that it does not show.
	triggerUnknown = "trigger_unknown"
	triggerEnded   = "ended" // none is needed
)

const (
	// idSlack is how much older than its row's time an id may be: clocks differ, and
	// an id of the server's own is as old as what it tells of.
	idSlack = time.Hour
	// releasedFor is how long after its time a timer is believed to be about to be
	// released. A timer that was released stays until its minute is closed.
	releasedFor = 10 * time.Second
	// triggerBatch is how many triggers without evidence are looked at together.
	triggerBatch = 20_000
)

// rows calls fn with every page of the triggers in a state, the newest id first,
// until fn returns false. The cursor is the last id of a page, whatever is in it: a
// page of rows that need nothing hides none behind it.
func rowsOf(ctx context.Context, a *Auditor, state engine.TriggerState, fn func([]engine.Trigger) (more bool, err error)) error {
	var after engine.TriggerCursor
	for {
		rows, err := a.cfg.Rows.List(ctx, "", state, after, a.cfg.Page)
		if err != nil {
			return err
		}
		n := len(rows)
		if n > 0 {
			after.ID = rows[n-1].ID
		}
		if more, err := fn(rows); err != nil || !more || n < a.cfg.Page {
			return err
		}
	}
}

// timed reports whether a timer is stored, near or cold.
func timed(ctx context.Context, a *Auditor, want *engine.Timer) (has bool, err error) {
	shards, err := a.cfg.Shards()
	if err != nil {
		return false, err
	}
	at, shard := want.FireAt, engine.ShardOf(want.ID, shards)
	found := func(t *engine.Timer) error {
		has = has || bytes.Equal(t.ID, want.ID)
		return nil
	}
	prefix := want.ID[:len(want.ID)-1]
	err = timersAt(at, prefix, 1, func(after engine.TimerCursor, n int) ([]engine.Timer, error) {
		return a.cfg.Timers.Scan(ctx, engine.TimerPartition{Bucket: at / 60_000, Shard: shard}, after, at, n)
	}, found)
	if err != nil || has || a.cfg.Cold == nil {
		return has, err
	}
	err = timersAt(at, prefix, 1, func(after engine.TimerCursor, n int) ([]engine.Timer, error) {
		return a.cfg.Cold.Scan(ctx, engine.TimerPartition{Bucket: at / engine.DayMs, Shard: shard}, after, at, n)
	}, found)
	return has, err
}

func over(t *engine.Trigger) bool { return t.Ended != 0 || t.State >= engine.TriggerFired }

// triggerRun is the part of a run that audits triggers.
type triggerRun struct {
	*run
	suspects []engine.Trigger // without payload and log: only the row's version counts
}

// all counts every trigger that was made since then or is open, whenever it was made.
func (r *triggerRun) all(ctx context.Context) error {
	if r.cfg.Rows == nil {
		return nil
	}
	err := r.look(ctx, 0, func(t *engine.Trigger) (mine, more bool) {
		return t.Created >= r.since, t.Created >= r.since-idSlack.Milliseconds()
	})
	if err != nil {
		return err
	}
	return r.look(ctx, engine.TriggerOpen, func(t *engine.Trigger) (mine, more bool) { return t.Created < r.since, true })
}

// look counts the triggers in a state for which of returns mine. It stops when of
// returns that there are no more.
func (r *triggerRun) look(ctx context.Context, state engine.TriggerState, of func(*engine.Trigger) (mine, more bool)) error {
	err := rowsOf(ctx, r.a, state, func(rows []engine.Trigger) (bool, error) {
		for i := range rows {
			mine, more := of(&rows[i])
			if !more {
				return false, nil
			}
			if !mine {
				continue
			}
			where, err := r.evidence(ctx, &rows[i])
			if err != nil {
				return false, err
			}
			r.take(&rows[i], where)
		}
		if len(r.suspects) >= triggerBatch {
			return true, r.confirm(ctx)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return r.confirm(ctx)
}

// take counts a trigger that has evidence, and suspects another.
func (r *triggerRun) take(t *engine.Trigger, where string) {
	if where != "" {
		r.count(t, where)
		return
	}
	t.Payload, t.Log = nil, nil
	r.suspects = append(r.suspects, *t)
}

func (r *triggerRun) count(t *engine.Trigger, where string) {
	r.rep.Triggers++
	l := r.ledger(t.Caller, "trigger", t.Created)
	l.Accepted++
	state := triggerStates[t.State]
	switch {
	case over(t):
		r.ended(l, state, 1)
	case where != "":
		r.waits(l, where, 1)
	default:
		l.Lost++
		r.drift(1, api.Drift{Class: api.DriftTriggerGone, ID: t.ID, Caller: t.Caller, State: state, Detail: "neither a timer nor the queue leads to it; notifyctl reconcile repairs what is due"})
	}
}

// evidence is the cheap look: the row, and its timer by its key.
func (r *triggerRun) evidence(ctx context.Context, t *engine.Trigger) (string, error) {
	now := time.Now()
	switch {
	case over(t):
		return triggerEnded, nil
	case t.State == engine.TriggerInFlight && t.LeaseUntil > now.UnixMilli():
		return triggerClaim, nil
	case t.NextAt < now.Add(-releasedFor).UnixMilli():
		return "", nil
	}
	tm, ok := r.cfg.Triggers.Timer(t)
	if !ok {
		return "", nil
	}
	if has, err := timed(ctx, r.a, &tm); err != nil || !has {
		return "", err
	}
	return triggerTimer, nil
}

// generation is what a message or a timer leads to.
type generation struct {
	base notify.Base
	gen  uint32
}

// confirm reads every timer and the queue, and then the rows again, until each
// suspect has ended, has evidence, or has stood still for as many rounds as it takes
// to call it drift.
func (r *triggerRun) confirm(ctx context.Context) error {
	still := map[string]int{}
	for len(r.suspects) > 0 {
		if err := r.settle(ctx); err != nil {
			return err
		}
		before := r.suspects
		met, err := r.leads(ctx)
		if err != nil {
			return err
		}
		ids := make([]string, len(before))
		for i := range before {
			ids[i] = before[i].ID
		}
		rows, err := r.cfg.Rows.Get(ctx, ids)
		if err != nil {
			return err
		}
		r.suspects = nil
		for i := range rows {
			t := &rows[i]
			if t.ID == "" {
				continue // purged: it was terminal
			}
			where, err := r.evidence(ctx, t)
			if err != nil {
				return err
			}
			if where == "" {
				where = met(t)
			}
			if t.Version != before[i].Version {
				still[t.ID] = 0
			}
			if still[t.ID]++; where == "" && still[t.ID] >= r.cfg.Rounds {
				r.count(t, "")
				continue
			}
			r.take(t, where)
		}
	}
	return nil
}

// leads reads everything that could lead to the suspects, and returns a function that
// says what leads to one.
func (r *triggerRun) leads(ctx context.Context) (func(*engine.Trigger) string, error) {
	of := func(t *engine.Trigger) (g generation, ok bool) {
		tm, ok := r.cfg.Triggers.Timer(t)
		if ok {
			g.base, g.gen, _ = r.cfg.Triggers.Lead(tm.Payload)
		}
		return g, ok
	}
	wanted := make(map[notify.Base]bool, len(r.suspects))
	for i := range r.suspects {
		if g, ok := of(&r.suspects[i]); ok {
			wanted[g.base] = true
		}
	}
	met := map[generation]string{}
	meet := func(body []byte, where string) error {
		if base, gen, ok := r.cfg.Triggers.Lead(body); ok && wanted[base] {
			met[generation{base, gen}] = where
		}
		return nil
	}
	// From the timers to the queue: the direction in which they go.
	err := r.timers(ctx, func(t *engine.Timer) error {
		if t.Kind != engine.TimerOfTrigger || t.FireAt <= time.Now().Add(-releasedFor).UnixMilli() {
			return nil
		}
		return meet(t.Payload, triggerTimer)
	})
	if err != nil {
		return nil, err
	}
	held := 0
	if r.cfg.Queue != nil {
		err = r.cfg.Queue(ctx, func(body []byte) error { return meet(body, triggerQueue) })
	} else {
		held, err = r.cfg.Held(ctx)
	}
	return func(t *engine.Trigger) string {
		g, ok := of(t)
		if where := met[g]; !ok || where != "" || held == 0 {
			return where
		}
		return triggerUnknown
	}, err
}
