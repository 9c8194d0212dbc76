package trigger

import (
	"bytes"
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Auditor says of each trigger what leads on to it. All fields but Settle and
// Batch are required; of Queue and Held one.
type Auditor struct {
	Triggers engine.Triggers
	Timers   engine.Timers
	Cold     engine.ColdTimers
	Shards   int // of the timer engine
	// Queue calls fn with the body of every message of the delay queue, those
	// that a dispatcher holds included.
	Queue func(ctx context.Context, fn func(body []byte) error) error
	// Held says how many messages the delay queue holds, where Queue is nil
	// because the engine does not show them: while there are any, each may be of
	// the trigger that is looked for, which then has EvidenceUnknown.
	Held func(ctx context.Context) (int, error)
	// Settle is the wait between two looks at a trigger to which nothing led.
	// Default 2 s.
	Settle time.Duration
	// Batch is how many of them are looked at together. Default 20,000.
	Batch int
}

// Where the evidence of a trigger lies.
const (
	EvidenceTimer = "timer" // an index row
	EvidenceQueue = "queue" // a message
	EvidenceClaim = "claim" // a dispatcher has claimed it
	// EvidenceUnknown is that of a trigger to which nothing is known to lead, while
	// the queue holds messages that it does not show.
	EvidenceUnknown = "unknown"
	evidenceEnded   = "ended" // none is needed
)

// auditRounds is how often a trigger to which nothing leads is looked at, with a
// row that does not change.
const auditRounds = 3

// auditSlack is how much older than its row's time an id may be: clocks differ, and
// an id of the server's own is as old as what it tells of.
const auditSlack = time.Hour

// Audit calls fn with every trigger that was made since then (ms since 1970) or
// is open, whenever it was made, and what leads on to it, "" for nothing: its row
// stood still in every look. What is terminal needs nothing.
func (a *Auditor) Audit(ctx context.Context, since int64, fn func(t *engine.Trigger, evidence string)) error {
	err := a.look(ctx, 0, fn, func(t *engine.Trigger) (mine, more bool) {
		// Ids are listed newest first.
		return t.Created >= since, t.Created >= since-auditSlack.Milliseconds()
	})
	if err != nil {
		return err
	}
	return a.look(ctx, engine.TriggerOpen, fn, func(t *engine.Trigger) (mine, more bool) { return t.Created < since, true })
}

// look audits the rows of a state for which of returns mine. It stops when of returns
// that there are no more.
func (a *Auditor) look(ctx context.Context, state engine.TriggerState, fn func(t *engine.Trigger, evidence string), of func(*engine.Trigger) (mine, more bool)) error {
	const page = 500
	batch := a.Batch
	if batch == 0 {
		batch = 20_000
	}
	var suspects []engine.Trigger
	var after engine.TriggerCursor
	for last := false; !last; {
		rows, err := a.Triggers.List(ctx, "", state, after, page)
		if err != nil {
			return err
		}
		last = len(rows) < page
		for i := range rows {
			t := &rows[i]
			mine, more := of(t)
			if !more {
				last = true
				break
			}
			if !mine {
				continue
			}
			where, err := a.leads(ctx, t)
			switch {
			case err != nil:
				return err
			case where != "":
				fn(t, where)
			default:
				t.Payload, t.Log = nil, nil // room: only the row's version counts
				suspects = append(suspects, *t)
			}
		}
		if len(suspects) >= batch || last && len(suspects) > 0 {
			if err := a.confirm(ctx, suspects, fn); err != nil {
				return err
			}
			suspects = nil
		}
		if !last {
			after.ID = rows[len(rows)-1].ID
		}
	}
	return nil
}

// leads is the cheap look: the row, and its timer by its key.
func (a *Auditor) leads(ctx context.Context, t *engine.Trigger) (string, error) {
	if t.Ended != 0 || t.State >= engine.TriggerFired {
		return evidenceEnded, nil
	}
	if t.State == engine.TriggerInFlight && t.LeaseUntil > time.Now().UnixMilli() {
		return EvidenceClaim, nil
	}
	base, err := parseID(t.ID)
	if err != nil {
		return "", nil
	}
	id := timerID(base, t.Gen)
	shard := engine.ShardOf(id, a.Shards)
	after := engine.TimerCursor{FireAt: t.NextAt, ID: before(id)}
	rows, err := a.Timers.Scan(ctx, engine.TimerPartition{Minute: t.NextAt / 60_000, Shard: shard}, after, t.NextAt, 1)
	if err == nil && (len(rows) == 0 || !bytes.Equal(rows[0].ID, id)) {
		rows, err = a.Cold.Scan(ctx, shard, t.NextAt/86_400_000, after, 1)
	}
	if err != nil || len(rows) == 0 || rows[0].FireAt != t.NextAt || !bytes.Equal(rows[0].ID, id) {
		return "", err
	}
	// A timer that was released stays until its minute is closed.
	if t.NextAt < time.Now().Add(-releasedFor).UnixMilli() {
		return "", nil
	}
	return EvidenceTimer, nil
}

// releasedFor is how long after its time a timer is believed to be about to be
// released.
const releasedFor = 10 * time.Second

// generation is what a message or an index row leads to.
type generation struct {
	base notify.Base
	gen  uint32
}

// confirm reads every timer and the queue, and then the rows again.
func (a *Auditor) confirm(ctx context.Context, suspects []engine.Trigger, fn func(t *engine.Trigger, evidence string)) error {
	settle := a.Settle
	if settle == 0 {
		settle = 2 * time.Second
	}
	still := make(map[string]int, len(suspects))
	for len(suspects) > 0 {
		if !notify.Sleep(ctx, settle) {
			return ctx.Err()
		}
		wanted := make(map[notify.Base]bool, len(suspects))
		ids := make([]string, len(suspects))
		for i := range suspects {
			ids[i] = suspects[i].ID
			if base, err := parseID(suspects[i].ID); err == nil {
				wanted[base] = true
			}
		}
		met := map[generation]string{}
		meet := func(body []byte, where string) {
			if m, ok := decodeMessage(body); ok && wanted[m.base] {
				met[generation{m.base, m.gen}] = where
			}
		}
		// In the direction in which they go: from the timers to the queue.
		pending := func(t *engine.Timer) error {
			if t.Kind == TimerKind && t.FireAt > time.Now().Add(-releasedFor).UnixMilli() {
				meet(t.Payload, EvidenceTimer)
			}
			return nil
		}
		if err := a.Cold.Pending(ctx, pending); err != nil {
			return err
		}
		if err := a.Timers.Pending(ctx, pending); err != nil {
			return err
		}
		held, err := 0, error(nil)
		if a.Queue != nil {
			err = a.Queue(ctx, func(body []byte) error { meet(body, EvidenceQueue); return nil })
		} else {
			held, err = a.Held(ctx)
		}
		if err != nil {
			return err
		}
		rows, err := a.Triggers.Get(ctx, ids)
		if err != nil {
			return err
		}
		var left []engine.Trigger
		for i := range rows {
			t := &rows[i]
			if t.ID == "" {
				continue // purged: it was terminal
			}
			where, err := a.leads(ctx, t)
			if err != nil {
				return err
			}
			if base, perr := parseID(t.ID); where == "" && perr == nil {
				where = met[generation{base, t.Gen}]
				if where == "" && held > 0 {
					where = EvidenceUnknown
				}
			}
			if where != "" {
				fn(t, where)
				continue
			}
			if t.Version != suspects[i].Version {
				still[t.ID] = 0
			}
			if still[t.ID]++; still[t.ID] >= auditRounds {
				fn(t, "")
				continue
			}
			t.Payload, t.Log = nil, nil
			left = append(left, *t)
		}
		suspects = left
	}
	return nil
}
