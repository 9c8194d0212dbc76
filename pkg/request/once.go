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

// Basis contains the ids and times of a request's records. Together with the body it determines the
// records. The reservation stores the Basis, so that a repeat of the request makes the same records
// again.
type Basis struct {
	Base     notify.Base
	Accepted int64 // ms since 1970
	// Resumed means that an earlier request with this key began to store its records and was not
	// answered. Some of its records may already be stored. If Resumed is true, Fire, Partitions and
	// Block are the values of the earlier request. Otherwise they are 0.
	Resumed    bool
	Fire       int64 // ms since 1970; 0: now
	Partitions uint16
	Block      uint32
}

// Plan is a request that was checked and can be stored.
type Plan interface {
	// Frozen returns the values that the reservation stores besides the base and the accept time:
	// fire time, number of partitions and block size (see Basis).
	Frozen() (fire int64, partitions uint16, block uint32)
	// Store stores as much as it can and releases the plan. If the result final is true, repeats of
	// the request get the same answer. If err is not nil and the result touched is true, some
	// records may already be stored, so a repeat must use the same ids.
	Store(ctx context.Context) (answer Answer, final, touched bool, err error)
	// Release releases the plan without storing it. Each plan gets one call: Store or Release.
	Release()
}

// Once handles requests with an Idempotency-Key, so that repeats of a request are not carried out
// again. It reserves the key, stores the request and stores the answer. A repeat with the same key
// gets the stored answer. If the process of the first request died, the repeat completes the
// request. The fields must not change after the first Do.
type Once struct {
	Idem Idem
	// Version is the version of the records that this build makes. Builds with different versions
	// cannot make the same records.
	Version uint16
	// Newer is the error for a key that a build of another version reserved. Its kind is
	// notify.KindUnavailable.
	Newer error
	// Lease is how long a request may work on a key before a repeat takes over the key.
	Lease time.Duration
	// Keep is the minimum time for which a key is stored. Grace is how long a key is stored after
	// the fire time of its request.
	Keep, Grace time.Duration
	// Owner is the name of this process in leases. It must differ between processes. It must also
	// differ between two starts of one process.
	Owner string
	// Exclusive means that no other process can use the key store while this process runs. So a
	// lease of another owner belongs to a dead process, and a repeat takes over the key at once.
	Exclusive bool
	Replayed  func(caller string) // called when a repeat got the stored answer; may be nil
	TakenOver func(caller string) // called when a repeat took over the key of a request that was not answered; may be nil
	Hit       func(point string)  // nil: killpoint.Hit
	Logger    *slog.Logger

	// ownerSeq is the number of the latest request with a key. It makes the owner of each
	// reservation unique.
	ownerSeq atomic.Uint64
}

// How long a caller must wait before it repeats, and the time limit of cleanup.
const (
	retryRunning   = time.Second // another request works on the same key
	retryLater     = 2 * time.Second
	cleanupTimeout = 2 * time.Second // time limit for releasing a key after the request
)

// Do carries out a request and returns its answer. With a key, Do returns the stored answer to a
// repeat. The function plan checks the body and stores nothing. For the same Basis it must return
// the same Plan.
//
// Do does not stop when the caller disconnects. If it stopped while it stores, nobody would know
// what is stored. The stores have their own time limits.
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
	// Look up the key even if the body is refused now. This may be a repeat of a request whose body
	// was valid at that time, for example because its deadline had not passed. Such a repeat gets
	// the first answer.
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
		// Store the request under the ids of r, because Reserve may have stored r although it
		// failed. Then a repeat uses the same ids.
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

// freezeBasis copies the values of p.Frozen into r. A stored reservation with these values means
// that some records of its request may already be stored too.
func (o *Once) freezeBasis(r *engine.Reservation, p Plan) {
	r.Fire, r.Partitions, r.BlockSize = p.Frozen()
	r.Version = o.Version
	r.Expires = r.Accepted + max(o.Keep.Milliseconds(), r.Fire-r.Accepted+o.Grace.Milliseconds())
}

// answerRepeat answers a request whose key is already reserved. The parameter stored is the
// reservation that the store has, and mine is the reservation that this request tried to store.
func (o *Once) answerRepeat(ctx context.Context, stored, mine engine.Reservation, plan func(Basis) (Plan, error)) (Answer, error) {
	running := &notify.Error{Kind: notify.KindConflict, Code: "idempotency_running", Field: "Idempotency-Key", Msg: "another request with this key is still running", RetryAfter: retryRunning}
	switch {
	case stored.Fingerprint != mine.Fingerprint:
		return Answer{}, &notify.Error{Kind: notify.KindMismatch, Code: "idempotency_mismatch", Field: "Idempotency-Key", Msg: "the key was already used with another body"}
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

// heldByOther reports whether another request may still be working on the reservation r. nowMs is
// in ms since 1970.
func (o *Once) heldByOther(r *engine.Reservation, nowMs int64) bool {
	dead := o.Exclusive && !strings.HasPrefix(r.Owner, o.Owner+"/")
	return !dead && r.LeaseUntil > nowMs
}

// storeAndFinish stores the request of reservation r, and then its answer.
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
	// The request is durable, so the caller gets the answer even if the answer cannot be stored. A
	// repeat then takes over the key and writes the same records again.
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

// releaseOrKeep ends the work on a key whose request got no answer. If the parameter touched is
// true, some records of the request may already be stored. Then the reservation stays, so that a
// repeat uses the same ids.
func (o *Once) releaseOrKeep(ctx context.Context, r engine.Reservation, touched bool) {
	if touched {
		o.endLease(ctx, r)
		return
	}
	o.releaseKey(ctx, r)
}

// endLease ends the lease at once. Otherwise a repeat would wait until the lease expires.
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
		o.Logger.Warn("the idempotency key was not released; repeats wait until its lease expires", slog.String("base", r.Base.String()), slog.Any("error", err))
	}
}

// asUnavailable replaces an internal error of the key store by an error that a caller may see.
func asUnavailable(err error) error {
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind != notify.KindInternal {
		return err
	}
	return notify.Unavailable("idempotency", retryLater, err)
}
