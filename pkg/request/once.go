package request

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/internal/killpoint"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Basis is what decides the ids and times of a request besides its body. A
// reservation keeps it, so that a repeat makes the same records again.
type Basis struct {
	Base     notify.Base
	Accepted int64 // ms since 1970
	// Resumed: an earlier request with this key got as far as storing and was not
	// answered. Parts of it may be stored. Fire, Partitions and Block are that
	// request's then; else they are 0.
	Resumed    bool
	Fire       int64 // ms since 1970; 0: now
	Partitions uint16
	Block      uint32
}

// Plan is a checked request, ready to be stored.
type Plan interface {
	// Frozen returns what the reservation has to keep beside base and time (Basis).
	Frozen() (fire int64, partitions uint16, block uint32)
	// Store stores what it can, and releases the plan. final: the answer holds for
	// repeats too. touched: something may be stored although there is an error, so a
	// repeat has to meet the same ids.
	Store(ctx context.Context) (a Answer, final, touched bool, err error)
	// Release is called instead of Store where the plan is not needed.
	Release()
}

// Once answers requests, each once per Idempotency-Key: reserve the key, store,
// keep the answer. A repeat of a key gets the answer, or goes on with the work of a
// request that died. Its fields must not change after the first Do.
type Once struct {
	Idem    Idem
	Version uint16 // how this build makes records of a request; another version could not make the same ones
	Newer   error  // for a key that another version reserved; notify.KindUnavailable
	// Lease is how long a request may work on a key before a repeat takes over.
	Lease time.Duration
	// Keep is how long a key is kept at least; Grace how long after its fire time.
	Keep, Grace time.Duration
	// Owner names this process in leases. It must differ between processes, and
	// between starts of one.
	Owner string
	// Exclusive: no other process can have the keys open. What another owner left
	// unfinished is a dead one's, and a repeat takes it over at once.
	Exclusive bool
	Replayed  func(caller string) // a repeated key got its first answer; may be nil
	TakenOver func(caller string) // a repeated key went on with the work of a dead request; may be nil
	Hit       func(point string)  // nil: killpoint.Hit
	Logger    *slog.Logger

	seq atomic.Uint64 // of requests with a key: makes their owner unique
}

// How long to tell a caller to wait.
const (
	retryRunning = time.Second // another request works on the same key
	retryLater   = 2 * time.Second
	cleanup      = 2 * time.Second // for letting go of a key when the request is gone
)

// Do answers a request, once per key if it has one. make checks the body; it
// stores nothing, and makes the same plan of the same basis.
//
// From the reservation on, Do does not stop when the caller hangs up: a store call
// that is cut leaves open what was stored, and the stores have time limits of their
// own.
func (o *Once) Do(ctx context.Context, m *Meta, key engine.IdemKey, body []byte, plan func(Basis) (Plan, error)) (Answer, error) {
	now := time.Now()
	b := Basis{Base: notify.NewBase(now), Accepted: now.UnixMilli()}
	p, refusal := plan(b)
	ctx = context.WithoutCancel(ctx)
	if key.Key == "" {
		if refusal != nil {
			return Answer{}, refusal
		}
		a, _, _, err := p.Store(ctx)
		return a, err
	}
	// A refused body is looked up too: its first answer may have been given
	// while it was admissible (a deadline that has passed since).
	r := engine.Reservation{
		Key: key, Fingerprint: m.Fingerprint(body), Base: b.Base, Accepted: b.Accepted,
		Owner:      o.Owner + "/" + strconv.FormatUint(o.seq.Add(1), 10),
		LeaseUntil: now.Add(o.Lease).UnixMilli(), Expires: now.Add(o.Keep).UnixMilli(),
	}
	if refusal == nil {
		o.freeze(&r, p)
	}
	stored, won, err := o.Idem.Reserve(ctx, r, b.Accepted)
	switch {
	case err != nil && m.AtLeastOnce && refusal == nil && notify.KindOf(err) == notify.KindUnavailable:
		// Under the ids of the reservation: if it was stored all the same, a
		// repeat meets them again.
		a, _, _, err := p.Store(ctx)
		a.Unguarded = err == nil
		return a, err
	case won && err == nil && refusal == nil:
		return o.finish(ctx, r, b, p)
	case won && err == nil:
		o.forget(ctx, r)
		return Answer{}, refusal
	}
	if refusal == nil {
		p.Release()
	}
	if err != nil {
		return Answer{}, unavailable(err)
	}
	return o.repeat(ctx, stored, r, plan)
}

// freeze puts the basis of p into r: from here on something may be stored.
func (o *Once) freeze(r *engine.Reservation, p Plan) {
	r.Fire, r.Partitions, r.BlockSize = p.Frozen()
	r.Version = o.Version
	r.Expires = r.Accepted + max(o.Keep.Milliseconds(), r.Fire-r.Accepted+o.Grace.Milliseconds())
}

// repeat answers a request whose key is known; mine is what it wanted to reserve.
func (o *Once) repeat(ctx context.Context, stored, mine engine.Reservation, plan func(Basis) (Plan, error)) (Answer, error) {
	running := &notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", Field: "Idempotency-Key", Msg: "a request with this key is being worked on", RetryAfter: retryRunning}
	switch {
	case stored.Fingerprint != mine.Fingerprint:
		return Answer{}, &notify.Error{Kind: notify.KindMismatch, Code: "idempotency_mismatch", Field: "Idempotency-Key", Msg: "the key was used with another body"}
	case stored.Done:
		if o.Replayed != nil {
			o.Replayed(mine.Key.Caller)
		}
		return Answer{Status: stored.Status, Body: stored.Body, Replayed: true}, nil
	case o.held(&stored, mine.Accepted):
		return Answer{}, running
	}
	won, err := o.Idem.TakeOver(ctx, stored, mine.Owner, mine.LeaseUntil)
	if err != nil {
		return Answer{}, unavailable(err)
	}
	if !won {
		return Answer{}, running
	}
	if o.TakenOver != nil {
		o.TakenOver(mine.Key.Caller)
	}
	r := stored
	r.Owner, r.LeaseUntil = mine.Owner, mine.LeaseUntil
	b := Basis{Base: r.Base, Accepted: r.Accepted}
	if r.Version != 0 {
		if r.Version != o.Version {
			o.yield(ctx, r)
			return Answer{}, o.Newer
		}
		b.Resumed, b.Fire, b.Partitions, b.Block = true, r.Fire, r.Partitions, r.BlockSize
	}
	p, refusal := plan(b)
	if refusal != nil {
		o.letGo(ctx, r, b.Resumed)
		return Answer{}, refusal
	}
	if !b.Resumed {
		o.freeze(&r, p)
		if err := o.Idem.Freeze(ctx, r); err != nil {
			p.Release()
			return Answer{}, unavailable(err)
		}
	}
	return o.finish(ctx, r, b, p)
}

// held reports whether another request may be working on a reservation at now, in
// ms since 1970.
func (o *Once) held(r *engine.Reservation, now int64) bool {
	dead := o.Exclusive && !strings.HasPrefix(r.Owner, o.Owner+"/")
	return !dead && r.LeaseUntil > now
}

// finish stores the request that r was reserved for, and its answer.
func (o *Once) finish(ctx context.Context, r engine.Reservation, b Basis, p Plan) (Answer, error) {
	o.hit("request-reserved")
	a, final, touched, err := p.Store(ctx)
	switch {
	case err != nil:
		o.letGo(ctx, r, touched || b.Resumed)
		return Answer{}, err
	case !final:
		o.yield(ctx, r)
		return a, nil
	}
	o.hit("request-stored")
	// What was stored is durable, so the answer stands even if it cannot be kept:
	// a repeat then takes over and writes the same once more.
	if err := o.Idem.Finish(ctx, r.Key, a.Status, a.Body, r.Expires); err != nil {
		o.Logger.Warn("answer of an idempotency key not kept", slog.String("base", r.Base.String()), slog.Any("error", err))
		o.yield(ctx, r)
	}
	return a, nil
}

func (o *Once) hit(point string) {
	if o.Hit != nil {
		o.Hit(point)
		return
	}
	killpoint.Hit(point)
}

// letGo ends the work on a key that got no answer. Where something may be stored
// the reservation stays, so that a repeat gets the same ids.
func (o *Once) letGo(ctx context.Context, r engine.Reservation, touched bool) {
	if touched {
		o.yield(ctx, r)
		return
	}
	o.forget(ctx, r)
}

// yield ends the lease at once, so that a repeat need not wait for its end.
func (o *Once) yield(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	if _, err := o.Idem.TakeOver(ctx, r, r.Owner, time.Now().UnixMilli()); err != nil {
		o.Logger.Warn("lease of an idempotency key not given up", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

func (o *Once) forget(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	if err := o.Idem.Release(ctx, r); err != nil {
		o.Logger.Warn("idempotency key not released", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

// unavailable makes an error of the keys' store one that a caller may see.
func unavailable(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind != notify.KindInternal {
		return err
	}
	return notify.Unavailable("idempotency", retryLater, err)
}
