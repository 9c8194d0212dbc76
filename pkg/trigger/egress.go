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
	// Timeout bounds a whole exchange, from the look-up of the name to the last byte of the answer
	// that is read.
	Timeout time.Duration `default:"10s" min:"0"`
	// MaxAnswer is how many bytes of an answer are read. A connection with more is closed.
	MaxAnswer int64 `default:"64KiB" min:"0"`
	// MaxIdle and MaxIdlePerHost bound the connections kept for later calls.
	MaxIdle        int `default:"1024" min:"0"`
	MaxIdlePerHost int `default:"128" min:"0"`
	// IdleTimeout is how long an unused connection is kept.
	IdleTimeout time.Duration `default:"30s" min:"0"`
	// RootCAs verify receivers. Default: those of the system.
	RootCAs *x509.CertPool
	// Resolver looks up addresses. Default: net.DefaultResolver.
	Resolver *net.Resolver
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Egress makes callbacks. It is the only way out of this package. Every connection is checked
// against the policy at the moment of its system call. It is safe for concurrent use.
type Egress struct {
	cfg EgressConfig

	mu sync.Mutex // serializes SetPolicy
	// current is replaced as a whole. Connections made under an older policy stay with the older
	// transport, which no later call uses.
	current atomic.Pointer[egressRoute]
}

type egressRoute struct {
	policy    *policy
	transport *http.Transport
}

// NewEgress returns a client. It starts no goroutine.
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

// SetPolicy replaces the policy. Calls that start after it returned use connections made under the
// new policy. Calls in progress end undisturbed.
func (e *Egress) SetPolicy(p EgressPolicy) error {
	checked, err := newPolicy(p)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.current.Swap(&egressRoute{checked, e.transport(checked)})
	if old != nil {
		old.transport.CloseIdleConnections()
	}
	return nil
}

// Close closes unused connections.
func (e *Egress) Close() { e.current.Load().transport.CloseIdleConnections() }

func (e *Egress) transport(p *policy) *http.Transport {
	d := &net.Dialer{Timeout: e.cfg.Timeout, Control: p.control, Resolver: e.cfg.Resolver}
	return &http.Transport{
		// No proxy, not even from the environment: the policy would see the proxy's address instead
		// of the receiver's.
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

// plain reports whether http is admitted.
func (e *Egress) plain() bool { return bool(e.current.Load().policy.Plain) }

// admit checks a URL as far as is possible without DNS, so that an error reaches the caller that
// registers it.
func (e *Egress) admit(field string, t *callbackURL) error {
	p := e.current.Load().policy
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

// Admit refuses a URL that can never be called, as far as that is known without DNS: a literal
// address or a port that the policy denies. Its errors are notify.KindInvalid and name field.
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
	Why     string // why not; "" if it may
}

// URLVerdict is the result of CheckURL.
type URLVerdict struct {
	URL       string // as it would be stored and called
	Host      string
	Port      uint16
	Addresses []AddressVerdict // as DNS answered; the dialer tries them in this order
	Allowed   bool             // at least one may be connected to
}

// CheckURL resolves the host of a URL and reports for each address whether it may be connected to.
// It connects to none. A later answer of DNS is checked again when it is used. It returns
// notify.KindInvalid for a URL that is not admitted, and notify.KindUnavailable if the name cannot
// be resolved.
func (e *Egress) CheckURL(ctx context.Context, raw string) (URLVerdict, error) {
	p := e.current.Load().policy
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
