package trigger

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// swapTries is how often a change meets another one of the same trigger before
// its caller is asked to try again.
const swapTries = 8

// Cancel makes a waiting trigger CANCELLED and returns its row: no call starts
// after that. Between retries it may be cancelled too. Cancelling a cancelled
// one changes nothing and is no error. Errors: notify.KindNotFound for one that
// does not exist or is another caller's; notify.KindConflict with code too_late
// while a call may be under way, or trigger_fired, trigger_failed,
// trigger_expired; notify.KindUnavailable when it is not known whether it was
// cancelled: ask again.
func (s *Service) Cancel(ctx context.Context, caller, id string) (engine.Trigger, error) {
	row, err := s.change(ctx, caller, id, func(row *engine.Trigger, now int64) (bool, error) {
		if row.State == engine.TriggerCancelled {
			return false, nil
		}
		if err := waiting(row); err != nil {
			return false, err
		}
		row.State, row.Ended, row.Reason = engine.TriggerCancelled, now, "cancelled"
		return true, nil
	})
	return row, err
}

// waiting returns nil for a PENDING row, else why it cannot be changed.
func waiting(row *engine.Trigger) error {
	code, msg := "too_late", "a call is under way, or may be"
	switch row.State {
	case engine.TriggerPending:
		return nil
	case engine.TriggerFired:
		code, msg = "trigger_fired", "the trigger has fired"
	case engine.TriggerFailed:
		code, msg = "trigger_failed", "the trigger has failed"
	case engine.TriggerCancelled:
		code, msg = "trigger_cancelled", "the trigger was cancelled"
	case engine.TriggerExpired:
		code, msg = "trigger_expired", "the trigger came too late and was dropped"
	}
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// Reschedule gives a waiting trigger another time, decoded from a body such as
// {"delay_seconds":60} or {"fire_at":…}, and returns its row. It may be used
// before the first attempt and between retries; attempts made are kept, and its
// lateness is counted from the new time. Exactly one generation fires: that of
// the last reschedule answered before its claim. Errors as for Cancel;
// notify.KindInvalid for a bad body; a cancelled trigger is
// notify.KindConflict trigger_cancelled.
func (s *Service) Reschedule(ctx context.Context, caller, id string, body []byte) (engine.Trigger, error) {
	w, err := decodeWhen(body)
	if err != nil {
		return engine.Trigger{}, err
	}
	return s.RescheduleTo(ctx, caller, id, w)
}

// RescheduleTo is Reschedule with the time decoded.
func (s *Service) RescheduleTo(ctx context.Context, caller, id string, w When) (engine.Trigger, error) {
	base, err := parseID(id)
	if err != nil {
		return engine.Trigger{}, notify.NotFound("trigger")
	}
	asked := time.Now()
	var began time.Time
	var index []engine.Timer
	row, err := s.change(ctx, caller, id, func(row *engine.Trigger, _ int64) (bool, error) {
		if err := waiting(row); err != nil {
			return false, err
		}
		if err := s.cfg.Gate(); err != nil {
			return false, err
		}
		at, err := s.resolve(&w, base, row.Gen+1, asked.UnixMilli())
		if err != nil {
			return false, err
		}
		row.Gen++
		row.FireAt, row.NextAt, row.Reason = at, at, "rescheduled"
		if err := notify.BeforeAct(ctx); err != nil {
			return false, err
		}
		// Before the state row: one whose index row is missing never fires. If
		// the swap is lost to another, this index row is dropped when it comes.
		if began.IsZero() { // an earlier try may have written the same row
			began = time.Now()
		}
		index = []engine.Timer{indexRow(base, row)}
		if err := s.cfg.Later.Put(ctx, index); err != nil {
			return false, unavailable("timer_store", err)
		}
		s.cfg.hit("trigger-reschedule-indexed")
		return true, nil
	})
	if err != nil {
		return row, err
	}
	return row, s.reindex(ctx, began, index)
}

// change reads a caller's row and swaps it for what edit makes of it, until one swap
// is known to have won. edit says whether there is anything to swap.
func (s *Service) change(ctx context.Context, caller, id string, edit func(row *engine.Trigger, now int64) (bool, error)) (engine.Trigger, error) {
	// A swap that is cut may be done or not; the caller's hanging up must not
	// cut it.
	ctx = context.WithoutCancel(ctx)
	var tried *engine.Trigger // a swap whose outcome is not known
	for range swapTries {
		row, err := s.Get(ctx, caller, id)
		if err != nil {
			return engine.Trigger{}, err
		}
		if tried != nil {
			if sameChange(&row, tried) {
				s.changed(&row)
				return row, nil
			}
			if row.Version > tried.Version && row.Gen >= tried.Gen && !terminal(tried.State) {
				// Others have changed it since, before or after. Once more might
				// be twice, over the head of somebody who was answered.
				return engine.Trigger{}, notify.Unavailable("trigger_store", retryLater, nil)
			}
		}
		old := row.Version
		do, err := edit(&row, time.Now().UnixMilli())
		if err != nil || !do {
			return row, err
		}
		if err := notify.BeforeAct(ctx); err != nil {
			return engine.Trigger{}, err
		}
		won, err := s.cfg.Triggers.Swap(ctx, []engine.TriggerSwap{{Old: old, New: row}})
		if err != nil {
			row.Version = old + 1
			tried = &row
			if notify.KindOf(err) != notify.KindUnavailable && notify.KindOf(err) != notify.KindInternal {
				return engine.Trigger{}, err
			}
			continue
		}
		if won[0] {
			row.Version = old + 1
			s.cfg.Events.swaps(1)
			s.changed(&row)
			return row, nil
		}
	}
	return engine.Trigger{}, notify.Unavailable("trigger_store", retryLater, nil)
}

// sameChange reports whether stored is what a swap of unknown outcome wrote.
func sameChange(stored, tried *engine.Trigger) bool {
	return stored.Version == tried.Version && stored.State == tried.State && stored.Gen == tried.Gen &&
		stored.NextAt == tried.NextAt && stored.Epoch == tried.Epoch && stored.Ended == tried.Ended
}

func (s *Service) changed(row *engine.Trigger) {
	if row.State == engine.TriggerCancelled {
		s.cfg.Census.add(row.Caller, -1)
		s.cfg.Events.ended(row.Caller, row.State, row.Reason)
		return
	}
	s.cfg.Events.rescheduled(row.Caller)
}

// Get returns a caller's trigger; one that does not exist or is another
// caller's is notify.KindNotFound.
func (s *Service) Get(ctx context.Context, caller, id string) (engine.Trigger, error) {
	row, err := s.Find(ctx, id)
	if err == nil && (caller == "" || row.Caller != caller) {
		return engine.Trigger{}, notify.NotFound("trigger")
	}
	return row, err
}

// Find returns a trigger whosever it is: for operators alone.
func (s *Service) Find(ctx context.Context, id string) (engine.Trigger, error) {
	id, err := ParseID(id)
	if err != nil {
		return engine.Trigger{}, notify.NotFound("trigger")
	}
	rows, err := s.cfg.Triggers.Get(ctx, []string{id})
	if err != nil {
		return engine.Trigger{}, unavailable("trigger_store", err)
	}
	if rows[0].ID == "" {
		return engine.Trigger{}, notify.NotFound("trigger")
	}
	return rows[0], nil
}

// MaxPage is the most a List returns.
const MaxPage = 1000

// List returns triggers of a caller, newest first, behind the one named after
// ("": from the newest); state 0: of any state; max 1 to MaxPage.
func (s *Service) List(ctx context.Context, caller string, state engine.TriggerState, after string, max int) ([]engine.Trigger, error) {
	if caller == "" {
		return nil, notify.NotFound("trigger")
	}
	return s.list(ctx, caller, state, after, max)
}

// ListAll is List over every caller: for operators alone.
func (s *Service) ListAll(ctx context.Context, state engine.TriggerState, after string, max int) ([]engine.Trigger, error) {
	return s.list(ctx, "", state, after, max)
}

func (s *Service) list(ctx context.Context, caller string, state engine.TriggerState, after string, max int) ([]engine.Trigger, error) {
	switch {
	case max < 1 || max > MaxPage:
		return nil, notify.Invalid("out_of_range", "limit", "must be from 1 to 1000")
	case state > engine.TriggerExpired:
		return nil, notify.Invalid("unknown_state", "status", "there is no such state")
	}
	if after != "" {
		var err error
		if after, err = ParseID(after); err != nil {
			return nil, notify.Invalid("bad_cursor", "after", "is not the id of a trigger")
		}
	}
	rows, err := s.cfg.Triggers.List(ctx, caller, state, engine.TriggerCursor{ID: after}, max)
	if err != nil {
		return nil, unavailable("trigger_store", err)
	}
	return rows, nil
}

var stateNames = [...]string{"", "PENDING", "IN_FLIGHT", "FIRED", "FAILED", "CANCELLED", "EXPIRED"}

// StateName is a state as the API spells it.
func StateName(s engine.TriggerState) string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return ""
}

// ParseState is the inverse of StateName.
func ParseState(name string) (engine.TriggerState, bool) {
	for i, n := range stateNames {
		if n == name && i > 0 {
			return engine.TriggerState(i), true
		}
	}
	return 0, false
}

// terminal reports whether a state is one of those that nothing leaves.
func terminal(s engine.TriggerState) bool {
	return s == engine.TriggerFired || s == engine.TriggerFailed || s == engine.TriggerCancelled || s == engine.TriggerExpired
}
