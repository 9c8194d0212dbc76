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

// EgressConfig configures the client that makes callbacks. The zero value is ready to use.
type EgressConfig struct {
	Policy EgressPolicy
	// Timeout is the time limit of a whole call, from the look-up of the name to the last byte of
	// the answer that is read.
	Timeout time.Duration `default:"10s" min:"0"`
	// MaxAnswer is how many bytes of an answer are read. If an answer has more, its connection is
	// closed.
	MaxAnswer int64 `default:"64KiB" min:"0"`
	// MaxIdle and MaxIdlePerHost are how many unused connections are kept for later calls.
	MaxIdle        int `default:"1024" min:"0"`
	MaxIdlePerHost int `default:"128" min:"0"`
	// IdleTimeout is how long an unused connection is kept.
	IdleTimeout time.Duration `default:"30s" min:"0"`
	// RootCAs verify the certificates of receivers. Default: the root certificates of the system.
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

// Egress makes callbacks. No other code of this package opens connections. Egress checks every
// connection against the policy right before the system call that connects. It is safe for
// concurrent use.
type Egress struct {
	cfg EgressConfig

	mu sync.Mutex // serializes SetPolicy
	// current is replaced as a whole. Connections made under an older policy belong to the older
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

// SetPolicy replaces the policy. Calls that start after SetPolicy returns use only connections made
// under the new policy. Calls in progress are not disturbed.
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
		// Use no proxy, not even a proxy from the environment. With a proxy the policy would check
		// the address of the proxy instead of the address of the receiver.
		Proxy:                  nil,
		DialContext:            d.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: e.cfg.RootCAs},
		TLSHandshakeTimeout:    e.cfg.Timeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // so that a small body cannot unpack into a large body
		MaxIdleConns:           e.cfg.MaxIdle,
		MaxIdleConnsPerHost:    e.cfg.MaxIdlePerHost,
		IdleConnTimeout:        e.cfg.IdleTimeout,
		MaxResponseHeaderBytes: 32 << 10,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        8 << 10,
	}
}

// allowsHTTP reports whether URLs may use http in addition to https.
func (e *Egress) allowsHTTP() bool { return bool(e.current.Load().policy.Plain) }

// admit refuses a URL whose literal address or port may not be called. It uses no DNS. With it, a
// caller gets the error already when it registers the URL, and not only when the URL is called.
func (e *Egress) admit(field string, t *callbackURL) error {
	p := e.current.Load().policy
	if t.isIP {
		if why := p.whyDenied(netip.AddrPortFrom(netip.MustParseAddr(t.host), t.port)); why != "" {
			return notify.Invalid("address_denied", field, "the address may not be called: "+why)
		}
		return nil
	}
	if why := p.whyDenied(netip.AddrPortFrom(publicAddr, t.port)); why != "" {
		return notify.Invalid("port_denied", field, why)
	}
	return nil
}

// Admit checks a URL without DNS. It returns notify.KindInvalid if the URL is not valid, or if the
// policy denies its literal address or its port. The parameter field is the name of the field in
// that error.
func (e *Egress) Admit(field, raw string) error {
	t, err := parseURL(field, raw, e.allowsHTTP())
	if err != nil {
		return err
	}
	return e.admit(field, t)
}

// publicAddr is an example of an address on the public internet. The method admit uses it to check
// only the port.
var publicAddr = netip.AddrFrom4([4]byte{1, 1, 1, 1})

// AddressVerdict says whether notifyd may connect to one address of a URL.
type AddressVerdict struct {
	Address netip.Addr
	Allowed bool
	Why     string // why it may not; "" if it may
}

// URLVerdict is the result of CheckURL.
type URLVerdict struct {
	URL       string // in the form that is stored and called
	Host      string
	Port      uint16
	Addresses []AddressVerdict // in the order of the DNS answer, in which the dialer tries them
	Allowed   bool             // notifyd may connect to at least one of the addresses
}

// CheckURL resolves the host of a URL and reports for each address whether notifyd may connect to
// it. It makes no connection. Later answers of DNS are checked again when they are used. CheckURL
// returns notify.KindInvalid for a URL that is not allowed, and notify.KindUnavailable if the name
// cannot be resolved.
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
			addrs = append(addrs, a.Unmap()) // the dialer calls an A record over IPv4
		}
	}
	for _, a := range addrs {
		why := p.whyDenied(netip.AddrPortFrom(a, t.port))
		v.Addresses = append(v.Addresses, AddressVerdict{a, why == "", why})
		v.Allowed = v.Allowed || why == ""
	}
	return v, nil
}
