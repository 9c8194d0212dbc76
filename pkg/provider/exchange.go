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

// maxAnswer is the largest part of an answer's body that is read, in bytes.
const maxAnswer = 64 << 10

// Endpoint is the address of a provider, with the time limits of its requests.
type Endpoint struct {
	// BaseURL is the provider's URL without the path of the API. Default: the provider's real URL.
	// The scheme http is only for simulators on loopback.
	BaseURL string
	// RootCAs are the authorities that may sign the server's certificate. Default: the authorities
	// of the operating system.
	RootCAs *x509.CertPool
	// Timeout is the time limit of one exchange, from the first byte of the request to the end of
	// the answer. Default 10 s, for SendGrid 30 s.
	Timeout time.Duration
	// DialTimeout is the time limit of TCP and TLS setup together. Default 5 s.
	DialTimeout time.Duration

	// An HTTP/2 connection sends a PING if no byte has come from the server for the time pingAfter.
	// The time limit for the answer to the PING is pingTimeout. Default: the values of h2.Config.
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
		return nil, notify.Invalid("bad_url", field+".base_url", "must be an https URL with a host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, notify.Invalid("bad_url", field+".base_url", "must not have a user, a query or a fragment")
	case e.Timeout < 0 || e.DialTimeout < 0:
		return nil, notify.Invalid("bad_timeout", field+".timeout", "the timeout and the dial timeout must not be negative")
	}
	return u, nil
}

func (e Endpoint) tls() *tls.Config {
	return &tls.Config{RootCAs: e.RootCAs, MinVersion: tls.VersionTLS12}
}

// withPath returns a copy of the URL base, with the parameter path appended to the path of the URL.
func withPath(base *url.URL, path string) *url.URL {
	u := *base
	u.Path += path
	return &u
}

// transport returns a transport for HTTP/1: one request after the other on each of many
// connections.
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
		// Servers close idle connections only after a longer time. So a request is rarely sent on a
		// connection that the server is closing; the result of such a request would be ambiguous.
		IdleConnTimeout: 30 * time.Second,
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// hostPort returns the address to dial for u.
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

// providerAnswer is a provider's response, with at most maxAnswer bytes of body.
type providerAnswer struct {
	status int
	header http.Header
	body   []byte
}

// retryAfter returns the time in the Retry-After header, or 0 if there is none. The header contains
// seconds or a date.
func (a *providerAnswer) retryAfter(now time.Time) time.Duration {
	v := a.header.Get("Retry-After")
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		// This form of the condition gives 0 for a NaN.
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

// trackedRequest is one request. It tracks whether the whole request may have been sent.
//
// httptrace alone is not enough: if a context ends, RoundTrip may return before httptrace calls
// WroteRequest. So trackedBody tracks what the transport reads from the body. After a call of the
// method seal, the transport cannot read any more bytes. So if the transport had not read the last
// byte before that call, the server can never receive the whole request.
type trackedRequest struct {
	payload []byte

	mu     sync.Mutex   // guards opened, handed, sealed and trackedBody.rest
	opened *trackedBody // the body in use
	handed bool         // the transport has read the last byte
	sealed bool

	wroteErr atomic.Bool           // the transport could not write the whole request
	trace    httptrace.ClientTrace // sets wroteErr
}

type trackedBody struct {
	request *trackedRequest
	rest    []byte
}

var errSealed = errors.New("provider: the request was given up before it was sent completely")

func newRequest(payload []byte) *trackedRequest {
	r := &trackedRequest{payload: payload}
	r.trace.WroteRequest = func(i httptrace.WroteRequestInfo) { r.wroteErr.Store(i.Err != nil) }
	return r
}

func (r *trackedRequest) open() (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sealed {
		return nil, errSealed
	}
	// The transport opens the body again only if it has written no byte of the first body.
	r.handed = false
	r.opened = &trackedBody{request: r, rest: r.payload}
	return r.opened, nil
}

func (b *trackedBody) Read(p []byte) (int, error) {
	b.request.mu.Lock()
	defer b.request.mu.Unlock()
	if b.request.sealed || b.request.opened != b {
		return 0, errSealed
	}
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	if b.rest = b.rest[n:]; len(b.rest) == 0 {
		b.request.handed = true
	}
	return n, nil
}

func (b *trackedBody) Close() error { return nil }

// seal ends the request and reports whether the server may have received all of it.
func (r *trackedRequest) seal() (sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
	return r.handed && !r.wroteErr.Load()
}

// exchange posts the payload, or makes a GET if the payload is nil, and reads the answer. If there
// was no answer, it returns a failure. An answer with an incomplete body still counts as an answer.
func exchange(ctx context.Context, rt http.RoundTripper, timeout time.Duration, u *url.URL, h http.Header, payload []byte) (providerAnswer, *failure) {
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
		f := classifyFailure(ctx, err, r.seal())
		f.err = err
		return providerAnswer{}, &f
	}
	a := providerAnswer{status: resp.StatusCode, header: resp.Header}
	if resp.ContentLength != 0 {
		a.body, _ = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	}
	resp.Body.Close()
	r.seal()
	return a, nil
}
