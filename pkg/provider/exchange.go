package provider

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// Endpoint is where a provider lives and how long to wait for it.
type Endpoint struct {
	// BaseURL, without a path. Default: the provider's own. The scheme http is
	// for simulators on loopback only.
	BaseURL string
	// RootCAs that may sign the server's certificate. Default: the system's.
	RootCAs *x509.CertPool
	// Timeout of one exchange, from its first byte to the end of the answer.
	// Default 10 s, SendGrid 30 s.
	Timeout time.Duration
	// DialTimeout bounds TCP and TLS set-up together. Default 5 s.
	DialTimeout time.Duration

	// The silence after which an HTTP/2 connection is asked whether it lives, and
	// how long it may take to say so. Default: as of h2.Config.
	pingAfter, pingTimeout time.Duration
}

func (e Endpoint) withDefaults(base string, timeout time.Duration) Endpoint {
	e.BaseURL = cmp.Or(e.BaseURL, base)
	e.Timeout = cmp.Or(e.Timeout, timeout)
	e.DialTimeout = cmp.Or(e.DialTimeout, 5*time.Second)
	return e
}

func (e Endpoint) parse(field string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSuffix(e.BaseURL, "/"))
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		return nil, notify.Invalid("bad_url", field+".base_url", "an https URL with a host is needed")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, notify.Invalid("bad_url", field+".base_url", "no user, query or fragment is allowed")
	case e.Timeout < 0 || e.DialTimeout < 0:
		return nil, notify.Invalid("bad_timeout", field+".timeout", "a timeout is positive")
	}
	return u, nil
}

func (e Endpoint) tls() *tls.Config {
	return &tls.Config{RootCAs: e.RootCAs, MinVersion: tls.VersionTLS12}
}

// under is base with path below it.
func under(base *url.URL, path string) *url.URL {
	u := *base
	u.Path += path
	return &u
}

// transport speaks HTTP/1: one request after the other on each of many connections.
func (e Endpoint) transport() *http.Transport {
	d := &net.Dialer{Timeout: e.DialTimeout, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy:                  nil,
		DialContext:            d.DialContext,
		TLSHandshakeTimeout:    e.DialTimeout,
		TLSClientConfig:        e.tls(),
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswer,
		Protocols:              new(http.Protocols),
		// Below what servers allow, so that a request rarely meets a connection
		// that is being closed: such a loss would be ambiguous.
		IdleConnTimeout: 30 * time.Second,
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// hostPort is the address to dial for u.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// answer is what a provider said, with at most maxAnswer bytes of body.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// retryAfter is the time the Retry-After header names, or 0. It may be seconds
// or a date.
func (a *answer) retryAfter(now time.Time) time.Duration {
	v := a.header.Get("Retry-After")
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		// (written so that a NaN is 0)
		if s > 0 && s < 30*24*3600 {
			return time.Duration(s * float64(time.Second))
		}
		return 0
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// request is one request whose progress on the wire is known.
//
// httptrace alone cannot tell: its WroteRequest may come after RoundTrip has
// returned for a context that ended. So the body keeps count: its last byte is
// handed over only under the lock, and sealing it afterwards makes completing
// the request impossible. What was sealed before its last byte was read can
// never be taken by the server.
type request struct {
	payload []byte

	mu     sync.Mutex
	opened *requestBody // the body in use
	handed bool         // the last byte was given to the transport
	sealed bool

	wroteErr atomic.Bool // the transport said it could not write it all
	trace    httptrace.ClientTrace
}

type requestBody struct {
	of   *request
	rest []byte
}

var errSealed = errors.New("provider: request was abandoned")

func newRequest(payload []byte) *request {
	r := &request{payload: payload}
	r.trace.WroteRequest = func(i httptrace.WroteRequestInfo) { r.wroteErr.Store(i.Err != nil) }
	return r
}

func (r *request) open() (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sealed {
		return nil, errSealed
	}
	// The transport asks again only where nothing of the first was written.
	r.handed = false
	r.opened = &requestBody{of: r, rest: r.payload}
	return r.opened, nil
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if b.of.sealed || b.of.opened != b {
		return 0, errSealed
	}
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	if b.rest = b.rest[n:]; len(b.rest) == 0 {
		b.of.handed = true
	}
	return n, nil
}

func (b *requestBody) Close() error { return nil }

// seal ends the request and reports whether it may have been completed.
func (r *request) seal() (sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
	return r.handed && !r.wroteErr.Load()
}

// exchange posts payload and reads the answer; a nil payload makes it a GET. A failure is returned where none
// came; an answer whose body was cut counts as an answer.
func exchange(ctx context.Context, rt http.RoundTripper, timeout time.Duration, u *url.URL, h http.Header, payload []byte) (answer, *failure) {
	r := newRequest(payload)
	body, _ := r.open()
	tctx, cancel := context.WithTimeout(httptrace.WithClientTrace(ctx, &r.trace), timeout)
	defer cancel()
	req := (&http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: body, GetBody: r.open, ContentLength: int64(len(payload)),
	}).WithContext(tctx)
	if payload == nil {
		req.Method, req.Body, req.GetBody = http.MethodGet, nil, nil
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		f := classify(ctx, err, r.seal())
		f.err = err
		return answer{}, &f
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
	if resp.ContentLength != 0 {
		a.body, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	}
	resp.Body.Close()
	r.seal()
	return a, nil
}
