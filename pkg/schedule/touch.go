package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// maxSwapTries is how often one call tries to swap the head. A try fails if another call changes
// the same schedule at the same time.
const maxSwapTries = 8

// conflictError returns the error for a cancel or a move that is not allowed.
func conflictError(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

// errContended returns the error for a call that lost against other changes of the same schedule.
func errContended() error {
	return &notify.Error{
		Kind: notify.KindUnavailable, Code: "schedule_contended", RetryAfter: time.Second,
		Msg: "other requests changed the schedule at the same time; read the schedule before you try again",
	}
}

func formatTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// checkTouchable returns an error if the schedule can no longer be cancelled or moved.
func (s *Service) checkTouchable(v *View) error {
	switch v.State {
	case engine.ScheduleCancelled:
		return conflictError("cancelled", "the schedule was cancelled at "+formatTime(v.Touched))
	case engine.ScheduleReleased:
		return conflictError("too_late", "the schedule was released at its fire time, "+formatTime(v.FireAt))
	}
	// Read the time first, and then call Clock to check the clock. So if the clock is set wrongly
	// after the check, the time that was read is still right.
	now := time.Now()
	if err := s.cfg.Clock(); err != nil {
		return err // without a reliable clock it is unknown whether the schedule is due
	}
	if now.Add(s.cfg.Guard).UnixMilli() >= v.FireAt {
		return conflictError("too_late", fmt.Sprintf("the schedule is due at %s and can be cancelled or moved only until %s before that", formatTime(v.FireAt), s.cfg.Guard))
	}
	return nil
}

// storeHints stores the hints that make a release of v's generation check the head first.
func (s *Service) storeHints(ctx context.Context, v *View) error {
	shards, err := s.cfg.Shards()
	if err != nil {
		return err
	}
	var hs []engine.Hint
	seen := map[uint16]bool{}
	for c := range v.chunks() {
		shard := engine.ShardOf(c.TimerID(v.Gen), shards)
		if !seen[shard] {
			seen[shard] = true
			hs = append(hs, engine.Hint{Partition: engine.TimerPartition{Bucket: v.FireAt / 60_000, Shard: shard}, Base: v.Base})
		}
	}
	return s.cfg.Schedules.Hint(ctx, hs)
}

// swapResult is the result of swapHead.
type swapResult uint8

const (
	swapLost    swapResult = iota // the head of another call is stored
	swapWon                       // this call stored its head
	swapUnknown                   // this call may have stored its head; another call may have replaced it
)

// swapHead replaces the head from which v was read, and returns the stored head. If the store's
// answer is lost, swapHead reads the head to find out the result.
func (s *Service) swapHead(ctx context.Context, v *View, h engine.ScheduleHead) (engine.ScheduleHead, swapResult, error) {
	h.Base, h.At = v.Base, time.Now().UnixMilli()
	got, first, err := s.cfg.Schedules.Swap(ctx, v.version, h)
	switch {
	case err == nil && first:
		return got, swapWon, nil
	case err == nil:
		return got, swapLost, nil
	}
	// Another call may have stored an equal head. That head has the same effect, so the swap counts
	// as won.
	got, ok, again := s.cfg.Schedules.Head(ctx, v.Base)
	switch {
	case again != nil:
		return got, swapUnknown, errors.Join(err, again)
	case !ok && v.version == 0 || ok && got.Version == v.version:
		return got, swapUnknown, err // not stored, or not yet: the caller tries again
	case ok && got.Version > v.version+1:
		return got, swapUnknown, nil
	}
	h.Version = got.Version
	if got == h {
		return got, swapWon, nil
	}
	return got, swapLost, nil
}

// nextHead returns the head that a cancel or a move stores. The last move (MovedAt, MovedBy) is
// copied from v.
func (v *View) nextHead(state engine.ScheduleState, gen uint32, fireAt int64) engine.ScheduleHead {
	return engine.ScheduleHead{State: state, Gen: gen, FireAt: fireAt, MovedAt: v.MovedAt, MovedBy: v.MovedBy, Moves: v.moves}
}

// applyHead copies the fields of a stored head into v.
func (v *View) applyHead(h *engine.ScheduleHead) {
	v.State, v.Gen, v.FireAt, v.Touched, v.version = h.State, h.Gen, h.FireAt, h.At, h.Version
	v.MovedAt, v.MovedBy, v.moves = h.MovedAt, h.MovedBy, h.Moves
}

// Cancel cancels a schedule before it is due. If the schedule is cancelled already, Cancel changes
// nothing and returns nil. Cancel returns notify.KindConflict with the error code "too_late" if the
// schedule is due, or will be due within Guard.
//
// After Cancel has returned nil, no provider call for the schedule starts, not even after a crash.
func (s *Service) Cancel(ctx context.Context, base notify.Base) (View, error) {
	for range maxSwapTries {
		v, err := s.Get(ctx, base)
		if err != nil {
			return View{}, err
		}
		if v.State == engine.ScheduleCancelled {
			return v, nil
		}
		if err := s.checkTouchable(&v); err != nil {
			return v, err
		}
		if err := notify.BeforeAct(ctx); err != nil {
			return v, err
		}
		if err := s.storeHints(ctx, &v); err != nil {
			return v, err
		}
		killpoint.Hit("hinted-before-head")
		if err := s.checkTouchable(&v); err != nil { // check the clock again, now that the hint is stored
			return v, err
		}
		h, how, err := s.swapHead(ctx, &v, v.nextHead(engine.ScheduleCancelled, v.Gen, v.FireAt))
		if err != nil {
			return v, err
		}
		if how != swapWon {
			continue // safe to repeat: if the cancel was stored, the next Get returns it
		}
		killpoint.Hit("head-before-cancelled")
		s.recordCancelled(ctx, v)
		v.applyHead(&h)
		return v, nil
	}
	return View{}, errContended()
}

// recordCancelled records the outcome of a cancelled schedule at once, so that it is visible before
// the fire time. If that fails, the release records the outcome at the fire time.
func (s *Service) recordCancelled(ctx context.Context, v View) {
	ts, err := s.timerRows(ctx, &v)
	if err == nil && len(ts) > 0 {
		err = s.cfg.Ended(ctx, ts)
	}
	if err != nil {
		s.cfg.Logger.Warn("the outcome of a cancelled schedule could not be recorded now; it is recorded at its fire time", "base", v.Base.String(), "err", err)
	}
}

// Move changes the fire time of a schedule to newTime, in ms since 1970. A time in the past means
// now. movedBy is the name of the caller. Move returns notify.KindInvalid if the time is too far in
// the future or not before the notification expires. It returns notify.KindConflict with the error
// code "too_late", "cancelled" or "moved_too_often".
//
// After notify.KindUnavailable the schedule may or may not have been moved, so the caller must read
// it.
func (s *Service) Move(ctx context.Context, base notify.Base, newTime int64, movedBy string) (View, error) {
	if err := s.cfg.Gate(); err != nil {
		return View{}, err
	}
	now := time.Now()
	newTime = max(newTime, now.UnixMilli())
	if newTime-now.UnixMilli() > s.cfg.MaxDelay.Milliseconds() {
		return View{}, notify.Invalid("scheduled_too_far", "scheduled_at", fmt.Sprintf("must be at most %.0f days in the future", s.cfg.MaxDelay.Hours()/24))
	}
	for range maxSwapTries {
		v, err := s.Get(ctx, base)
		if err != nil {
			return View{}, err
		}
		if v.Expires != 0 && newTime >= v.Expires {
			return v, notify.Invalid("expires_before_scheduled", "scheduled_at", "must be before the notification expires, which is at "+formatTime(v.Expires))
		}
		if err := s.checkTouchable(&v); err != nil {
			return v, err
		}
		if v.FireAt == newTime {
			return v, nil
		}
		if int(v.moves) >= s.cfg.MaxMoves {
			return v, conflictError("moved_too_often", fmt.Sprintf("the schedule was moved %d times, which is the limit; cancel the schedule and make another one", v.moves))
		}
		if err := notify.BeforeAct(ctx); err != nil {
			return v, err
		}
		if err := s.storeHints(ctx, &v); err != nil {
			return v, err
		}
		if err := s.checkTouchable(&v); err != nil {
			return v, err
		}
		done, err := s.moveOnce(ctx, &v, newTime, movedBy)
		if err != nil || done {
			return v, err
		}
	}
	return View{}, errContended()
}

// moveOnce tries to move a schedule whose hints are stored, from the state in v. If another call
// changed the schedule first, the result done is false and there is no error.
func (s *Service) moveOnce(ctx context.Context, v *View, newTime int64, movedBy string) (done bool, err error) {
	gen := uint32(v.version + 1)
	old, copied, err := s.copyRows(ctx, v, gen, newTime)
	if err != nil || copied == nil {
		return false, err
	}
	killpoint.Hit("moved-before-head")
	next := v.nextHead(engine.SchedulePending, gen, newTime)
	next.MovedAt, next.MovedBy, next.Moves = time.Now().UnixMilli(), movedBy, v.moves+1
	h, how, err := s.swapHead(ctx, v, next)
	switch {
	case err != nil:
		return false, err
	case how == swapUnknown:
		// A second try could move the schedule again and so undo a later move by another call.
		return false, errContended()
	case how == swapLost:
		// Two moves to the same time write the same rows. If the winner has the same generation and
		// time, it needs these rows.
		if h.Gen != gen || h.FireAt != newTime {
			s.forgetRows(ctx, copied)
		}
		return false, nil
	}
	killpoint.Hit("moved-before-forgotten")
	s.forgetRows(ctx, old)
	v.applyHead(&h)
	return true, nil
}

// forgetRows removes rows that no longer count, so that repeated moves do not fill the disk. If
// that fails, the rows are removed when their minute is closed.
func (s *Service) forgetRows(ctx context.Context, ts []engine.Timer) {
	if s.cfg.Forget == nil || len(ts) == 0 {
		return
	}
	shards, err := s.cfg.Shards()
	if err == nil {
		err = s.cfg.Forget(ctx, shards, ts)
	}
	if err != nil {
		s.cfg.Logger.Warn("old rows of a moved schedule could not be removed; they stay until their minute is closed", "base", ts[0].Head.String(), "err", err)
	}
}

// copyRows stores the rows of v's generation again, as rows of the generation gen with the fire
// time newTime. It returns the old rows and the copies. If the schedule was moved in the meantime,
// it returns nil slices.
func (s *Service) copyRows(ctx context.Context, v *View, gen uint32, newTime int64) (old, copied []engine.Timer, err error) {
	if old, err = s.timerRows(ctx, v); err != nil {
		return nil, nil, err
	}
	accepted := uint32(0)
	copied = slices.Clone(old)
	for i := range copied {
		t := &copied[i]
		var e notify.Envelope
		if err := notify.DecodeEnvelope(t.Payload, &e); err != nil {
			return nil, nil, err
		}
		e.NotBefore = newTime
		t.FireAt, t.Gen, t.ID = newTime, gen, e.Chunk.TimerID(gen)
		t.Payload = notify.AppendEnvelope(nil, &e)
		accepted += e.Count
	}
	if accepted != v.Accepted {
		now, err := s.viewOf(ctx, v.Schedule)
		if err != nil || now.version != v.version {
			return nil, nil, err // another move has already removed the rows
		}
		// The schedule is stored, but not all of its timers are. Its request is still storing them,
		// or its process died before all were stored.
		return nil, nil, &notify.Error{Kind: notify.KindConflict, Code: "not_stored", Msg: "the request that creates the schedule has not been answered yet; repeat that request", RetryAfter: time.Second}
	}
	return old, copied, s.cfg.Park(ctx, copied)
}
