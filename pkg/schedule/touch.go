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

// maxTries bounds the swaps of one call: others move the same schedule at the
// same time.
const maxTries = 8

// conflict is what forbids a cancel or a move.
func conflict(code, msg string) error {
	return &notify.Error{Kind: notify.KindConflict, Code: code, Msg: msg}
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// open says whether a schedule can still be touched.
func (s *Service) open(v *View) error {
	switch v.State {
	case engine.ScheduleCancelled:
		return conflict("cancelled", "it was cancelled at "+stamp(v.Touched))
	case engine.ScheduleReleased:
		return conflict("too_late", "it was released at its time, "+stamp(v.FireAt))
	}
	now := time.Now() // before Clock is asked: a clock that is set after that is no matter
	if err := s.cfg.Clock(); err != nil {
		return err // whether it is due cannot be told
	}
	if now.Add(s.cfg.Guard).UnixMilli() >= v.FireAt {
		return conflict("too_late", fmt.Sprintf("it is due at %s, and can be touched until %s before that", stamp(v.FireAt), s.cfg.Guard))
	}
	return nil
}

// hint tells whoever releases the rows of v's generation to ask the head.
func (s *Service) hint(ctx context.Context, v *View) error {
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

// swapped is what is known after a swap.
type swapped uint8

const (
	lost    swapped = iota // somebody else's head is there
	won                    // this call put it there
	unknown                // it may have been there, and was replaced meanwhile
)

// swap moves the head from what v says, and returns it as it is stored. An
// answer that was lost is looked for in the row.
func (s *Service) swap(ctx context.Context, v *View, h engine.ScheduleHead) (engine.ScheduleHead, swapped, error) {
	h.Base, h.At = v.Base, time.Now().UnixMilli()
	got, first, err := s.cfg.Schedules.Swap(ctx, v.version, h)
	switch {
	case err == nil && first:
		return got, won, nil
	case err == nil:
		return got, lost, nil
	}
	// (Somebody else's row may be equal; then it says the same of the schedule.)
	got, ok, again := s.cfg.Schedules.Head(ctx, v.Base)
	switch {
	case again != nil:
		return got, unknown, errors.Join(err, again)
	case !ok && v.version == 0 || ok && got.Version == v.version:
		return got, unknown, err // not applied, or not yet: the caller asks again
	case ok && got.Version > v.version+1:
		return got, unknown, nil
	}
	h.Version = got.Version
	if got == h {
		return got, won, nil
	}
	return got, lost, nil
}

// touched is the head of v after a cancel or a move, with who moved it.
func (v *View) touched(state engine.ScheduleState, gen uint32, fireAt int64) engine.ScheduleHead {
	return engine.ScheduleHead{State: state, Gen: gen, FireAt: fireAt, MovedAt: v.MovedAt, MovedBy: v.MovedBy, Moves: v.moves}
}

// take makes v what a head that was swapped says.
func (v *View) take(h *engine.ScheduleHead) {
	v.State, v.Gen, v.FireAt, v.Touched, v.version = h.State, h.Gen, h.FireAt, h.At, h.Version
	v.MovedAt, v.MovedBy, v.moves = h.MovedAt, h.MovedBy, h.Moves
}

// Cancel ends a schedule before it is due. A cancelled one is no error: the
// first cancel counts. notify.KindConflict with code too_late when it is due or
// nearly so.
//
// Once Cancel returned nil no call for it starts, whatever happens.
func (s *Service) Cancel(ctx context.Context, base notify.Base) (View, error) {
	for range maxTries {
		v, err := s.Get(ctx, base)
		if err != nil {
			return View{}, err
		}
		if v.State == engine.ScheduleCancelled {
			return v, nil
		}
		if err := s.open(&v); err != nil {
			return v, err
		}
		if err := notify.BeforeAct(ctx); err != nil {
			return v, err
		}
		if err := s.hint(ctx, &v); err != nil {
			return v, err
		}
		killpoint.Hit("hinted-before-head")
		if err := s.open(&v); err != nil { // by the clock after the hint
			return v, err
		}
		h, how, err := s.swap(ctx, &v, v.touched(engine.ScheduleCancelled, v.Gen, v.FireAt))
		if err != nil {
			return v, err
		}
		if how != won {
			continue // a cancel that was there would still be
		}
		killpoint.Hit("head-before-cancelled")
		s.ended(ctx, v)
		v.take(&h)
		return v, nil
	}
	return View{}, notify.Unavailable("schedule_contended", time.Second, nil)
}

// ended records the outcome of a cancelled schedule now, so that nobody waits
// for its fire time to see it. When that fails the release does it then.
func (s *Service) ended(ctx context.Context, v View) {
	ts, err := s.rows(ctx, &v)
	if err == nil && len(ts) > 0 {
		err = s.cfg.Ended(ctx, ts)
	}
	if err != nil {
		s.cfg.Logger.Warn("outcome of a cancelled schedule is recorded at its fire time", "base", v.Base.String(), "err", err)
	}
}

// Move makes a schedule due at another time, in ms since 1970; a time that has
// passed means now. by is the caller that asks for it. Errors:
// notify.KindInvalid for a time too far ahead or not before the notification
// expires, notify.KindConflict (too_late, cancelled, moved_too_often).
//
// After notify.KindUnavailable it may have been moved: the caller looks.
func (s *Service) Move(ctx context.Context, base notify.Base, at int64, by string) (View, error) {
	if err := s.cfg.Gate(); err != nil {
		return View{}, err
	}
	now := time.Now()
	at = max(at, now.UnixMilli())
	if at-now.UnixMilli() > s.cfg.MaxDelay.Milliseconds() {
		return View{}, notify.Invalid("scheduled_too_far", "scheduled_at", fmt.Sprintf("lies more than %.0f days ahead", s.cfg.MaxDelay.Hours()/24))
	}
	for range maxTries {
		v, err := s.Get(ctx, base)
		if err != nil {
			return View{}, err
		}
		if v.Expires != 0 && at >= v.Expires {
			return v, notify.Invalid("expires_before_scheduled", "scheduled_at", "must lie before the notification expires, "+stamp(v.Expires))
		}
		if err := s.open(&v); err != nil {
			return v, err
		}
		if v.FireAt == at {
			return v, nil
		}
		if int(v.moves) >= s.cfg.MaxMoves {
			return v, conflict("moved_too_often", fmt.Sprintf("it was moved %d times, which is as often as it may be; cancel it and schedule another", v.moves))
		}
		if err := notify.BeforeAct(ctx); err != nil {
			return v, err
		}
		if err := s.hint(ctx, &v); err != nil {
			return v, err
		}
		if err := s.open(&v); err != nil {
			return v, err
		}
		done, err := s.moveOnce(ctx, &v, at, by)
		if err != nil || done {
			return v, err
		}
	}
	return View{}, notify.Unavailable("schedule_contended", time.Second, nil)
}

// moveOnce tries to move a hinted schedule from what v says; it is not done when
// somebody else was faster.
func (s *Service) moveOnce(ctx context.Context, v *View, at int64, by string) (done bool, err error) {
	gen := uint32(v.version + 1)
	old, copied, err := s.copy(ctx, v, gen, at)
	if err != nil || copied == nil {
		return false, err
	}
	killpoint.Hit("moved-before-head")
	next := v.touched(engine.SchedulePending, gen, at)
	next.MovedAt, next.MovedBy, next.Moves = time.Now().UnixMilli(), by, v.moves+1
	h, how, err := s.swap(ctx, v, next)
	switch {
	case err != nil:
		return false, err
	case how == unknown:
		// Trying again could move it a second time, over what came after.
		return false, notify.Unavailable("schedule_contended", time.Second, nil)
	case how == lost:
		// Of two moves to the same time the rows are the same ones.
		if h.Gen != gen || h.FireAt != at {
			s.forget(ctx, copied)
		}
		return false, nil
	}
	killpoint.Hit("moved-before-forgotten")
	s.forget(ctx, old)
	v.take(&h)
	return true, nil
}

// forget removes rows that count no more, so that moving again and again does
// not fill the disk. Those that stay go with their minute.
func (s *Service) forget(ctx context.Context, ts []engine.Timer) {
	if s.cfg.Forget == nil || len(ts) == 0 {
		return
	}
	shards, err := s.cfg.Shards()
	if err == nil {
		err = s.cfg.Forget(ctx, shards, ts)
	}
	if err != nil {
		s.cfg.Logger.Warn("rows of a moved schedule stay until their minute is closed", "base", ts[0].Head.String(), "err", err)
	}
}

// copy stores the rows of v's generation once more, as those of gen, due at at,
// and returns both. It returns none where the schedule has been moved meanwhile.
func (s *Service) copy(ctx context.Context, v *View, gen uint32, at int64) (old, copied []engine.Timer, err error) {
	if old, err = s.rows(ctx, v); err != nil {
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
		now, err := s.view(ctx, v.Schedule)
		if err != nil || now.version != v.version {
			return nil, nil, err // another move has forgotten them
		}
		// Its request has stored the schedule and not yet, or never, the timers.
		return nil, nil, &notify.Error{Kind: notify.KindConflict, Code: "not_stored", Msg: "its request has not been answered yet; send that again", RetryAfter: time.Second}
	}
	return old, copied, s.cfg.Park(ctx, copied)
}
