package trigger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// basis is everything that decides the ids and times of a request's triggers
// besides its body. A reservation freezes it.
type basis struct {
	base     notify.Base
	accepted int64 // ms since 1970
	// resumed: an earlier request with this key got as far as storing, and was
	// not answered. Some of its triggers may exist.
	resumed bool
}

// plan is a checked request, ready to be stored.
type plan struct {
	fire int64 // latest of its triggers
	// store stores what it can. touched: something may be stored although there
	// is an error; a repeat must meet the same ids.
	store func(ctx context.Context) (a Answer, touched bool, err error)
}

const (
	retryRunning = time.Second     // to wait for somebody who works on the same key
	cleanup      = 2 * time.Second // for letting go of a key when the request is gone
)

// once answers a request, once per key if it has one. mk checks the body; it
// stores nothing, and makes the same triggers of the same basis. The flow is
// that of pkg/intake: reserve, store, keep the answer; a repeat of a key gets
// the answer, or takes over the work of a request that died.
//
// From the reservation on it does not stop when the caller hangs up: a store
// call that is cut leaves it open what was stored.
func (s *Service) once(ctx context.Context, m *Meta, body []byte, mk func(basis) (*plan, error)) (Answer, error) {
	now := time.Now()
	b := basis{base: notify.NewBase(now), accepted: now.UnixMilli()}
	p, refusal := mk(b)
	ctx = context.WithoutCancel(ctx)
	if m.Key == "" {
		if refusal != nil {
			return Answer{}, refusal
		}
		a, _, err := p.store(ctx)
		return a, err
	}
	// A refused body is looked up too: its first answer may have been given
	// while it was admissible.
	r := engine.Reservation{
		Key:         engine.IdemKey{Caller: m.Caller, Route: m.Route, Key: m.Key},
		Fingerprint: fingerprint(m, body), Base: b.base, Accepted: b.accepted,
		Owner: s.owner(), LeaseUntil: now.Add(s.cfg.Lease).UnixMilli(), Expires: now.Add(s.cfg.Keep).UnixMilli(),
	}
	if refusal == nil {
		s.freeze(&r, p)
	}
	stored, won, err := s.cfg.Idem.Reserve(ctx, r, b.accepted)
	switch {
	case err != nil && m.AtLeastOnce && refusal == nil && notify.KindOf(err) == notify.KindUnavailable:
		a, _, err := p.store(ctx)
		a.Unguarded = err == nil
		return a, err
	case err != nil:
		return Answer{}, unavailable("idempotency", err)
	case !won:
		return s.repeat(ctx, stored, r, mk)
	case refusal != nil:
		s.forget(ctx, r)
		return Answer{}, refusal
	}
	return s.finish(ctx, r, b, p)
}

// freeze makes the reservation one whose triggers may exist.
func (s *Service) freeze(r *engine.Reservation, p *plan) {
	r.Fire, r.Version = p.fire, Version
	r.Partitions, r.BlockSize = 1, 1 // of no meaning here, and no engine's default
	r.Expires = r.Accepted + max(s.cfg.Keep.Milliseconds(), p.fire-r.Accepted+s.cfg.Grace.Milliseconds())
}

// repeat answers a request whose key is known; mine is what it wanted to store.
func (s *Service) repeat(ctx context.Context, stored, mine engine.Reservation, mk func(basis) (*plan, error)) (Answer, error) {
	running := &notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", Field: "Idempotency-Key", Msg: "a request with this key is being worked on", RetryAfter: retryRunning}
	switch {
	case stored.Fingerprint != mine.Fingerprint:
		return Answer{}, &notify.Error{Kind: notify.KindMismatch, Code: "idempotency_mismatch", Field: "Idempotency-Key", Msg: "the key was used with another body"}
	case stored.Done:
		return Answer{Status: stored.Status, Body: stored.Body, Replayed: true}, nil
	case stored.LeaseUntil > mine.Accepted:
		return Answer{}, running
	}
	won, err := s.cfg.Idem.TakeOver(ctx, stored, mine.Owner, mine.LeaseUntil)
	if err != nil {
		return Answer{}, unavailable("idempotency", err)
	}
	if !won {
		return Answer{}, running
	}
	r := stored
	r.Owner, r.LeaseUntil = mine.Owner, mine.LeaseUntil
	b := basis{base: r.Base, accepted: r.Accepted, resumed: r.Version != 0}
	if b.resumed && r.Version != Version {
		s.yield(ctx, r)
		return Answer{}, notify.Unavailable("trigger_version", retryLater, nil)
	}
	p, refusal := mk(b)
	if refusal != nil {
		s.letGo(ctx, r, b.resumed)
		return Answer{}, refusal
	}
	if !b.resumed {
		s.freeze(&r, p)
		if err := s.cfg.Idem.Freeze(ctx, r); err != nil {
			return Answer{}, unavailable("idempotency", err)
		}
	}
	return s.finish(ctx, r, b, p)
}

// finish stores the request that r was reserved for, and its answer.
func (s *Service) finish(ctx context.Context, r engine.Reservation, b basis, p *plan) (Answer, error) {
	s.cfg.hit("trigger-reserved")
	a, touched, err := p.store(ctx)
	if err != nil {
		s.letGo(ctx, r, touched || b.resumed)
		return Answer{}, err
	}
	s.cfg.hit("trigger-created-before-answer")
	// The triggers are durable, so the answer stands even if it cannot be kept:
	// a repeat then takes over and meets the same ones.
	if err := s.cfg.Idem.Finish(ctx, r.Key, a.Status, a.Body, r.Expires); err != nil {
		s.cfg.Logger.Warn("answer of an idempotency key not kept", slog.String("base", r.Base.String()), slog.Any("error", err))
		s.yield(ctx, r)
	}
	return a, nil
}

// letGo ends the work on a key that got no answer.
func (s *Service) letGo(ctx context.Context, r engine.Reservation, touched bool) {
	if touched {
		s.yield(ctx, r)
		return
	}
	s.forget(ctx, r)
}

// yield ends the lease at once, so that a repeat need not wait for its end.
func (s *Service) yield(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	if _, err := s.cfg.Idem.TakeOver(ctx, r, r.Owner, time.Now().UnixMilli()); err != nil {
		s.cfg.Logger.Warn("lease of an idempotency key not given up", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

func (s *Service) forget(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	if err := s.cfg.Idem.Release(ctx, r); err != nil {
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
