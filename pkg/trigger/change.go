package trigger

import (
	"context"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// swapTries is how often one change of a trigger may lose against other changes of the same
// trigger. After that, the change returns an error, and its caller must try again.
const swapTries = 8

// Cancel changes a waiting trigger to CANCELLED and returns its row. After that no call starts. A
// trigger may also be cancelled between two attempts. A second cancel changes nothing and is no
// error.
//
// Cancel returns notify.KindNotFound if the trigger does not exist or belongs to another caller. It
// returns notify.KindConflict with error code too_late while a call may be in progress, and with
// trigger_fired, trigger_failed or trigger_expired if the trigger has ended. After
// notify.KindUnavailable the trigger may or may not be cancelled: call Cancel again.
func (s *Service) Cancel(ctx context.Context, caller, id string) (engine.Trigger, error) {
	row, err := s.changeRow(ctx, caller, id, func(row *engine.Trigger, now int64) (bool, error) {
		if row.State == engine.TriggerCancelled {
			return false, nil
		}
		if err := checkPending(row); err != nil {
			return false, err
		}
		row.State, row.Ended, row.Reason = engine.TriggerCancelled, now, "cancelled"
		return true, nil
	})
	return row, err
}

// checkPending returns nil for a PENDING row. For any other row it returns an error that says why
// the row cannot be changed.
func checkPending(row *engine.Trigger) error {
	code, msg := "too_late", "a call of the trigger is or may be in progress"
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
		code, msg = "trigger_expired", "the trigger was too late to be called and was dropped"
	}
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// Reschedule gives a waiting trigger another fire time and returns its row. It decodes the time
// from a body such as {"delay_seconds":60} or {"fire_at":…}. It may be called before the first
// attempt and between attempts. Earlier attempts stay in the row. Lateness counts from the new
// time. The trigger fires for one generation only: the generation of the last Reschedule that
// succeeded before the claim.
//
// Reschedule returns the errors of Cancel. It also returns notify.KindInvalid for a bad body, and
// notify.KindConflict with error code trigger_cancelled for a cancelled trigger.
func (s *Service) Reschedule(ctx context.Context, caller, id string, body []byte) (engine.Trigger, error) {
	w, err := decodeWhen(body)
	if err != nil {
		return engine.Trigger{}, err
	}
	return s.RescheduleTo(ctx, caller, id, w)
}

// RescheduleTo is Reschedule with a time that is already decoded.
func (s *Service) RescheduleTo(ctx context.Context, caller, id string, w When) (engine.Trigger, error) {
	base, err := parseID(id)
	if err != nil {
		return engine.Trigger{}, notify.NotFound("trigger")
	}
	asked := time.Now()
	var began time.Time
	var index []engine.Timer
	row, err := s.changeRow(ctx, caller, id, func(row *engine.Trigger, _ int64) (bool, error) {
		if err := checkPending(row); err != nil {
			return false, err
		}
		if err := s.cfg.Gate(); err != nil {
			return false, err
		}
		at, err := s.resolveFireTime(&w, base, row.Gen+1, asked.UnixMilli())
		if err != nil {
			return false, err
		}
		row.Gen++
		row.FireAt, row.NextAt, row.Reason = at, at, "rescheduled"
		if err := notify.BeforeAct(ctx); err != nil {
			return false, err
		}
		// Write the index row before the state row, because a trigger without an index row never fires.
		// If the swap then loses against another change, the index row does no harm, because the
		// dispatcher that receives its message decides by the state row.
		if began.IsZero() { // keep the time of the first try, which may have written the same index row
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
	return row, s.rewriteIndex(ctx, began, index)
}

// changeRow reads a caller's row, changes it with edit and swaps it into the store. If the swap
// loses or its outcome is unknown, changeRow repeats these steps. It swaps at most swapTries times.
// If edit returns false, changeRow returns without a swap.
func (s *Service) changeRow(ctx context.Context, caller, id string, edit func(row *engine.Trigger, now int64) (bool, error)) (engine.Trigger, error) {
	// After an aborted swap it is unknown whether the row was swapped. So a caller that disconnects
	// must not abort the swap.
	ctx = context.WithoutCancel(ctx)
	var tried *engine.Trigger // the row of a swap whose outcome is not known
	var swapErr error         // the error of that swap
	for range swapTries {
		row, err := s.Get(ctx, caller, id)
		if err != nil {
			return engine.Trigger{}, err
		}
		if tried != nil {
			if sameChange(&row, tried) {
				s.countChange(&row)
				return row, nil
			}
			if row.Version > tried.Version && row.Gen >= tried.Gen && !isTerminal(tried.State) {
				// Another request has changed the row. The change of this request may have been
				// written before that. Another try could make this change twice, or undo the change
				// of the other request, which was already answered.
				return engine.Trigger{}, errContended()
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
			tried, swapErr = &row, err
			if notify.KindOf(err) != notify.KindUnavailable && notify.KindOf(err) != notify.KindInternal {
				return engine.Trigger{}, err
			}
			continue
		}
		if won[0] {
			row.Version = old + 1
			s.cfg.Events.swaps(1)
			s.countChange(&row)
			return row, nil
		}
	}
	if swapErr != nil {
		return engine.Trigger{}, notify.Unavailable("trigger_store", retryLater, swapErr)
	}
	return engine.Trigger{}, errContended()
}

// errContended returns the error for a change that may have lost against other changes of the same
// trigger.
func errContended() error {
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: "trigger_store", RetryAfter: retryLater,
		Msg: "other requests changed the trigger at the same time; read the trigger before you try again",
	}
}

// sameChange reports whether the stored row is the row that a swap tried to write. It is needed
// after a swap with unknown outcome.
func sameChange(stored, tried *engine.Trigger) bool {
	return stored.Version == tried.Version && stored.State == tried.State && stored.Gen == tried.Gen &&
		stored.NextAt == tried.NextAt && stored.Epoch == tried.Epoch && stored.Ended == tried.Ended
}

func (s *Service) countChange(row *engine.Trigger) {
	if row.State == engine.TriggerCancelled {
		s.cfg.Census.add(row.Caller, -1)
		s.cfg.Events.ended(row.Caller, row.State, row.Reason)
		return
	}
	s.cfg.Events.rescheduled(row.Caller)
}

// Get returns a trigger of a caller. It returns notify.KindNotFound if the trigger does not exist
// or belongs to another caller.
func (s *Service) Get(ctx context.Context, caller, id string) (engine.Trigger, error) {
	row, err := s.Find(ctx, id)
	if err == nil && (caller == "" || row.Caller != caller) {
		return engine.Trigger{}, notify.NotFound("trigger")
	}
	return row, err
}

// Find returns a trigger of any caller. Only operators may use it.
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

// MaxPage is the largest page size of List.
const MaxPage = 1000

// List returns triggers of a caller, newest first. It begins after the trigger whose id is the
// parameter after; "" means from the newest. State 0 means any state. It returns at most max
// triggers; max must be from 1 to MaxPage.
func (s *Service) List(ctx context.Context, caller string, state engine.TriggerState, after string, max int) ([]engine.Trigger, error) {
	if caller == "" {
		return nil, notify.NotFound("trigger")
	}
	return s.list(ctx, caller, state, after, max)
}

// ListAll is List for all callers. Only operators may use it.
func (s *Service) ListAll(ctx context.Context, state engine.TriggerState, after string, max int) ([]engine.Trigger, error) {
	return s.list(ctx, "", state, after, max)
}

func (s *Service) list(ctx context.Context, caller string, state engine.TriggerState, after string, max int) ([]engine.Trigger, error) {
	switch {
	case max < 1 || max > MaxPage:
		return nil, notify.Invalid("out_of_range", "limit", "must be from 1 to 1000")
	case state > engine.TriggerExpired:
		return nil, notify.Invalid("unknown_state", "status", "must be PENDING, IN_FLIGHT, FIRED, FAILED, CANCELLED or EXPIRED")
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

// StateName returns the name of a state in the API.
func StateName(s engine.TriggerState) string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return ""
}

// ParseState returns the state with this name in the API. It returns false if there is no such state.
func ParseState(name string) (engine.TriggerState, bool) {
	for i, n := range stateNames {
		if n == name && i > 0 {
			return engine.TriggerState(i), true
		}
	}
	return 0, false
}

// isTerminal reports whether a state is final.
func isTerminal(s engine.TriggerState) bool {
	return s == engine.TriggerFired || s == engine.TriggerFailed || s == engine.TriggerCancelled || s == engine.TriggerExpired
}
