package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/request"
)

// LoadGrants are the consents to be put under load: cluster.Grants.
type LoadGrants interface {
	List(ctx context.Context) (api.LoadGrants, error)
	// Create makes a grant in the name of by. It and Change call notify.BeforeAct.
	Create(ctx context.Context, by string, in api.LoadGrantRequest) (api.LoadGrant, error)
	// Change approves or revokes one.
	Change(ctx context.Context, id, by, to string) (api.LoadGrant, error)
	// Check returns the grant of a token that came to a host, by what this process knows;
	// Look by what is stored.
	Check(token, host string) (api.LoadGrant, error)
	Look(ctx context.Context, token, host string) (api.LoadGrant, error)
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

// ownGrant tells a generator whether its grant holds.
func ownGrant(x *exchange) (api.LoadGrant, error) {
	token := x.r.Header.Get(api.HeaderLoad)
	if token == "" || token == api.LoadLocal {
		return api.LoadGrant{}, notify.Invalid("required", api.HeaderLoad, "has the token of the grant that is asked for")
	}
	return x.srv.deps.Grants.Look(x.r.Context(), token, x.r.Host)
}

// admitLoad looks at the grant of a request that is marked as a load run's. A request that
// is not marked is none, and what is refused here is counted as load.
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
		return loadRefused("load_grant_missing", "this notifyd takes the load of a load run only with a grant: notifyctl load grant")
	}
	g, err := s.deps.Grants.Check(marks[0], x.r.Host)
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Code == "load_grant_unknown" { // another process may have made it
		g, err = s.deps.Grants.Look(x.r.Context(), marks[0], x.r.Host)
	}
	if err != nil {
		return err
	}
	x.load = &request.Load{Targets: g.Targets, Take: func(n int) error { return s.loads.of(&g).take(x.r.Context(), s.deps.Now(), s.callers.shared, n) }}
	return nil
}

func loadRefused(code, msg string) error {
	return &notify.Error{Kind: notify.KindForbidden, Code: code, Msg: msg}
}

// fromLoopback reports whether a request came over loopback, by its connection and by the
// host that it names.
func fromLoopback(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	to, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return err == nil && from.Addr().Unmap().IsLoopback() && ok && notify.OnLoopback(to) && notify.LoopbackHost(r.Host)
}

// loadMeters hold each grant to its rate.
type loadMeters struct {
	mu   sync.Mutex
	byID map[string]*loadMeter
}

// loadMeter is what a grant may still send. Messages are counted when a request is read,
// and a request is taken whole, so left goes below 0; then no other is taken until it is
// above.
type loadMeter struct {
	until time.Time
	id    string
	rate  float64

	mu   sync.Mutex
	left float64
	at   time.Time // when left was filled, of a process that is alone
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

// take counts n messages. It refuses them with notify.KindThrottled while earlier ones used
// the rate up. With shared the rate is that of all processes.
func (m *loadMeter) take(ctx context.Context, now time.Time, shared SharedTokens, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	wait := time.Duration((1 - m.left) / m.rate * float64(time.Second))
	switch {
	case shared == nil:
		if !m.at.IsZero() {
			m.left += m.rate * max(now.Sub(m.at), 0).Seconds()
		} else {
			m.left = m.rate / loadBurst
		}
		m.left, m.at = min(m.left, m.rate/loadBurst), now
		wait = time.Duration((1 - m.left) / m.rate * float64(time.Second))
	case m.left < 1:
		want := max(int(m.rate/loadLease), n) + int(1-m.left)
		got, told := shared.TakeUpTo(ctx, now, "load/"+m.id, want, m.rate, max(int(m.rate/loadBurst), 1))
		m.left, wait = m.left+float64(got), max(told, wait)
	}
	if m.left < 1 && m.left < m.rate/loadBurst {
		return &notify.Error{Kind: notify.KindThrottled, Code: "load_rate", Msg: "the load grant's rate is used up", RetryAfter: max(wait, time.Millisecond)}
	}
	m.left -= float64(n)
	return nil
}

const (
	loadBurst = 2  // at once half a second's messages
	loadLease = 20 // from the shared bucket a twentieth of a second's, or as many as are needed
)
