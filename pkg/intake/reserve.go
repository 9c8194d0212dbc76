package intake

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/fault"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/stream"
)

// layout is everything that decides the ids and records of a request besides
// its body. A reservation freezes it.
type layout struct {
	base       notify.Base
	accepted   int64  // ms since 1970
	fire       int64  // of a resumed request
	partitions uint16 // 0: of the topic, now; of a batch: its switches
	block      uint32 // 0: the first that fits
	resumed    bool   // the request was admitted before; parts of it may be in the log
}

// plan is a checked request, ready to be stored.
type plan struct {
	fire      int64 // latest of its notifications; 0: now
	parts     uint16
	block     uint32
	recs      []stream.Record
	classes   []class // of recs
	timers    []engine.Timer
	schedules []engine.Schedule // of timers
	campaign  *campaignPart

	// answer is called once, when what could be stored is stored; failed says
	// of each class why it could not.
	answer func(failed *failures) (a Answer, final bool, err error)
	// release gives buffers back; called only when nothing refers to them.
	// May be left out.
	done func()
}

func (p *plan) release() {
	if p.done != nil {
		p.done()
	}
}

// maker checks the body of a request under a layout. Nothing is stored by it,
// and the same layout makes the same plan, byte by byte.
type maker func(l layout) (*plan, error)

// How long to tell a caller to wait.
const (
	retryRunning     = time.Second // somebody works on the same key
	retryUnavailable = 2 * time.Second
	cleanup          = 2 * time.Second // for letting go of a key when the request is gone
)

// handle answers a request, once per key if it has one.
//
// From the reservation on it does not stop when the caller hangs up: the stores
// have time limits of their own, and a cancelled append would look as if the
// log were away.
func (s *Service) handle(ctx context.Context, m *Meta, key engine.IdemKey, body []byte, mk maker) (Answer, error) {
	now := time.Now()
	l := layout{base: notify.NewBase(now), accepted: now.UnixMilli()}
	p, refusal := mk(l)
	if key.Key == "" {
		if refusal != nil {
			return Answer{}, refusal
		}
		a, _, _, err := s.store(context.WithoutCancel(ctx), m, l, p)
		return a, err
	}
	// A refused body is looked up too: its first answer may have been given
	// while it was admissible (a deadline that has passed since).
	r := engine.Reservation{
		Key: key, Fingerprint: fingerprint(m, body), Base: l.base, Accepted: l.accepted,
		Owner: s.owner(), LeaseUntil: now.Add(s.cfg.Lease).UnixMilli(), Expires: now.Add(s.cfg.Keep).UnixMilli(),
	}
	if refusal == nil {
		freeze(&r, p, s.cfg)
	}
	ctx = context.WithoutCancel(ctx)
	stored, won, err := s.st.Idem.Reserve(ctx, r, l.accepted)
	switch {
	case err != nil && m.AtLeastOnce && refusal == nil && notify.KindOf(err) == notify.KindUnavailable:
		// Under the ids of the reservation: if it was stored all the same, a
		// repeat meets them again.
		a, _, _, err := s.store(ctx, m, l, p)
		a.Unguarded = err == nil
		return a, err
	case err != nil:
		if p != nil {
			p.release()
		}
		return Answer{}, err
	case !won:
		if p != nil {
			p.release()
		}
		return s.repeat(ctx, m, stored, r, mk)
	case refusal != nil:
		s.forget(ctx, r)
		return Answer{}, refusal
	}
	return s.finish(ctx, m, r, l, p)
}

// freeze puts the layout of p into r.
func freeze(r *engine.Reservation, p *plan, cfg Config) {
	r.Fire, r.Partitions, r.BlockSize, r.Version = p.fire, p.parts, p.block, Version
	keep := max(cfg.Keep.Milliseconds(), p.fire-r.Accepted+cfg.Grace.Milliseconds())
	r.Expires = r.Accepted + keep
}

// frozen reports whether the request was admitted and may have been appended.
func frozen(r *engine.Reservation) bool { return r.Version != 0 }

// repeat answers a request whose key is known; mine is what it wanted to store.
func (s *Service) repeat(ctx context.Context, m *Meta, stored, mine engine.Reservation, mk maker) (Answer, error) {
	switch {
	case stored.Fingerprint != mine.Fingerprint:
		e := &notify.Error{Kind: notify.KindMismatch, Code: "idempotency_mismatch", Field: "Idempotency-Key", Msg: "the key was used with another body"}
		if mine.Key.Route == campaignRoute { // whatever key came with it
			e.Field, e.Msg = "part", "this part of the campaign was sent with another body"
		}
		return Answer{}, e
	case stored.Done:
		s.cfg.Events.replayed(m.Caller)
		return Answer{Status: stored.Status, Body: stored.Body, Replayed: true}, nil
	case s.held(&stored, mine.Accepted):
		return Answer{}, running()
	}
	won, err := s.st.Idem.TakeOver(ctx, stored, mine.Owner, mine.LeaseUntil)
	if err != nil {
		return Answer{}, err
	}
	if !won {
		return Answer{}, running()
	}
	s.cfg.Events.takenOver(m.Caller)
	r := stored
	r.Owner, r.LeaseUntil = mine.Owner, mine.LeaseUntil
	l := layout{base: r.Base, accepted: r.Accepted}
	if frozen(&r) {
		if r.Version != Version {
			s.yield(ctx, r)
			return Answer{}, notify.Unavailable("intake_version", retryUnavailable, nil)
		}
		l.fire, l.partitions, l.block, l.resumed = r.Fire, r.Partitions, r.BlockSize, true
	}
	p, refusal := mk(l)
	if refusal != nil {
		s.letGo(ctx, r, l.resumed)
		return Answer{}, refusal
	}
	if !l.resumed {
		freeze(&r, p, s.cfg)
		if err := s.st.Idem.Freeze(ctx, r); err != nil {
			p.release()
			return Answer{}, err
		}
	}
	return s.finish(ctx, m, r, l, p)
}

func running() error {
	return &notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", Field: "Idempotency-Key", Msg: "a request with this key is being worked on", RetryAfter: retryRunning}
}

// finish stores the request that r was reserved for, and its answer.
func (s *Service) finish(ctx context.Context, m *Meta, r engine.Reservation, l layout, p *plan) (Answer, error) {
	fault.Hit("reserved-before-append")
	a, final, touched, err := s.store(ctx, m, l, p)
	switch {
	case err != nil:
		s.letGo(ctx, r, touched || l.resumed)
		return Answer{}, err
	case !final:
		s.yield(ctx, r)
		return a, nil
	}
	fault.Hit("appended-before-answer")
	// The records are durable, so the answer stands even if it cannot be kept:
	// a repeat then takes over and writes the same records once more.
	if err := s.st.Idem.Finish(ctx, r.Key, a.Status, a.Body, r.Expires); err != nil {
		s.cfg.Logger.Warn("answer of an idempotency key not kept", slog.String("base", r.Base.String()), slog.Any("error", err))
		s.yield(ctx, r)
	}
	return a, nil
}

// letGo ends the work on a key that got no answer. Where something may have
// been appended the reservation stays, so that a repeat gets the same ids.
func (s *Service) letGo(ctx context.Context, r engine.Reservation, touched bool) {
	if touched {
		s.yield(ctx, r)
		return
	}
	s.forget(ctx, r)
}

// yield ends the lease at once, so that a repeat need not wait for its end.
func (s *Service) yield(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if _, err := s.st.Idem.TakeOver(ctx, r, r.Owner, time.Now().UnixMilli()); err != nil {
		s.cfg.Logger.Warn("lease of an idempotency key not given up", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

func (s *Service) forget(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if err := s.st.Idem.Release(ctx, r); err != nil {
		s.cfg.Logger.Warn("idempotency key not released", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

// fingerprint identifies a request's content: what it is, and where it goes.
func fingerprint(m *Meta, body []byte) (sum [32]byte) {
	h := sha256.New()
	var n [8]byte
	for _, s := range [...]string{media(m.ContentType), m.Route} {
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	h.Write(body)
	h.Sum(sum[:0])
	return sum
}
