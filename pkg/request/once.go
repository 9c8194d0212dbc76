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

// Basis fixes the ids and times of a request, besides its body. The reservation keeps it, so that a
// repeat makes the same records again.
type Basis struct {
	Base     notify.Base
	Accepted int64 // ms since 1970
	// Resumed: an earlier request with this key began to store and was not answered. Parts of it
	// may be stored. Fire, Partitions and Block are then those of that request; otherwise they are
	// 0.
	Resumed    bool
	Fire       int64 // ms since 1970; 0: now
	Partitions uint16
	Block      uint32
}

// Plan is a request that was checked and can be stored.
type Plan interface {
	// Frozen returns what the reservation keeps besides base and accept time (Basis).
	Frozen() (fire int64, partitions uint16, block uint32)
	// Store stores as much as it can and releases the plan. final: repeats get this answer too.
	// touched: parts may be stored despite the error, so a repeat must get the same ids.
	Store(ctx context.Context) (a Answer, final, touched bool, err error)
	// Release is called instead of Store if the plan is not needed.
	Release()
}

// Once answers each request once per Idempotency-Key: it reserves the key, stores the request and
// keeps the answer. A repeat with the key gets that answer, or finishes the work of a request that
// died. The fields must not change after the first Do.
type Once struct {
	Idem    Idem
	Version uint16 // version of the records this build makes; builds of different versions cannot make the same records
	Newer   error  // returned for a key that another version reserved; notify.KindUnavailable
	// Lease is how long a request may work on a key before a repeat takes over.
	Lease time.Duration
	// Keep is how long a key is kept at least. Grace is how long it is kept after its fire time.
	Keep, Grace time.Duration
	// Owner names this process in leases. It must differ between processes and between starts of
	// one process.
	Owner string
	// Exclusive: no other process can have the keys open. A lease of another owner is then a dead
	// process's, and a repeat takes the key over at once.
	Exclusive bool
	Replayed  func(caller string) // called when a repeat got the first answer; may be nil
	TakenOver func(caller string) // called when a repeat took over the work of a dead request; may be nil
	Hit       func(point string)  // nil: killpoint.Hit
	Logger    *slog.Logger

	ownerSeq atomic.Uint64 // number of the next request with a key; makes its owner unique
}

// How long a caller is told to wait before it repeats, and the time limit of clean-up.
const (
	retryRunning   = time.Second // another request works on the same key
	retryLater     = 2 * time.Second
	cleanupTimeout = 2 * time.Second // limit for releasing a key after the request
)

// Do answers a request, once per key if it has one. plan checks the body. It stores nothing, and
// makes the same plan from the same basis.
//
// Once the key is reserved, Do does not stop when the caller hangs up: a store call that is cut off
// would leave open what was stored. The stores have time limits of their own.
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
	// Look up the key of a refused body too: the first answer may have been given while the body
	// was still valid (a deadline that has passed since).
	r := engine.Reservation{
		Key: key, Fingerprint: m.Fingerprint(body), Base: b.Base, Accepted: b.Accepted,
		Owner:      o.Owner + "/" + strconv.FormatUint(o.ownerSeq.Add(1), 10),
		LeaseUntil: now.Add(o.Lease).UnixMilli(), Expires: now.Add(o.Keep).UnixMilli(),
	}
	if refusal == nil {
		o.freezeBasis(&r, p)
	}
	stored, won, err := o.Idem.Reserve(ctx, r, b.Accepted)
	switch {
	case err != nil && m.AtLeastOnce && refusal == nil && notify.KindOf(err) == notify.KindUnavailable:
		// Store under the ids of the reservation: the failed Reserve may have stored it, and then a
		// repeat uses the same ids.
		a, _, _, err := p.Store(ctx)
		a.Unguarded = err == nil
		return a, err
	case won && err == nil && refusal == nil:
		return o.storeAndFinish(ctx, r, b, p)
	case won && err == nil:
		o.releaseKey(ctx, r)
		return Answer{}, refusal
	}
	if refusal == nil {
		p.Release()
	}
	if err != nil {
		return Answer{}, asUnavailable(err)
	}
	return o.answerRepeat(ctx, stored, r, plan)
}

// freezeBasis copies the basis of p into r. From here on parts of the request may be stored.
func (o *Once) freezeBasis(r *engine.Reservation, p Plan) {
	r.Fire, r.Partitions, r.BlockSize = p.Frozen()
	r.Version = o.Version
	r.Expires = r.Accepted + max(o.Keep.Milliseconds(), r.Fire-r.Accepted+o.Grace.Milliseconds())
}

// answerRepeat answers a request whose key is already reserved. stored is that reservation, mine
// the one that this request tried to store.
func (o *Once) answerRepeat(ctx context.Context, stored, mine engine.Reservation, plan func(Basis) (Plan, error)) (Answer, error) {
	running := &notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", Field: "Idempotency-Key", Msg: "a request with this key is being worked on", RetryAfter: retryRunning}
	switch {
	case stored.Fingerprint != mine.Fingerprint:
		return Answer{}, &notify.Error{Kind: notify.KindMismatch, Code: "idempotency_mismatch", Field: "Idempotency-Key", Msg: "the key was used with another body"}
	case stored.Done:
		if o.Replayed != nil {
			o.Replayed(mine.Key.Caller)
		}
		return Answer{Status: stored.Status, Body: stored.Body, Replayed: true}, nil
	case o.heldByOther(&stored, mine.Accepted):
		return Answer{}, running
	}
	won, err := o.Idem.TakeOver(ctx, stored, mine.Owner, mine.LeaseUntil)
	if err != nil {
		return Answer{}, asUnavailable(err)
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
			o.endLease(ctx, r)
			return Answer{}, o.Newer
		}
		b.Resumed, b.Fire, b.Partitions, b.Block = true, r.Fire, r.Partitions, r.BlockSize
	}
	p, refusal := plan(b)
	if refusal != nil {
		o.releaseOrKeep(ctx, r, b.Resumed)
		return Answer{}, refusal
	}
	if !b.Resumed {
		o.freezeBasis(&r, p)
		if err := o.Idem.Freeze(ctx, r); err != nil {
			p.Release()
			return Answer{}, asUnavailable(err)
		}
	}
	return o.storeAndFinish(ctx, r, b, p)
}

// heldByOther reports whether another request may be working on a reservation at now, in ms since
// 1970.
func (o *Once) heldByOther(r *engine.Reservation, now int64) bool {
	dead := o.Exclusive && !strings.HasPrefix(r.Owner, o.Owner+"/")
	return !dead && r.LeaseUntil > now
}

// storeAndFinish stores the request for which r was reserved, and then its answer.
func (o *Once) storeAndFinish(ctx context.Context, r engine.Reservation, b Basis, p Plan) (Answer, error) {
	o.hitKillpoint("request-reserved")
	a, final, touched, err := p.Store(ctx)
	switch {
	case err != nil:
		o.releaseOrKeep(ctx, r, touched || b.Resumed)
		return Answer{}, err
	case !final:
		o.endLease(ctx, r)
		return a, nil
	}
	o.hitKillpoint("request-stored")
	// The request is durable, so the answer stands even if it cannot be kept: a repeat then takes
	// the key over and writes the same records again.
	if err := o.Idem.Finish(ctx, r.Key, a.Status, a.Body, r.Expires); err != nil {
		o.Logger.Warn("the answer of an idempotency key was not kept; a repeat stores the request again", slog.String("base", r.Base.String()), slog.Any("error", err))
		o.endLease(ctx, r)
	}
	return a, nil
}

func (o *Once) hitKillpoint(point string) {
	if o.Hit != nil {
		o.Hit(point)
		return
	}
	killpoint.Hit(point)
}

// releaseOrKeep ends the work on a key that got no answer. If parts of the request may be stored
// (touched), the reservation stays, so that a repeat gets the same ids.
func (o *Once) releaseOrKeep(ctx context.Context, r engine.Reservation, touched bool) {
	if touched {
		o.endLease(ctx, r)
		return
	}
	o.releaseKey(ctx, r)
}

// endLease ends the lease at once, so that a repeat need not wait until it expires.
func (o *Once) endLease(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if _, err := o.Idem.TakeOver(ctx, r, r.Owner, time.Now().UnixMilli()); err != nil {
		o.Logger.Warn("the lease of an idempotency key was not ended; repeats wait until it expires", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

func (o *Once) releaseKey(ctx context.Context, r engine.Reservation) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if err := o.Idem.Release(ctx, r); err != nil {
		o.Logger.Warn("idempotency key not released", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

// asUnavailable turns an internal error of the key store into one that a caller may see.
func asUnavailable(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind != notify.KindInternal {
		return err
	}
	return notify.Unavailable("idempotency", retryLater, err)
}
