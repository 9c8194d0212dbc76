package trigger

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// EgressConfig tunes the client that makes callbacks. The zero value is ready.
type EgressConfig struct {
	Policy EgressPolicy
	// Timeout of a whole exchange, from the look-up of the name to the last byte of the answer
	// that is read.
	Timeout time.Duration `default:"10s" min:"0"`
	// MaxAnswer is how much of an answer is read, in bytes; a connection with more on it is
	// closed.
	MaxAnswer int64 `default:"64KiB" min:"0"`
	// MaxIdle and MaxIdlePerHost bound connections kept for the next call.
	MaxIdle        int `default:"1024" min:"0"`
	MaxIdlePerHost int `default:"128" min:"0"`
	// IdleTimeout closes a connection that nobody used.
	IdleTimeout time.Duration `default:"30s" min:"0"`
	// RootCAs verify receivers. Default: the system's.
	RootCAs *x509.CertPool
	// Resolver finds addresses. Default: net.DefaultResolver.
	Resolver *net.Resolver
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Egress makes callbacks: the only way out of this package. Every connection is
// checked against the policy at the moment of its system call. Safe for
// concurrent use.
type Egress struct {
	cfg EgressConfig

	mu sync.Mutex // orders SetPolicy
	// now is replaced whole: connections made under an older policy stay with
	// its transport, where nobody asks for them any more.
	now atomic.Pointer[route]
}

type route struct {
	policy    *policy
	transport *http.Transport
}

// NewEgress returns a client; it starts nothing.
func NewEgress(cfg EgressConfig) (*Egress, error) {
	e := &Egress{cfg: setting.Fill(cfg)}
	if e.cfg.Resolver == nil {
		e.cfg.Resolver = net.DefaultResolver
	}
	if err := setting.Err("egress", &e.cfg); err != nil {
		return nil, err
	}
	if err := e.SetPolicy(cfg.Policy); err != nil {
		return nil, err
	}
	return e, nil
}

// SetPolicy replaces the policy. Calls that start after it returned use
// connections made under it; those under way end undisturbed.
func (e *Egress) SetPolicy(p EgressPolicy) error {
	checked, err := newPolicy(p)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.now.Swap(&route{checked, e.transport(checked)})
	if old != nil {
		old.transport.CloseIdleConnections()
	}
	return nil
}

// Close closes connections nobody uses.
func (e *Egress) Close() { e.now.Load().transport.CloseIdleConnections() }

func (e *Egress) transport(p *policy) *http.Transport {
	d := &net.Dialer{Timeout: e.cfg.Timeout, Control: p.control, Resolver: e.cfg.Resolver}
	return &http.Transport{
		// No proxy, not even from the environment: the guard would see the
		// proxy's address instead of the receiver's.
		Proxy:                  nil,
		DialContext:            d.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: e.cfg.RootCAs},
		TLSHandshakeTimeout:    e.cfg.Timeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // a small body must not unpack into a large one
		MaxIdleConns:           e.cfg.MaxIdle,
		MaxIdleConnsPerHost:    e.cfg.MaxIdlePerHost,
		IdleConnTimeout:        e.cfg.IdleTimeout,
		MaxResponseHeaderBytes: 32 << 10,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        8 << 10,
	}
}

// plain says whether http is admitted.
func (e *Egress) plain() bool { return bool(e.now.Load().policy.Plain) }

// admit checks what can be said of a URL without asking DNS, so that whoever
// registers it hears of it.
func (e *Egress) admit(field string, t *target) error {
	p := e.now.Load().policy
	if t.isIP {
		if why := p.denied(netip.AddrPortFrom(netip.MustParseAddr(t.host), t.port)); why != "" {
			return notify.Invalid("address_denied", field, "the address may not be called: "+why)
		}
		return nil
	}
	if why := p.denied(netip.AddrPortFrom(publicAddr, t.port)); why != "" {
		return notify.Invalid("port_denied", field, why)
	}
	return nil
}

// Admit refuses a URL that no call may ever be made to, as far as that can be said
// without asking DNS: a literal address or a port that the policy denies. Errors are
// notify.KindInvalid and name field.
func (e *Egress) Admit(field, raw string) error {
	t, err := parseURL(field, raw, e.plain())
	if err != nil {
		return err
	}
	return e.admit(field, t)
}

// publicAddr stands for any address on the public internet.
var publicAddr = netip.AddrFrom4([4]byte{1, 1, 1, 1})

// AddressVerdict says whether one address of a URL may be connected to.
type AddressVerdict struct {
	Address netip.Addr
	Allowed bool
	Why     string // it is not; "" when it is
}

// URLVerdict is what CheckURL found.
type URLVerdict struct {
	URL       string // as it would be stored and called
	Host      string
	Port      uint16
	Addresses []AddressVerdict // as DNS answered; the dialer tries them one after the other
	Allowed   bool             // at least one may be connected to
}

// CheckURL resolves the host of a URL and says of each address whether it may
// be connected to; nothing is connected to. A later answer of DNS is checked
// again when it is used. Errors: notify.KindInvalid for a URL that is not
// admitted, notify.KindUnavailable when the name cannot be resolved.
func (e *Egress) CheckURL(ctx context.Context, raw string) (URLVerdict, error) {
	p := e.now.Load().policy
	t, err := parseURL("url", raw, bool(p.Plain))
	if err != nil {
		return URLVerdict{}, err
	}
	v := URLVerdict{URL: t.String(), Host: t.host, Port: t.port}
	addrs := []netip.Addr{}
	if t.isIP {
		addrs = append(addrs, netip.MustParseAddr(t.host))
	} else {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
		defer cancel()
		found, err := e.cfg.Resolver.LookupNetIP(ctx, "ip", t.host)
		if err != nil {
			return v, &notify.Error{Kind: notify.KindUnavailable, Code: "dns", Field: "url", Msg: "the host cannot be resolved", Err: err}
		}
		for _, a := range found {
			addrs = append(addrs, a.Unmap()) // an A record, which the dialer calls over IPv4
		}
	}
	for _, a := range addrs {
		why := p.denied(netip.AddrPortFrom(a, t.port))
		v.Addresses = append(v.Addresses, AddressVerdict{a, why == "", why})
		v.Allowed = v.Allowed || why == ""
	}
	return v, nil
}
