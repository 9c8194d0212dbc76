package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// LoadGrants makes and checks load grants. cluster.Grants implements it.
type LoadGrants interface {
	List(ctx context.Context) (api.LoadGrants, error)
	// Create makes a grant for the operator with this name. Create and Change call
	// notify.BeforeAct.
	Create(ctx context.Context, operator string, in api.LoadGrantRequest) (api.LoadGrant, error)
	// Change approves or revokes a grant. The parameter state is "approved" or "revoked".
	Change(ctx context.Context, id, operator, state string) (api.LoadGrant, error)
	// Check returns the grant of a token that was sent to host. It looks in the grants that this
	// process has read already. CheckStored first reads the grants from the store again.
	Check(token, host string) (api.LoadGrant, error)
	CheckStored(ctx context.Context, token, host string) (api.LoadGrant, error)
}

const (
	grantsPath = "/v1/ops/load-grants"
	grantPath  = grantsPath + "/{id}"
)

func listGrants(x *exchange) (api.LoadGrants, error) { return x.srv.deps.Grants.List(x.r.Context()) }

func makeGrant(x *exchange, in api.LoadGrantRequest) (api.LoadGrant, error) {
	return x.srv.deps.Grants.Create(x.r.Context(), x.id.Caller, in)
}

func changeGrant(x *exchange, in api.LoadGrantChange) (api.LoadGrant, error) {
	return x.srv.deps.Grants.Change(x.r.Context(), x.r.PathValue("id"), x.id.Caller, in.To)
}

// ownGrant answers a load generator that asks whether its grant is active.
func ownGrant(x *exchange) (api.LoadGrant, error) {
	token := x.r.Header.Get(api.HeaderLoad)
	if token == "" || token == api.LoadLocal {
		return api.LoadGrant{}, notify.Invalid("required", api.HeaderLoad, "must be the token of the load grant to look up")
	}
	return x.srv.deps.Grants.CheckStored(x.r.Context(), token, x.r.Host)
}

// admitLoad checks the load grant of a request with the header HeaderLoad. It admits every request
// without this header. It counts each refusal with the reason "load".
func admitLoad(s *Server, x *exchange) (err error) {
	marks := x.r.Header[api.HeaderLoad]
	if len(marks) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			s.deps.Hooks.refused("load")
		}
	}()
	switch {
	case len(marks) > 1:
		return notify.Invalid("load_grant_malformed", api.HeaderLoad, "there is more than one "+api.HeaderLoad+" header")
	case marks[0] == api.LoadLocal && s.deps.LoadLocal && fromLoopback(x.r):
		return nil
	case marks[0] == api.LoadLocal || s.deps.Grants == nil:
		return loadRefused("load_grant_missing", "this notifyd accepts the requests of a load run only with a load grant; notifyctl load grant makes one")
	}
	g, err := s.deps.Grants.Check(marks[0], x.r.Host)
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code == "load_grant_unknown" { // perhaps another process has just made the grant
		g, err = s.deps.Grants.CheckStored(x.r.Context(), marks[0], x.r.Host)
	}
	if err != nil {
		return err
	}
	x.load = &request.Load{Targets: g.Targets, UseRate: func(n int) error { return s.loads.of(&g).take(x.r.Context(), s.deps.Now(), s.callers.shared, n) }}
	return nil
}

func loadRefused(code, msg string) error {
	return &notify.Error{Kind: notify.KindForbidden, Code: code, Msg: msg}
}

// fromLoopback reports whether a request arrived over loopback: both addresses of its connection
// and its Host must be loopback.
func fromLoopback(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	to, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return err == nil && from.Addr().Unmap().IsLoopback() && ok && notify.OnLoopback(to) && notify.LoopbackHost(r.Host)
}

// loadMeters contains the meter of each grant in use.
type loadMeters struct {
	mu   sync.Mutex
	byID map[string]*loadMeter
}

// loadMeter limits one load grant to its rate. It accepts or refuses all messages of a request
// together. An accepted request may have more messages than there are tokens. The number of tokens
// (own or left) is then below 0, and later requests are refused until it has grown enough.
type loadMeter struct {
	until time.Time
	id    string
	rate  float64 // messages a second

	mu sync.Mutex
	// own is the number of tokens in this process's private bucket. With one process it enforces
	// the rate. With several processes the shared bucket enforces the rate, and the private bucket
	// limits this process while the shared bucket cannot be reached.
	own float64
	at  time.Time // when tokens were last added to the private bucket
	// left is how many tokens this process got from the shared bucket and has not used.
	left    float64
	retryAt time.Time // the shared bucket was empty; do not ask it before this time
}

func (m *loadMeters) of(g *api.LoadGrant) *loadMeter {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.byID[g.ID]
	if one == nil {
		if m.byID == nil {
			m.byID = map[string]*loadMeter{}
		}
		for id, old := range m.byID {
			if time.Until(old.until) < -time.Minute {
				delete(m.byID, id)
			}
		}
		one = &loadMeter{id: g.ID, rate: g.Rate, until: g.ExpiresAt}
		m.byID[g.ID] = one
	}
	return one
}

// take counts the n messages of a request. It returns notify.KindThrottled if the rate is used up,
// and notify.KindForbidden if the grant never allows n messages in one request. If shared is not
// nil, the rate applies to all processes together.
func (m *loadMeter) take(ctx context.Context, now time.Time, shared SharedTokens, n int) error {
	if most := api.MostInLoadRequest(m.rate); float64(n) > most {
		return loadRefused("load_grant_exceeded", fmt.Sprintf("the request has %d messages; in one request this load grant allows at most %.0f messages, as many as its rate allows in ten seconds", n, most))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	full := m.rate / loadBurst
	enough := min(1, full)
	if m.at.IsZero() {
		m.own = full
	} else {
		m.own = min(m.own+m.rate*max(now.Sub(m.at), 0).Seconds(), full)
	}
	m.at = now
	if m.own < enough {
		return m.usedUp(time.Duration((enough - m.own) / m.rate * float64(time.Second)))
	}
	if shared != nil {
		if m.left < 1 && now.Before(m.retryAt) {
			return m.usedUp(m.retryAt.Sub(now))
		}
		if m.left < 1 {
			want := max(int(m.rate/loadLease), n) + int(1-m.left)
			got, wait := shared.TakeUpTo(ctx, now, "load/"+m.id, want, m.rate, max(int(full), 1))
			m.left += float64(got)
			if m.left < 1 {
				m.retryAt = now.Add(max(wait, time.Millisecond))
				return m.usedUp(wait)
			}
		}
		m.left -= float64(n)
	}
	m.own -= float64(n)
	return nil
}

func (m *loadMeter) usedUp(wait time.Duration) error {
	return &notify.Error{Kind: notify.KindThrottled, Code: "load_rate", Msg: "the load grant's rate is used up", RetryAfter: max(wait, time.Millisecond)}
}

const (
	loadBurst = 2 // a token bucket is full at the number of messages that the rate allows in 1/loadBurst of a second
	// A process takes tokens from the shared bucket in groups. A group is the number of messages
	// that the rate allows in 1/loadLease of a second. It is larger if a request needs more.
	loadLease = 20
)
