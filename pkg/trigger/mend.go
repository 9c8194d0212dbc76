package trigger

import (
	"context"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Mender finds the triggers to which timers and messages lead, and repairs trigger rows. Package
// conserve finds the rows to repair. Triggers, Later and Dead are required. Mender is safe for
// concurrent use.
type Mender struct {
	Triggers engine.Triggers
	Later    Later
	Dead     DeadLog
	Events   Events // called for records of triggers-dlq and for swaps

	hit func(string) // killpoint.Hit, or a function of a test
}

// ID returns the id of the trigger with this base. TriggerOf returns the base for a timer or a
// message.
func (m Mender) ID(base notify.Base) string { return idOf(base) }

// TriggerOf returns the trigger and the generation to which a body refers. The body is the payload
// of a timer of TimerKind, or a message of the delay queue. The result ok is false if the body is
// damaged or was written by another release.
func (m Mender) TriggerOf(body []byte) (base notify.Base, gen uint32, ok bool) {
	msg, ok := decodeMessage(body)
	return msg.base, msg.gen, ok
}

// Timer returns the timer that leads to a waiting trigger. The result ok is false if the id of the
// trigger is not valid.
func (m Mender) Timer(t *engine.Trigger) (tm engine.Timer, ok bool) {
	base, err := parseID(t.ID)
	return indexRow(base, t), err == nil
}

// Mend repairs three groups of triggers. It writes the timers for the triggers in the parameter
// timers. It writes the dead letters for the triggers in the parameter letters. It makes the
// triggers in the parameter redo due now. Each row is changed by compare and swap, so Mend does not
// overwrite a row that was changed in the meantime. Mend returns the ids of the triggers that it
// repaired, or notify.KindUnavailable. After an error, Mend can be called again with the same rows.
func (m Mender) Mend(ctx context.Context, timers, letters, redo []engine.Trigger) (mended []string, err error) {
	now := ceilMillis(time.Now())
	var index []engine.Timer
	var owed []DeadRecord
	var swaps []engine.TriggerSwap
	for i := range timers {
		tm, _ := m.Timer(&timers[i])
		index, mended = append(index, tm), append(mended, timers[i].ID)
	}
	for _, t := range letters {
		owed = append(owed, deadRecordOf(&t))
		t.NextAt = 0
		swaps = append(swaps, engine.TriggerSwap{Old: t.Version, New: t})
	}
	for _, t := range redo {
		t = dueAgain(t, now)
		tm, _ := m.Timer(&t)
		index, swaps = append(index, tm), append(swaps, engine.TriggerSwap{Old: t.Version, New: t})
	}
	if len(owed) > 0 {
		if err := m.Dead.Append(ctx, owed); err != nil {
			return nil, unavailable("dead_letters", err)
		}
		m.Events.deadLettered(len(owed))
	}
	won, err := m.putAndSwap(ctx, index, swaps)
	for k, w := range won {
		if w {
			mended = append(mended, swaps[k].New.ID)
		}
	}
	return mended, err
}

// Requeue makes a FAILED trigger due again, when an operator asks for it. The trigger gets the next
// generation, a full new set of attempts, and no limit of its lateness. The result done is false if
// the trigger is not FAILED or does not exist.
func (m Mender) Requeue(ctx context.Context, id string) (done bool, err error) {
	if _, err := parseID(id); err != nil {
		return false, nil // no such trigger exists
	}
	rows, err := m.Triggers.Get(ctx, []string{id})
	if err != nil {
		return false, unavailable("trigger_store", err)
	}
	if rows[0].ID == "" || rows[0].State != engine.TriggerFailed {
		return false, nil
	}
	t := dueAgain(rows[0], ceilMillis(time.Now()))
	t.Reason, t.Ended, t.Attempts, t.Deferrals, t.MaxLateness = "replayed", 0, 0, 0, 0
	// The count of lost claims begins at 0 again.
	t.Log = slices.DeleteFunc(slices.Clone(t.Log), func(a engine.Attempt) bool { return a.Class == ClassLost })
	tm, _ := m.Timer(&t)
	won, err := m.putAndSwap(ctx, []engine.Timer{tm}, []engine.TriggerSwap{{Old: t.Version, New: t}})
	return err == nil && won[0], err
}

// putAndSwap writes the timers and then swaps the rows. It keeps this order because a row without
// its timer never fires. For each swap it returns whether the swap won.
func (m Mender) putAndSwap(ctx context.Context, index []engine.Timer, swaps []engine.TriggerSwap) ([]bool, error) {
	if len(index) > 0 {
		if err := m.Later.Put(ctx, index); err != nil {
			return nil, unavailable("timer_store", err)
		}
	}
	if m.hit != nil {
		m.hit("trigger-requeued-before-mark")
	} else {
		killpoint.Hit("trigger-requeued-before-mark")
	}
	if len(swaps) == 0 {
		return nil, nil
	}
	won, err := m.Triggers.Swap(ctx, swaps)
	if err != nil {
		return nil, unavailable("trigger_store", err)
	}
	m.Events.swaps(len(swaps))
	return won, nil
}

// dueAgain returns the row of a trigger that is due again at the time now. The row has the next
// generation, so that messages of the old generation are dropped. Otherwise hourly repairs of a
// long backlog would add more and more messages.
func dueAgain(t engine.Trigger, now int64) engine.Trigger {
	t.Log = appendLostClaim(&t)
	t.State, t.LeaseUntil, t.Reason = engine.TriggerPending, 0, "reconciled"
	t.Gen++
	t.NextAt = now
	return t
}
