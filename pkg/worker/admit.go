package worker

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Rated is a Provider that limits its own rate or allows only few concurrent calls. The worker
// claims a window for a Rated provider only after the provider has given a permit. The window has at
// most as many receivers as the permit has messages.
type Rated interface {
	Provider
	// Admit waits until a call with up to n messages of a category may start. The category otp goes
	// first. Admit returns a permit for as many messages as may be sent now, at least 1. If
	// the provider's account is blocked, Admit returns a *notify.Error with RetryAfter at once. If
	// ctx ends first, Admit returns ctx's error. Admit is safe for concurrent use.
	Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error)
}

// admission lists what a window occupies from the time before its claim until the end of its call:
// a permit, capacity and budget.
type admission struct {
	p            *partition
	permit       notify.Permit // nil: the provider is not Rated, or the envelope has expired
	capacityHeld int           // slots of the worker's capacity
	budgetHeld   int           // receivers of the partition's budget
}

// release gives back everything the admission has. It may be called on a partly filled admission.
func (a *admission) release() {
	if a.permit != nil {
		a.permit.Release()
	}
	a.p.w.capacity.release(a.capacityHeld)
	a.p.budget.release(a.budgetHeld)
}

// admitReceivers waits until up to n receivers of an envelope may be claimed and called at once. It
// returns their number, at least 1. The wait may take hours at a low rate. Nothing is claimed
// during the wait, so a stop or a crash during the wait leaves no receiver ambiguous. If the
// partition is being drained, admitReceivers returns false and occupies nothing.
func (p *partition) admitReceivers(e *notify.Envelope, n int) (admission, int, bool) {
	cfg := &p.w.cfg
	for {
		a := admission{p: p}
		if !cfg.Gate.wait(p.untilDrain, e.Expires) || !p.waitFresh() {
			return a, 0, false
		}
		got := n
		if p.w.rated != nil {
			if !cfg.Health.waitReady(p.untilDrain, &cfg.Routes, e.Expires) {
				return a, 0, false
			}
			var retry bool
			if a.permit, retry = p.requestPermit(e.Category, n, expiryTime(e)); retry {
				continue
			}
			if p.untilDrain.Err() != nil {
				a.release()
				return a, 0, false
			}
			if a.permit != nil {
				got = min(n, a.permit.Messages())
			}
		}
		var err error
		if a.capacityHeld, err = p.w.capacity.acquire(p.untilDrain, e.Category, got); err == nil {
			a.budgetHeld, err = p.budget.acquire(p.untilDrain, e.Category, got)
		}
		if err != nil {
			a.release()
			return a, 0, false
		}
		// The gate or the route may have been shut during the wait. If so, wait again. An expired
		// envelope continues, because no call is made for it.
		if e.Expired(time.Now()) || !cfg.Gate.IsShut() && (p.w.rated == nil || cfg.Health.anyReady(&cfg.Routes)) {
			return a, got, true
		}
		a.release()
	}
}

// requestPermit asks the provider for a permit. The parameter deadline limits the wait; zero means
// no limit. If the deadline has passed, or the partition is being drained, it returns nil and
// false. If no call may be made because the account is blocked, it reports the end of the block to
// Health and returns nil and true: the caller should then wait for Health and call requestPermit
// again.
func (p *partition) requestPermit(cat notify.Category, n int, deadline time.Time) (m notify.Permit, again bool) {
	cfg := &p.w.cfg
	ctx := p.untilDrain
	if !deadline.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, deadline)
		defer stop()
	}
	m, err := p.w.rated.Admit(ctx, cat, n)
	if err == nil {
		return m, false
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && ctx.Err() == nil {
		// The account is blocked. This is not the result of a call, so it must not count in the
		// breaker. Names[0] is the right route, because a lane whose provider is Rated has only one
		// route.
		res := notify.Result{Class: notify.ClassThrottled, Code: e.Code, RetryAfter: e.RetryAfter}
		cfg.Health.report(cfg.Routes.Names[0], &res, 0, false, time.Now())
		return nil, true
	}
	return nil, false
}

// expiryTime returns when an envelope expires. Zero means that it never expires.
func expiryTime(e *notify.Envelope) time.Time {
	if e.Expires == 0 {
		return time.Time{}
	}
	return time.UnixMilli(e.Expires)
}

// campaignSlots returns the times at which a campaign's setting allows calls to the n receivers of
// a window. It returns nil if the setting delays none of them.
func (p *partition) campaignSlots(e *notify.Envelope, n uint32, now time.Time) *callSlots {
	h, ok := p.w.cfg.Campaigns.holdOf(e)
	switch {
	case !ok:
		return nil
	case h.Paused:
		after := min(pausedLook*time.Duration(e.Deferrals+1), pausedMost)
		return &callSlots{first: now.Add(after), code: codeCampaignPaused}
	case h.Rate == 0, e.Attempt > 0, DeferralCode(e.Cause) == codeCampaignRate: // no limit, a retry, or the wait for a slot is over
		return nil
	}
	from := now
	if free := p.assignedAt.Add(paceAhead); h.Since.Before(p.assignedAt) && free.After(now) {
		from = free
	}
	s := p.pace.reserve(e.Campaign, h.Rate/float64(p.w.cfg.Spread().PartsOf(e.Chunk.Base[:])), n, now, from)
	return &s
}
