package worker

import (
	"context"
	"errors"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Rated is a Provider with a rate of its own, or few calls at a time. Its windows
// are claimed after it has given a permit, and are as large as that.
type Rated interface {
	Provider
	// Admit waits until a call of up to n messages of a category may start, codes
	// first, and returns the permit for as many as may be sent now, at least one.
	// It returns a *notify.Error with RetryAfter at once when nothing may be called
	// until then, and ctx's error if ctx ends first. Safe for concurrent use.
	Admit(ctx context.Context, cat notify.Category, n int) (notify.Permit, error)
}

// admission is what receivers hold from before their claim to the end of their call.
type admission struct {
	p      *partition
	permit notify.Permit // nil: the provider has no rate, or they have expired
	held   int           // of the worker's capacity
	budget int           // of the partition
}

func (a *admission) release() {
	if a.permit != nil {
		a.permit.Release()
	}
	a.p.w.capacity.release(a.held)
	a.p.budget.release(a.budget)
}

// admit waits until up to n receivers of an envelope may be claimed and called at
// once, and returns how many, at least one. Nothing is claimed while it waits,
// which may be for hours at a low rate, so a stop or a crash then leaves no receiver
// ambiguous. False: the partition is going, and nothing is held.
func (p *partition) admit(e *notify.Envelope, n int) (admission, int, bool) {
	cfg := &p.w.cfg
	for {
		a := admission{p: p}
		if !cfg.Gate.wait(p.soft, e.Expires) || !p.fresh() {
			return a, 0, false
		}
		got := n
		if p.w.rated != nil {
			if !cfg.Health.waitReady(p.soft, &cfg.Routes, e.Expires) {
				return a, 0, false
			}
			var retry bool
			if a.permit, retry = p.permit(e.Category, n, expiry(e)); retry {
				continue
			}
			if p.soft.Err() != nil {
				a.release()
				return a, 0, false
			}
			if a.permit != nil {
				got = min(n, a.permit.Messages())
			}
		}
		var err error
		if a.held, err = p.w.capacity.acquire(p.soft, e.Category, got); err == nil {
			a.budget, err = p.budget.acquire(p.soft, e.Category, got)
		}
		if err != nil {
			a.release()
			return a, 0, false
		}
		// What was shut while it waited stays uncalled, but for what has expired,
		// which no call is made for.
		if e.Expired(time.Now()) || !cfg.Gate.IsShut() && (p.w.rated == nil || cfg.Health.ready(&cfg.Routes)) {
			return a, got, true
		}
		a.release()
	}
}

// permit asks the provider for a permit, until a time unless that is zero. None:
// the time or the partition has come. again: nothing of the lane may be called,
// which its health knows by now.
func (p *partition) permit(cat notify.Category, n int, until time.Time) (m notify.Permit, again bool) {
	cfg := &p.w.cfg
	ctx := p.soft
	if !until.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, until)
		defer stop()
	}
	m, err := p.w.rated.Admit(ctx, cat, n)
	if err == nil {
		return m, false
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && ctx.Err() == nil {
		// A block, and no answer: it says nothing about any call of ours. A lane
		// that claims its windows late has only this route.
		res := notify.Result{Class: notify.ClassThrottled, Code: e.Code, RetryAfter: e.RetryAfter}
		cfg.Health.report(cfg.Routes.Names[0], &res, 0, false, time.Now())
		return nil, true
	}
	return nil, false
}

// expiry is when an envelope expires; zero: never.
func expiry(e *notify.Envelope) time.Time {
	if e.Expires == 0 {
		return time.Time{}
	}
	return time.UnixMilli(e.Expires)
}

// held returns the slots of a window's n receivers; nil: nothing holds them back.
func (p *partition) held(e *notify.Envelope, n uint32, now time.Time) *slots {
	h, ok := p.w.cfg.Campaigns.of(e)
	switch {
	case !ok:
		return nil
	case h.Paused:
		after := min(pausedLook*time.Duration(e.Deferrals+1), pausedMost)
		return &slots{first: now.Add(after), code: codeCampaignPaused}
	case h.Rate == 0, e.Attempt > 0, DeferralCode(e.Cause) == codeCampaignRate: // it has had its slot
		return nil
	}
	from := now
	if free := p.began.Add(paceAhead); h.Since.Before(p.began) && free.After(now) {
		from = free
	}
	s := p.pace.reserve(e.Campaign, h.Rate/float64(p.w.cfg.Spread().Of(e.Chunk.Base[:])), n, now, from)
	return &s
}
