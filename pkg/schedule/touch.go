package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/fault"
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
	switch {
	case v.State == engine.ScheduleCancelled:
		return conflict("cancelled", "it was cancelled at "+stamp(v.Touched))
	case v.State == engine.ScheduleReleased:
		return conflict("too_late", "it was released at its time, "+stamp(v.FireAt))
	case time.Now().Add(s.cfg.Guard).UnixMilli() >= v.FireAt:
		return conflict("too_late", fmt.Sprintf("it is due at %s, and can be touched until %s before that", stamp(v.FireAt), s.cfg.Guard))
	}
	return nil
}

// hint tells whoever releases the rows of v's generation to ask the head.
func (s *Service) hint(ctx context.Context, v *View) error {
	var hs []engine.Hint
	seen := map[uint16]bool{}
	for c := range v.chunks() {
		shard := engine.ShardOf(c.TimerID(v.Gen), s.cfg.Shards)
		if !seen[shard] {
			seen[shard] = true
			hs = append(hs, engine.Hint{Partition: engine.TimerPartition{Minute: v.FireAt / 60_000, Shard: shard}, Base: v.Base})
		}
	}
	return s.cfg.Schedules.Hint(ctx, hs)
}

// swap moves the head from what v says. It returns the head as stored and
// whether this call put it there, also when the first answer was lost.
func (s *Service) swap(ctx context.Context, v *View, h engine.ScheduleHead) (engine.ScheduleHead, bool, error) {
	h.Base, h.At = v.Base, time.Now().UnixMilli()
	got, won, err := s.cfg.Schedules.Swap(ctx, v.version, h)
	if err == nil {
		return got, won, nil
	}
	// Unknown: the row says. (Somebody else's row may be equal; then it says the
	// same of the schedule.)
	got, ok, again := s.cfg.Schedules.Head(ctx, v.Base)
	if again != nil {
		return got, false, errors.Join(err, again)
	}
	if ok && got.Version == v.version+1 {
		h.Version = got.Version
		return got, got == h, nil
	}
	if !ok && v.version == 0 || ok && got.Version == v.version {
		return got, false, err // not applied, or not yet: the caller asks again
	}
	return got, false, nil
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
		if err := s.hint(ctx, &v); err != nil {
			return v, err
		}
		fault.Hit("hinted-before-head")
		if err := s.open(&v); err != nil { // by the clock after the hint
			return v, err
		}
		h, won, err := s.swap(ctx, &v, engine.ScheduleHead{State: engine.ScheduleCancelled, Gen: v.Gen, FireAt: v.FireAt})
		if err != nil {
			return v, err
		}
		if !won {
			continue
		}
		fault.Hit("head-before-cancelled")
		s.ended(ctx, v)
		v.State, v.Touched, v.version = h.State, h.At, h.Version
		return v, nil
	}
	return View{}, notify.Unavailable("schedule_contended", time.Second, nil)
}

// ended records the outcome of a cancelled schedule now, so that nobody waits
// for its fire time to see it. When that fails the release does it then.
func (s *Service) ended(ctx context.Context, v View) {
	ts, err := s.Timers(ctx, v)
	if err == nil && len(ts) > 0 {
		err = s.cfg.Ended(ctx, ts)
	}
	if err != nil {
		s.cfg.Logger.Warn("outcome of a cancelled schedule is recorded at its fire time", "base", v.Base.String(), "err", err)
	}
}

// Move makes a schedule due at another time, in ms since 1970; a time that has
// passed means now. Errors: notify.KindInvalid for a time too far ahead or not
// before the notification expires, notify.KindConflict (too_late, cancelled).
func (s *Service) Move(ctx context.Context, base notify.Base, at int64) (View, error) {
	now := time.Now()
	at = max(at, now.UnixMilli())
	if at-now.UnixMilli() > s.cfg.MaxDelay.Milliseconds() {
		return View{}, notify.Invalid("scheduled_too_far", "scheduled_at", "lies more than "+s.cfg.MaxDelay.String()+" ahead")
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
		if err := s.hint(ctx, &v); err != nil {
			return v, err
		}
		if err := s.open(&v); err != nil {
			return v, err
		}
		gen := uint32(v.version + 1)
		if err := s.copy(ctx, &v, gen, at); err != nil {
			return v, err
		}
		fault.Hit("moved-before-head")
		h, won, err := s.swap(ctx, &v, engine.ScheduleHead{State: engine.SchedulePending, Gen: gen, FireAt: at})
		if err != nil {
			return v, err
		}
		if won {
			v.State, v.Gen, v.FireAt, v.Touched, v.version = h.State, h.Gen, h.FireAt, h.At, h.Version
			return v, nil
		}
	}
	return View{}, notify.Unavailable("schedule_contended", time.Second, nil)
}

// copy stores the rows of v's generation once more, as those of gen, due at at.
func (s *Service) copy(ctx context.Context, v *View, gen uint32, at int64) error {
	ts, err := s.Timers(ctx, *v)
	if err != nil {
		return err
	}
	accepted := uint32(0)
	for i := range ts {
		var e notify.Envelope
		if err := notify.DecodeEnvelope(ts[i].Payload, &e); err != nil {
			return err
		}
		e.NotBefore = at
		ts[i].FireAt, ts[i].Gen, ts[i].ID = at, gen, e.Chunk.TimerID(gen)
		ts[i].Payload = notify.AppendEnvelope(nil, &e)
		accepted += e.Count
	}
	if accepted != v.Accepted {
		// Its request has stored the schedule and not yet, or never, the timers.
		return &notify.Error{Kind: notify.KindConflict, Code: "not_stored", Msg: "its request has not been answered yet; send that again", RetryAfter: time.Second}
	}
	return s.cfg.Park(ctx, ts)
}
