package trigger

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/trace"
)

// Classes of the outcome of a call: Attempt.Class.
const (
	ClassOK        = "ok"        // 2xx
	ClassRetry     = "retry"     // 408, 425, 5xx, or an answer that is not HTTP
	ClassThrottled = "throttled" // 429
	// 4xx, except the statuses of the other classes. The call may be retried, because a receiver that
	// is being deployed answers 404 or 401 for a while.
	ClassRejected  = "rejected"
	ClassRedirect  = "redirect"  // 3xx, never followed
	ClassPermanent = "permanent" // 410, or a status that the caller's record lists as final
	// Denied by the egress policy or the caller's allow-list. Nothing was sent, and the call is not
	// retried.
	ClassDenied  = "denied"
	ClassTimeout = "timeout" // the call took too long
	ClassDNS     = "dns"     // the host name has no address
	ClassConnect = "connect" // refused, reset, unreachable
	ClassTLS     = "tls"     // the certificate was not accepted, or the handshake failed
	ClassLost    = "lost"    // the process that made the call died before it wrote the outcome
)

// result is the outcome of one call.
type result struct {
	status     int
	class      string
	detail     string
	body       []byte
	address    string
	retryAfter time.Duration
	took       time.Duration
}

// isPermanent reports whether every further call would have the same result.
func (r *result) isPermanent() bool {
	return r.class == ClassPermanent || r.class == ClassDenied
}

const (
	maxDetail  = 256
	maxExcerpt = 512 // bytes of an answer that are stored
)

// post makes one call. The code that calls post must not use the header again.
func (e *Egress) post(ctx context.Context, u *url.URL, header http.Header, body []byte) result {
	began := time.Now()
	r := e.exchange(ctx, u, header, body)
	r.took = time.Since(began)
	if len(r.detail) > maxDetail {
		r.detail = strings.ToValidUTF8(r.detail[:maxDetail], "")
	}
	return r
}

func (e *Egress) exchange(ctx context.Context, u *url.URL, header http.Header, body []byte) (r result) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		r.address = c.Conn.RemoteAddr().String()
	}})
	req := (&http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
	}).WithContext(ctx)
	// Use RoundTrip, because http.Client would follow redirects.
	resp, err := e.current.Load().transport.RoundTrip(req)
	if err != nil {
		r.class, r.detail = classOfError(err)
		return r
	}
	defer resp.Body.Close()
	r.status = resp.StatusCode
	r.class = classOfStatus(resp.StatusCode)
	r.retryAfter = parseRetryAfter(resp.Header.Get("Retry-After"), time.Now())
	if r.class != ClassOK {
		r.detail = resp.Status
	}
	if loc := resp.Header.Get("Location"); r.class == ClassRedirect && loc != "" {
		r.detail += " to " + strconv.QuoteToASCII(loc)
	}
	// Only the status matters. The body is read only so that the connection can be used again. At
	// most MaxAnswer bytes are read, because for a longer body a new connection is cheaper.
	//
	// If the status is below 200, nothing is read. Such an answer has no body, but a read could wait
	// for ever: after a 101 the connection belongs to the code that made the request, so the
	// transport neither times out nor cancels the read.
	if resp.Body != http.NoBody && resp.StatusCode >= http.StatusOK {
		r.body, _ = readSome(resp.Body, e.cfg.MaxAnswer)
	}
	return r
}

var excerpts = sync.Pool{New: func() any { return new([maxExcerpt]byte) }}

// readSome reads at most limit bytes of an answer. It returns only the first maxExcerpt bytes.
func readSome(body io.Reader, limit int64) (excerpt []byte, err error) {
	head := excerpts.Get().(*[maxExcerpt]byte)
	defer excerpts.Put(head)
	n, err := io.ReadFull(body, head[:])
	if err == nil {
		_, err = io.CopyN(io.Discard, body, max(limit-int64(n), 0))
	}
	if n == 0 {
		return nil, err
	}
	return bytes.Clone(head[:n]), err
}

// classOfStatus returns the class of an HTTP status. Only a 2xx status is a success. Of the other
// statuses only 410 is permanent. The statuses that the caller's record lists as final are
// permanent too, but only doCall knows this record.
func classOfStatus(status int) string {
	switch {
	case status >= 200 && status < 300:
		return ClassOK
	case status >= 300 && status < 400:
		return ClassRedirect
	case status == http.StatusTooManyRequests:
		return ClassThrottled
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return ClassRetry
	case status == http.StatusGone:
		return ClassPermanent
	case status >= 400 && status < 500:
		return ClassRejected
	}
	return ClassRetry
}

// classOfError returns the class of a transport error. No other function interprets these errors.
func classOfError(err error) (class, detail string) {
	var denied *deniedError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var op *net.OpError
	switch {
	case errors.As(err, &denied):
		// The owner of the trigger can read the detail. So the detail contains neither the address
		// from DNS nor the denied prefix from the configuration: both describe the network of this
		// server.
		why, _, _ := strings.Cut(denied.why, ": ")
		return ClassDenied, "the host's address or port may not be called: " + why
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, os.ErrDeadlineExceeded):
		return ClassTimeout, "no answer in time"
	case errors.As(err, &dns):
		if dns.IsTimeout {
			return ClassTimeout, "the host name was not resolved in time"
		}
		return ClassDNS, "the host name has no address"
	case errors.As(err, &cert), errors.As(err, &record), errors.As(err, &alert):
		return ClassTLS, err.Error()
	case errors.As(err, &op):
		if op.Timeout() {
			return ClassTimeout, "no answer in time"
		}
		if op.Op == "dial" || op.Op == "remote error" {
			class = ClassConnect
			if op.Op == "remote error" {
				class = ClassTLS
			}
			return class, op.Err.Error()
		}
		return ClassConnect, op.Err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ClassConnect, "the connection was closed without an answer"
	}
	return ClassRetry, strings.ToValidUTF8(err.Error(), "")
}

// parseRetryAfter parses a Retry-After header, which contains seconds or a date. It returns 0 for
// any other value.
func parseRetryAfter(v string, now time.Time) time.Duration {
	if v == "" {
		return 0
	}
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// postRow makes one call for the trigger of a row. It checks the URL against the current allow-list
// and makes a new signature.
func (c *DispatcherConfig) postRow(row *engine.Trigger, rec *callerRecord, started time.Time) result {
	u := rec.allowedURL(row.URL, c.Egress.allowsHTTP())
	if u == nil {
		return result{class: ClassDenied, detail: "the URL is not under one of the caller's registered base URLs any more"}
	}
	b, at := callbackBody(row), started.Unix()
	// One array contains the values of all headers. Each call needs its own array, because a
	// transport may still read the array after the answer arrived.
	v := [...]string{row.ID, strconv.Itoa(row.Attempts + 1), strconv.FormatInt(at, 10), rec.sign.sign(row.ID, at, b)}
	h := http.Header{
		"Content-Type":      jsonType,
		"User-Agent":        userAgent,
		"X-Trigger-Id":      v[0:1:1],
		"X-Trigger-Attempt": v[1:2:2],
		"Webhook-Id":        v[0:1:1],
		"Webhook-Timestamp": v[2:3:3],
		"Webhook-Signature": v[3:4:4],
	}
	span := c.beginSpan(row, started)
	defer span.End()
	if t := span.Context(); !t.None() {
		h[trace.HeaderParent] = []string{t.Parent}
		if t.State != "" {
			h[trace.HeaderState] = []string{t.State}
		}
	}
	// Do not use the context of Run: a call that has started must not be aborted.
	r := c.post(context.Background(), u, h, b)
	if span.Recording() {
		span.Str("notifyd.class", r.class)
		span.Int("http.response.status_code", r.status)
		if r.class != ClassOK {
			span.Fail(r.class)
		}
	}
	return r
}

// beginSpan begins the span of one attempt. Its parent is the request that made the trigger.
func (c *DispatcherConfig) beginSpan(row *engine.Trigger, started time.Time) trace.Span {
	s := c.Tracer.Call("callback", trace.Context{Parent: row.Trace, State: row.TraceState})
	if s.Recording() {
		s.Str("notifyd.trigger.id", row.ID)
		s.Str("notifyd.caller", row.Caller)
		s.Int("notifyd.trigger.attempt", row.Attempts+1)
		s.Int("notifyd.late_ms", int(max(started.UnixMilli()-row.NextAt, 0)))
	}
	return s
}

// Header values that all calls share. A transport does not write to them.
var (
	jsonType  = []string{"application/json"}
	userAgent = []string{"notifyd"}
)
