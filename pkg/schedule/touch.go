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

// maxSwapTries bounds the swaps of one call: other calls may move the same schedule at the same
// time.
const maxSwapTries = 8

// conflictError returns the error of a cancel or a move that is not allowed.
func conflictError(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

func formatTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// checkTouchable returns an error if a schedule can no longer be cancelled or moved.
func (s *Service) checkTouchable(v *View) error {
	switch v.State {
	case engine.ScheduleCancelled:
		return conflictError("cancelled", "it was cancelled at "+formatTime(v.Touched))
	case engine.ScheduleReleased:
		return conflictError("too_late", "it was released at its fire time, "+formatTime(v.FireAt))
	}
	now := time.Now() // read before Clock is called: if the clock is set after that, now is still right
	if err := s.cfg.Clock(); err != nil {
		return err // whether it is due cannot be known
	}
	if now.Add(s.cfg.Guard).UnixMilli() >= v.FireAt {
		return conflictError("too_late", fmt.Sprintf("it is due at %s and can be cancelled or moved only until %s before that", formatTime(v.FireAt), s.cfg.Guard))
	}
	return nil
}

// storeHints stores hints that make a release of v's generation ask the head first.
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
	swapLost    swapResult = iota // another call's head is stored
	swapWon                       // this call stored its head
	swapUnknown                   // this call may have stored its head, which was then replaced
)

// swapHead replaces the head that v was read from, and returns the stored head. If the answer of
// the store is lost, it reads the head to learn the result.
func (s *Service) swapHead(ctx context.Context, v *View, h engine.ScheduleHead) (engine.ScheduleHead, swapResult, error) {
	h.Base, h.At = v.Base, time.Now().UnixMilli()
	got, first, err := s.cfg.Schedules.Swap(ctx, v.version, h)
	switch {
	case err == nil && first:
		return got, swapWon, nil
	case err == nil:
		return got, swapLost, nil
	}
	// An equal head of another call says the same about the schedule, so it counts as won.
	got, ok, again := s.cfg.Schedules.Head(ctx, v.Base)
	switch {
	case again != nil:
		return got, swapUnknown, errors.Join(err, again)
	case !ok && v.version == 0 || ok && got.Version == v.version:
		return got, swapUnknown, err // not applied, or not yet: the caller tries again
	case ok && got.Version > v.version+1:
		return got, swapUnknown, nil
	}
	h.Version = got.Version
	if got == h {
		return got, swapWon, nil
	}
	return got, swapLost, nil
}

// nextHead returns v's head for a cancel or a move. It keeps when and by whom v was last moved.
func (v *View) nextHead(state engine.ScheduleState, gen uint32, fireAt int64) engine.ScheduleHead {
	return engine.ScheduleHead{State: state, Gen: gen, FireAt: fireAt, MovedAt: v.MovedAt, MovedBy: v.MovedBy, Moves: v.moves}
}

// applyHead sets v to what a stored head says.
func (v *View) applyHead(h *engine.ScheduleHead) {
	v.State, v.Gen, v.FireAt, v.Touched, v.version = h.State, h.Gen, h.FireAt, h.At, h.Version
	v.MovedAt, v.MovedBy, v.moves = h.MovedAt, h.MovedBy, h.Moves
}

// Cancel cancels a schedule before it is due. To cancel one twice is no error: the first cancel
// counts. It returns notify.KindConflict with code too_late if the schedule is due or nearly so.
//
// Once Cancel returned nil, no provider call for it starts, whatever happens.
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
		if err := s.checkTouchable(&v); err != nil { // by the clock after the hint is stored
			return v, err
		}
		h, how, err := s.swapHead(ctx, &v, v.nextHead(engine.ScheduleCancelled, v.Gen, v.FireAt))
		if err != nil {
			return v, err
		}
		if how != swapWon {
			continue // safe to retry: a stored cancel stays, and the next Get shows it
		}
		killpoint.Hit("head-before-cancelled")
		s.recordCancelled(ctx, v)
		v.applyHead(&h)
		return v, nil
	}
	return View{}, notify.Unavailable("schedule_contended", time.Second, nil)
}

// recordCancelled records the outcome of a cancelled schedule now, so that it is visible before the
// fire time. If that fails, the release records it at the fire time.
func (s *Service) recordCancelled(ctx context.Context, v View) {
	ts, err := s.timerRows(ctx, &v)
	if err == nil && len(ts) > 0 {
		err = s.cfg.Ended(ctx, ts)
	}
	if err != nil {
		s.cfg.Logger.Warn("the outcome of a cancelled schedule could not be recorded now; it is recorded at its fire time", "base", v.Base.String(), "err", err)
	}
}

// Move changes the fire time of a schedule to at, in ms since 1970. A time that has passed means
// now. by is the caller that asks for it. It returns notify.KindInvalid for a time too far ahead or
// not before the notification expires, and notify.KindConflict with the codes too_late, cancelled
// or moved_too_often.
//
// After notify.KindUnavailable the schedule may have been moved: the caller has to look.
func (s *Service) Move(ctx context.Context, base notify.Base, at int64, by string) (View, error) {
	if err := s.cfg.Gate(); err != nil {
		return View{}, err
	}
	now := time.Now()
	at = max(at, now.UnixMilli())
	if at-now.UnixMilli() > s.cfg.MaxDelay.Milliseconds() {
		return View{}, notify.Invalid("scheduled_too_far", "scheduled_at", fmt.Sprintf("lies more than %.0f days ahead", s.cfg.MaxDelay.Hours()/24))
	}
	for range maxSwapTries {
		v, err := s.Get(ctx, base)
		if err != nil {
			return View{}, err
		}
		if v.Expires != 0 && at >= v.Expires {
			return v, notify.Invalid("expires_before_scheduled", "scheduled_at", "must lie before the notification expires, "+formatTime(v.Expires))
		}
		if err := s.checkTouchable(&v); err != nil {
			return v, err
		}
		if v.FireAt == at {
			return v, nil
		}
		if int(v.moves) >= s.cfg.MaxMoves {
			return v, conflictError("moved_too_often", fmt.Sprintf("it was moved %d times, which is the limit; cancel it and schedule another", v.moves))
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
		done, err := s.moveOnce(ctx, &v, at, by)
		if err != nil || done {
			return v, err
		}
	}
	return View{}, notify.Unavailable("schedule_contended", time.Second, nil)
}

// moveOnce tries to move a hinted schedule from the state in v. done is false if another call was
// faster.
func (s *Service) moveOnce(ctx context.Context, v *View, at int64, by string) (done bool, err error) {
	gen := uint32(v.version + 1)
	old, copied, err := s.copyRows(ctx, v, gen, at)
	if err != nil || copied == nil {
		return false, err
	}
	killpoint.Hit("moved-before-head")
	next := v.nextHead(engine.SchedulePending, gen, at)
	next.MovedAt, next.MovedBy, next.Moves = time.Now().UnixMilli(), by, v.moves+1
	h, how, err := s.swapHead(ctx, v, next)
	switch {
	case err != nil:
		return false, err
	case how == swapUnknown:
		// A second try could move the schedule again, and undo a later move.
		return false, notify.Unavailable("schedule_contended", time.Second, nil)
	case how == swapLost:
		// Two moves to the same time write the same rows, so the winner needs these.
		if h.Gen != gen || h.FireAt != at {
			s.forgetRows(ctx, copied)
		}
		return false, nil
	}
	killpoint.Hit("moved-before-forgotten")
	s.forgetRows(ctx, old)
	v.applyHead(&h)
	return true, nil
}

// forgetRows removes rows that no longer count, so that repeated moves do not fill the disk. Rows
// that it fails to remove go when their minute is closed.
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

// copyRows stores the rows of v's generation again, as generation gen, due at at. It returns the
// old rows and the copies, or none if the schedule was moved in the meantime.
func (s *Service) copyRows(ctx context.Context, v *View, gen uint32, at int64) (old, copied []engine.Timer, err error) {
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
		e.NotBefore = at
		t.FireAt, t.Gen, t.ID = at, gen, e.Chunk.TimerID(gen)
		t.Payload = notify.AppendEnvelope(nil, &e)
		accepted += e.Count
	}
	if accepted != v.Accepted {
		now, err := s.viewOf(ctx, v.Schedule)
		if err != nil || now.version != v.version {
			return nil, nil, err // another move has removed the rows
		}
		// The schedule is stored, but its request has not stored the timers yet, or died before
		// that.
		return nil, nil, &notify.Error{Kind: notify.KindConflict, Code: "not_stored", Msg: "its request has not been answered yet; repeat that request", RetryAfter: time.Second}
	}
	return old, copied, s.cfg.Park(ctx, copied)
}
