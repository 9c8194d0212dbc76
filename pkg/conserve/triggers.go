package conserve

import (
	"bytes"
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Places where the evidence that a trigger is pending was found.
const (
	triggerTimer = "trigger_timer" // it has a timer
	triggerQueue = "trigger_queue" // it has a message in the delay queue
	triggerClaim = "trigger_claim" // a dispatcher has claimed it
	// triggerUnknown: no evidence was found, but the delay queue has messages and cannot list them.
	// One of these messages may be the evidence.
	triggerUnknown = "trigger_unknown"
	triggerEnded   = "ended" // it is terminal and needs no evidence
)

const (
	// idSlack is the longest time by which the time in a trigger's id may be before the creation of
	// the trigger's row. The two times may come from the clocks of two machines. Also, a trigger
	// that the server makes for an event has the time of the event in its id.
	idSlack = time.Hour
	// releaseGrace is how long after its fire time a timer counts as evidence. A released timer
	// stays stored until its minute is closed. So a timer that is stored for longer than
	// releaseGrace after its fire time proves nothing.
	releaseGrace = 10 * time.Second
	// triggerBatch is how many triggers without evidence are checked together.
	triggerBatch = 20_000
)

// eachTriggerPage calls fn with every page of the triggers in a state, newest id first, until fn
// returns false or there are no more pages.
func eachTriggerPage(ctx context.Context, a *Auditor, state engine.TriggerState, fn func([]engine.Trigger) (more bool, err error)) error {
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

// hasTimer reports whether a timer is stored, in the near tier or the cold tier.
func hasTimer(ctx context.Context, a *Auditor, want *engine.Timer) (has bool, err error) {
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

// isOver reports whether a trigger is terminal.
func isOver(t *engine.Trigger) bool { return t.Ended != 0 || t.State >= engine.TriggerFired }

// triggerRun is the part of a run that audits triggers.
type triggerRun struct {
	*run
	suspects []engine.Trigger // without payload and log, to save memory
}

// countTriggers counts every trigger that was made at r.since or later, and every open trigger.
func (r *triggerRun) countTriggers(ctx context.Context) error {
	if r.cfg.Rows == nil {
		return nil
	}
	err := r.countState(ctx, 0, func(t *engine.Trigger) (mine, more bool) {
		return t.Created >= r.since, t.Created >= r.since-idSlack.Milliseconds()
	})
	if err != nil {
		return err
	}
	return r.countState(ctx, engine.TriggerOpen, func(t *engine.Trigger) (mine, more bool) { return t.Created < r.since, true })
}

// countState counts triggers in a state. It calls choose with each trigger. If choose returns mine
// = false, it skips the trigger. If choose returns more = false, it stops.
func (r *triggerRun) countState(ctx context.Context, state engine.TriggerState, choose func(*engine.Trigger) (mine, more bool)) error {
	err := eachTriggerPage(ctx, r.a, state, func(rows []engine.Trigger) (bool, error) {
		for i := range rows {
			mine, more := choose(&rows[i])
			if !more {
				return false, nil
			}
			if !mine {
				continue
			}
			where, err := r.findTriggerEvidence(ctx, &rows[i])
			if err != nil {
				return false, err
			}
			r.countOrSuspect(&rows[i], where)
		}
		if len(r.suspects) >= triggerBatch {
			return true, r.confirmTriggers(ctx)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return r.confirmTriggers(ctx)
}

// countOrSuspect counts a trigger that has evidence. It adds a trigger without evidence (place is
// "") to the suspects.
func (r *triggerRun) countOrSuspect(t *engine.Trigger, place string) {
	if place != "" {
		r.countTrigger(t, place)
		return
	}
	t.Payload, t.Log = nil, nil
	r.suspects = append(r.suspects, *t)
}

// countTrigger counts a trigger as terminal, as pending if it has evidence (place is not ""), or as
// lost otherwise.
func (r *triggerRun) countTrigger(t *engine.Trigger, place string) {
	r.rep.Triggers++
	l := r.ledger(t.Caller, "trigger", t.Created)
	l.Accepted++
	state := triggerStates[t.State]
	switch {
	case isOver(t):
		r.addTerminal(l, state, 1)
	case place != "":
		r.addPending(l, place, 1)
	default:
		l.Lost++
		r.addDrift(1, api.Drift{Class: api.DriftTriggerGone, ID: t.ID, Caller: t.Caller, State: state, Detail: "the trigger waits, but it has neither a timer nor a message in the delay queue; notifyctl reconcile repairs the trigger when it is due"})
	}
}

// findTriggerEvidence returns the place of the evidence for a trigger, or "" if it finds no
// evidence. To be cheap, it uses only the row and the key of the timer. So there may be evidence
// that it does not find. Therefore "" makes the trigger only a suspect, not drift.
func (r *triggerRun) findTriggerEvidence(ctx context.Context, t *engine.Trigger) (string, error) {
	now := time.Now()
	switch {
	case isOver(t):
		return triggerEnded, nil
	case t.State == engine.TriggerInFlight && t.LeaseUntil > now.UnixMilli():
		return triggerClaim, nil
	case t.NextAt < now.Add(-releaseGrace).UnixMilli():
		return "", nil
	}
	tm, ok := r.cfg.Triggers.Timer(t)
	if !ok {
		return "", nil
	}
	if has, err := hasTimer(ctx, r.a, &tm); err != nil || !has {
		return "", err
	}
	return triggerTimer, nil
}

// generation identifies one generation of a trigger. A message or a timer belongs to one
// generation.
type generation struct {
	base notify.Base
	gen  uint32
}

// confirmTriggers reads every timer and the queue, and then the rows of the suspects again. It
// repeats this until each suspect is terminal, has evidence, or is drift. A suspect is drift if it
// stayed unchanged for Config.Rounds rounds.
func (r *triggerRun) confirmTriggers(ctx context.Context) error {
	still := map[string]int{} // by id: number of rounds in a row in which the row did not change
	for len(r.suspects) > 0 {
		if err := r.waitSettle(ctx); err != nil {
			return err
		}
		before := r.suspects
		leadTo, err := r.readTriggerLeads(ctx)
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
			where, err := r.findTriggerEvidence(ctx, t)
			if err != nil {
				return err
			}
			if where == "" {
				where = leadTo(t)
			}
			if t.Version != before[i].Version {
				still[t.ID] = 0
			}
			if still[t.ID]++; where == "" && still[t.ID] >= r.cfg.Rounds {
				r.countTrigger(t, "")
				continue
			}
			r.countOrSuspect(t, where)
		}
	}
	return nil
}

// readTriggerLeads reads all evidence for the suspects. The returned function looks up a trigger
// and returns the place of its evidence, or "" if there is none.
func (r *triggerRun) readTriggerLeads(ctx context.Context) (func(*engine.Trigger) string, error) {
	generationOf := func(t *engine.Trigger) (g generation, ok bool) {
		tm, ok := r.cfg.Triggers.Timer(t)
		if ok {
			g.base, g.gen, _ = r.cfg.Triggers.TriggerOf(tm.Payload)
		}
		return g, ok
	}
	wanted := make(map[notify.Base]bool, len(r.suspects))
	for i := range r.suspects {
		if g, ok := generationOf(&r.suspects[i]); ok {
			wanted[g.base] = true
		}
	}
	found := map[generation]string{}
	note := func(body []byte, where string) error {
		if base, gen, ok := r.cfg.Triggers.TriggerOf(body); ok && wanted[base] {
			found[generation{base, gen}] = where
		}
		return nil
	}
	// Read the timers before the queue, because a release moves work from a timer to the queue.
	err := r.eachTimer(ctx, func(t *engine.Timer) error {
		if t.Kind != engine.TimerOfTrigger || t.FireAt <= time.Now().Add(-releaseGrace).UnixMilli() {
			return nil
		}
		return note(t.Payload, triggerTimer)
	})
	if err != nil {
		return nil, err
	}
	held := 0
	if r.cfg.Queue != nil {
		err = r.cfg.Queue(ctx, func(body []byte) error { return note(body, triggerQueue) })
	} else {
		held, err = r.cfg.Held(ctx)
	}
	return func(t *engine.Trigger) string {
		g, ok := generationOf(t)
		if where := found[g]; !ok || where != "" || held == 0 {
			return where
		}
		return triggerUnknown
	}, err
}
