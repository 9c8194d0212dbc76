package worker

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Health contains the state of the providers that a process uses. Each route has a circuit breaker,
// and a time until which the route is blocked. All workers of a channel share one Health: in both
// lanes, the workers of first attempts and of retries. A Health is safe for concurrent use.
type Health struct {
	cfg limit.BreakerConfig
	log *slog.Logger

	mu       sync.Mutex // guards the fields below and every routeHealth
	routes   map[string]*routeHealth
	troubled int           // number of routes that are blocked or whose breaker is not closed
	change   chan struct{} // when a route becomes well or stops being well, this channel is closed and replaced by a new one
}

type routeHealth struct {
	breaker *limit.Breaker
	blocked time.Time     // when the last block ends or ended
	refused time.Time     // when the last block began
	well    bool          // the breaker is closed and the route is not blocked
	last    notify.Result // the last answer that counted against the route
}

// NewHealth returns a Health in which every route works. It returns an error if cfg is invalid.
func NewHealth(cfg limit.BreakerConfig, log *slog.Logger) (*Health, error) {
	if _, err := limit.NewBreaker(time.Now(), cfg); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Health{cfg: cfg, log: log, routes: map[string]*routeHealth{}, change: make(chan struct{})}, nil
}

// routeLocked returns the state of a route, and adds the route if it is new. h.mu must be held.
func (h *Health) routeLocked(name string) *routeHealth {
	r := h.routes[name]
	if r == nil {
		b, err := limit.NewBreaker(time.Now(), h.cfg)
		if err != nil {
			panic(err) // NewHealth has checked the configuration
		}
		r = &routeHealth{breaker: b, well: true}
		h.routes[name] = r
	}
	return r
}

// allWell returns true if no route of the lane is blocked and all their breakers are closed.
func (h *Health) allWell(rs *Routes) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.troubled == 0 {
		return true
	}
	for _, n := range rs.Names {
		if !h.routeLocked(n).well {
			return false
		}
	}
	return true
}

// allow asks whether one call may be made on a route. If not, the result retryAt is the time at
// which to ask again. The result probe is true if the call is a probe, because the breaker is not
// closed.
func (h *Health) allow(name string, now time.Time) (ok, probe bool, retryAt time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.routeLocked(name)
	s := r.breaker.State(now)
	if now.Before(r.blocked) || s.Hold != limit.NotHeld {
		return false, false, h.reopensAtLocked(r, now)
	}
	trouble := s.State != limit.Closed
	ok, retryAt = r.breaker.Allow(now)
	return ok, ok && trouble, retryAt
}

// report adds n answers of the class of res to the breaker of the route. It returns true if the
// breaker is closed after that. The parameter lastAttempt means that the item that was called has
// no attempt left. Then a failure opens the breaker if no other call succeeded shortly before.
// While the breaker is open, the item waits, so it does not end as failed.
func (h *Health) report(name string, res *notify.Result, n int, lastAttempt bool, now time.Time) (closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.routeLocked(name)
	if res.Class == notify.ClassThrottled {
		if !now.Before(r.blocked) {
			r.refused = now
		}
		if until := now.Add(max(res.RetryAfter, time.Second)); until.After(r.blocked) {
			r.blocked = until
		}
	}
	if limit.OutcomeOf(res.Class) != limit.Healthy {
		r.last = *res
	}
	was := r.breaker.State(now).State
	outcome := limit.OutcomeOf(res.Class)
	r.breaker.ReportN(now, outcome, n)
	if lastAttempt && outcome == limit.Unhealthy {
		r.breaker.OpenWithoutSuccess(now)
	}
	h.judgeLocked(r, now)
	is := r.breaker.State(now)
	if is.State != was && (was == limit.Closed || is.State == limit.Closed) {
		h.log.Warn("the circuit of a route is now "+is.State.String(), "route", name, "reason", is.Reason.String(), "code", res.Code)
	}
	return is.State == limit.Closed
}

// works returns true if the breaker of the route is closed and the route is not blocked.
func (r *routeHealth) works(now time.Time) bool {
	return r.breaker.State(now).State == limit.Closed && !now.Before(r.blocked)
}

// judgeLocked updates r.well. If the value changed, it wakes the goroutines that wait for h.change.
// h.mu must be held.
func (h *Health) judgeLocked(r *routeHealth, now time.Time) {
	well := r.works(now)
	if well == r.well {
		return
	}
	r.well = well
	if well {
		h.troubled--
	} else {
		h.troubled++
	}
	close(h.change)
	h.change = make(chan struct{})
}

// codeHeld is the code of receivers that wait because an operator has stopped all calls to their
// route (see Hold).
const codeHeld = "circuit_held"

// heldLook is the longest time until a route that an operator stopped is checked again. When the
// operator allows calls again, receivers that wait in memory continue at once. Deferred receivers
// continue after at most heldLook.
const heldLook = time.Minute

// Hold stops all calls to a route. The parameter since is the time at which the operator stopped
// them. If since is zero, Hold allows the calls again. Hold returns false if nothing changed.
func (h *Health) Hold(name string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.routeLocked(name)
	now, hold := time.Now(), limit.HeldOpen
	if since.IsZero() {
		hold = limit.NotHeld
	}
	if r.breaker.State(now).Hold == hold {
		return false
	}
	r.breaker.Hold(since, hold)
	h.judgeLocked(r, now)
	return true
}

// reopensAt returns the time at which a route may be tried again.
func (h *Health) reopensAt(name string, now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reopensAtLocked(h.routeLocked(name), now)
}

// reopensAtLocked returns the time at which a route may be tried again. h.mu must be held.
func (h *Health) reopensAtLocked(r *routeHealth, now time.Time) time.Time {
	s := r.breaker.State(now)
	at := s.Until
	if s.Hold != limit.NotHeld {
		at = now.Add(heldLook)
	}
	if r.blocked.After(at) {
		at = r.blocked
	}
	return at
}

// otherOpen returns true if a route of the lane works now, other than the route with the index n.
func (h *Health) otherOpen(rs *Routes, n int, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, name := range rs.Names {
		if i != n && h.routeLocked(name).works(now) {
			return true
		}
	}
	return false
}

// earliestRetry returns the earliest time at which a route of the lane may be tried. That is now if
// a route may be tried already.
func (h *Health) earliestRetry(rs *Routes, now time.Time) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	var first time.Time
	for i, name := range rs.Names {
		if at := h.reopensAtLocked(h.routeLocked(name), now); i == 0 || at.Before(first) {
			first = at
		}
	}
	if first.Before(now) {
		return now
	}
	return first
}

// anyReady returns true if at least one route of the lane may be called now.
func (h *Health) anyReady(rs *Routes) bool {
	shut, _, _ := h.allShut(rs)
	return !shut
}

// waitReady waits while every route of the lane is shut. It is called before a window is claimed.
// While it waits, the lane stops and the log buffers its records. waitReady returns true when a
// route may be tried. It also returns true when the window expires, so that the caller can end the
// receivers of the window. It returns false if ctx has ended.
func (h *Health) waitReady(ctx context.Context, rs *Routes, expires int64) bool {
	for {
		if h.allWell(rs) {
			return true
		}
		now := time.Now()
		at := h.earliestRetry(rs, now)
		if !at.After(now) {
			return true
		}
		if expires != 0 && !now.Before(time.UnixMilli(expires)) {
			return true
		}
		if expires != 0 && time.UnixMilli(expires).Before(at) {
			at = time.UnixMilli(expires)
		}
		if !h.waitForChange(ctx, at) {
			return false
		}
	}
}

// allShut returns true if no route of the lane may be called now. It also returns the time at which
// the first route may be tried, and a channel that is closed when one of these two results may have
// changed.
func (h *Health) allShut(rs *Routes) (bool, time.Time, <-chan struct{}) {
	if h.allWell(rs) {
		return false, time.Time{}, nil
	}
	now := time.Now()
	at := h.earliestRetry(rs, now)
	h.mu.Lock()
	defer h.mu.Unlock()
	return at.After(now), at, h.change
}

// waitForChange waits until the given time, or until the health of a route changes if that is
// earlier, and then returns true. It returns false if ctx has ended.
func (h *Health) waitForChange(ctx context.Context, until time.Time) bool {
	h.mu.Lock()
	change := h.change
	h.mu.Unlock()
	t := time.NewTimer(max(time.Until(until), time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-change:
	case <-ctx.Done():
		return false
	}
	return true
}

// StoppedBy returns why a lane makes no calls at the time now: it returns the circuit of the route
// that may be tried first. The result ok is false if the lane may call one of its routes.
func (h *Health) StoppedBy(rs *Routes, now time.Time) (c Circuit, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, name := range rs.Names {
		r := h.routeLocked(name)
		at := h.reopensAtLocked(r, now)
		if !at.After(now) {
			return Circuit{}, false
		}
		if i == 0 || at.Before(c.RetryAt) {
			c = h.circuitLocked(name, r, now)
		}
	}
	return c, len(rs.Names) > 0
}

// Circuit is the state of one route, for operators.
type Circuit struct {
	Route   string    `json:"route"`
	State   string    `json:"state"`
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since,omitzero"` // when the delay of calls began; zero: calls are not delayed
	Blocked time.Time `json:"blocked_until,omitzero"`
	RetryAt time.Time `json:"retry_at,omitzero"`
	// Account and Code are from the last answer that counted against the route. They are set while
	// calls are delayed.
	Account string `json:"account,omitempty"`
	Code    string `json:"code,omitempty"`
	Held    bool   `json:"held,omitempty"` // an operator holds the circuit open
	class   notify.Class
}

func (h *Health) circuitLocked(name string, r *routeHealth, now time.Time) Circuit {
	st := r.breaker.State(now)
	c := Circuit{Route: name, State: st.State.String(), Reason: st.Reason.String()}
	if now.Before(r.blocked) {
		c.Blocked, c.Since = r.blocked, r.refused
	}
	if st.State != limit.Closed && (c.Since.IsZero() || st.Since.Before(c.Since)) {
		c.Since = st.Since
	}
	if at := h.reopensAtLocked(r, now); at.After(now) {
		c.RetryAt = at
	}
	if !c.Since.IsZero() {
		c.Account, c.Code, c.class = cmp.Or(r.last.Provider, name), r.last.Code, r.last.Class
	}
	if st.Hold != limit.NotHeld {
		c.Held, c.Since, c.Account, c.Code, c.class = true, st.Since, name, codeHeld, notify.ClassThrottled
	}
	return c
}

// Circuits returns the circuit of every route that was ever used.
func (h *Health) Circuits(now time.Time) []Circuit {
	h.mu.Lock()
	defer h.mu.Unlock()
	var cs []Circuit
	for name, r := range h.routes {
		cs = append(cs, h.circuitLocked(name, r, now))
	}
	return cs
}
