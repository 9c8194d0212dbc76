package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Client calls notifyd's API. Every error is a *notify.Error, or the context's.
// It may be used from many goroutines; its fields must not change meanwhile.
type Client struct {
	// BaseURL is the server's address, e.g. "http://127.0.0.1:7420".
	BaseURL string
	// Token returns the bearer token of the next request. nil: none is sent.
	Token func(ctx context.Context) (string, error)
	// HTTPClient carries the requests; nil: http.DefaultClient. One made with
	// NewTransport keeps enough connections for many requests at a time.
	HTTPClient *http.Client
	// Retries is how often a request that is safe to repeat is sent again after
	// 429, 503 or a broken connection. 0: never.
	Retries int
	// Patience is for how long a request is sent again because the server said when
	// (Retry-After). Retries are then those in a row without such an answer.
	Patience time.Duration
	// Backoff is the first wait of a retry when the server named none; it
	// doubles, with jitter, up to 20 times itself. Default: 250 ms.
	Backoff time.Duration
	// Context and Reason go into the server's audit log with what an operator
	// changes: what they call this server, and why they do it.
	Context, Reason string
	// Audited is told the row of the audit log that a change was recorded as, also
	// of one that was refused then. It may be called from any goroutine; nil: nobody
	// is told.
	Audited func(id string)
	// UserAgent names the program; empty: "notifyd-client".
	UserAgent string
	// Load marks all requests as those of a load run: the token of its grant, or
	// LoadLocal; empty: they are of none.
	Load string
}

// NewTransport returns a transport for throughput against one server: up to
// conns idle connections are kept (0: 128), shorter than the server keeps them,
// with large write buffers, and without asking for compression.
func NewTransport(conns int) *http.Transport {
	if conns <= 0 {
		conns = 128
	}
	dialer := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment, // never for loopback
		DialContext:           dialer.DialContext,
		MaxIdleConns:          conns,
		MaxIdleConnsPerHost:   conns,
		IdleConnTimeout:       45 * time.Second, // the server's is 60 s: it must not hang up first
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        16 << 10,
		DisableCompression:    true,
		ForceAttemptHTTP2:     true,
	}
}

// Reply is an answer as it came.
type Reply struct {
	Status    int
	Body      []byte
	Replayed  bool // the first answer to this Idempotency-Key, again
	RequestID string
}

// maxReply bounds what is read of an answer: a page of 1,000 dead letters, or
// the rejected receivers of a fan-out.
const maxReply = 64 << 20

// call is one request, before it is sent.
type call struct {
	method, path string
	query        url.Values
	contentType  string
	body         []byte
	key          string // Idempotency-Key
	repeatable   bool   // sending it twice does what sending it once does
	asks         bool   // the body is sent once the server wants it (Expect: 100-continue)
}

// largeBody is from how many bytes on a body that was refused once is not sent again
// before the server wants it.
const largeBody = 64 << 10

// do sends c, again where that is safe, and decodes the answer into out.
func (cl *Client) do(ctx context.Context, c call, out any) (Reply, error) {
	began := time.Now()
	for try, counted := 0, 0; ; try++ {
		reply, err := cl.once(ctx, c)
		if err == nil {
			if out == nil || len(reply.Body) == 0 {
				return reply, nil
			}
			if err := json.Unmarshal(reply.Body, out); err != nil {
				return reply, &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the JSON expected", Err: err}
			}
			return reply, nil
		}
		wait, told := cl.pause(try, err), notify.RetryAfterOf(err) > 0
		if counted++; told && time.Since(began)+wait <= cl.Patience {
			counted = 0
		}
		if ctx.Err() != nil || !c.retry(err) || counted > cl.Retries {
			return reply, err
		}
		c.asks = told && len(c.body) >= largeBody
		if !notify.Sleep(ctx, wait) {
			return reply, err
		}
	}
}

// retry decides, once, whether a failed request is sent again. A 429 stored
// nothing; behind a 503 or a broken connection the request may have been done,
// so only what can be repeated without harm is. 409 with a wait is the same
// key still at work elsewhere.
func (c *call) retry(err error) bool {
	switch notify.KindOf(err) {
	case notify.KindThrottled:
		return true
	case notify.KindUnavailable:
		return c.repeatable
	case notify.KindConflict:
		return c.repeatable && notify.RetryAfterOf(err) > 0
	}
	return false
}

// pause is how long to wait before the next try. What a server has asked for is kept, and
// up to half of it added: of many that were refused together no two come together again.
func (cl *Client) pause(try int, err error) time.Duration {
	base := cl.Backoff
	if base <= 0 {
		base = 250 * time.Millisecond
	}
	wait := min(base<<min(try, 10), 20*base)
	wait = wait/2 + rand.N(wait/2+1)
	asked := notify.RetryAfterOf(err)
	return max(wait, asked+rand.N(asked/2+1))
}

// once sends c one time.
func (cl *Client) once(ctx context.Context, c call) (Reply, error) {
	resp, err := cl.roundTrip(ctx, c)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get(HeaderAuditID); id != "" && cl.Audited != nil {
		cl.Audited(id)
	}
	body, err := readBody(resp)
	reply := Reply{
		Status: resp.StatusCode, Body: body,
		Replayed:  resp.Header.Get(HeaderIdempotencyReplayed) == "true",
		RequestID: resp.Header.Get(HeaderRequestID),
	}
	if err != nil {
		return reply, connError(ctx, err)
	}
	if resp.StatusCode >= 300 {
		return reply, problemOf(resp, body)
	}
	return reply, nil
}

// roundTrip sends c and returns the answer with its body still to read.
func (cl *Client) roundTrip(ctx context.Context, c call) (*http.Response, error) {
	u := strings.TrimSuffix(cl.BaseURL, "/") + c.path
	if len(c.query) > 0 {
		u += "?" + c.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, c.method, u, nil)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_url", Msg: "the server's address is not a URL", Err: err}
	}
	if c.body != nil {
		lent := &lentBody{data: c.body}
		defer lent.takeBack()
		req.ContentLength = int64(len(c.body))
		req.Body = &bodyReader{lent: lent}
		req.GetBody = func() (io.ReadCloser, error) { return &bodyReader{lent: lent}, nil }
		if len(c.body) == 0 {
			req.Body, req.GetBody = http.NoBody, nil
		}
	}
	h := req.Header
	if c.contentType != "" {
		h["Content-Type"] = []string{c.contentType}
	}
	if c.key != "" {
		h[HeaderIdempotencyKey] = []string{c.key}
	}
	if c.asks {
		h["Expect"] = []string{"100-continue"}
	}
	for name, v := range map[string]string{HeaderContext: cl.Context, HeaderReason: cl.Reason} {
		if v != "" && c.method != http.MethodGet {
			if !httpguts.ValidHeaderFieldValue(v) {
				return nil, notify.Invalid("control_character", name, "no control characters are allowed")
			}
			h[name] = []string{v}
		}
	}
	if cl.Load != "" {
		h[HeaderLoad] = []string{cl.Load}
	}
	agent := cl.UserAgent
	if agent == "" {
		agent = "notifyd-client"
	}
	h["User-Agent"] = []string{agent}
	if cl.Token != nil {
		token, err := cl.Token(ctx)
		if err != nil {
			return nil, &notify.Error{Kind: notify.KindUnauthorized, Code: "no_token", Msg: "no token could be had", Err: err}
		}
		if !httpguts.ValidHeaderFieldValue(token) {
			return nil, &notify.Error{Kind: notify.KindUnauthorized, Code: "no_token", Msg: "what was read is no token: it holds control characters; is its file damaged?"}
		}
		h["Authorization"] = []string{"Bearer " + token}
	}
	hc := cl.HTTPClient
	if hc == nil {
		hc = http.DefaultClient
	}
	// The API sends no redirects, so a redirect comes from something else. Following
	// it would send the body there and, on the same host, the token.
	once := *hc
	once.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := once.Do(req)
	if err != nil {
		return nil, connError(ctx, err)
	}
	return resp, nil
}

// lentBody is a request body that belongs to the caller again once the request
// is answered: a transport may still read it then, when the server answered
// before it had read everything, and the caller may already fill it anew.
type lentBody struct {
	mu   sync.Mutex
	data []byte
	back bool
}

func (l *lentBody) takeBack() {
	l.mu.Lock()
	l.data, l.back = nil, true
	l.mu.Unlock()
}

type bodyReader struct {
	lent *lentBody
	off  int
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.lent.mu.Lock()
	defer r.lent.mu.Unlock()
	if r.lent.back {
		return 0, errBodyGone
	}
	if r.off >= len(r.lent.data) {
		return 0, io.EOF
	}
	n := copy(p, r.lent.data[r.off:])
	r.off += n
	return n, nil
}

func (r *bodyReader) Close() error { return nil }

var errBodyGone = errors.New("the request was answered before its body was sent")

func readBody(resp *http.Response) ([]byte, error) {
	if n := resp.ContentLength; n >= 0 && n <= maxReply {
		body := make([]byte, n)
		_, err := io.ReadFull(resp.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err == nil && len(body) > maxReply {
		err = errors.New("answer over 64 MiB")
	}
	return body, err
}

// connError translates what the transport says.
func connError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // without the URL, which the message need not repeat
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Msg: "the server did not answer", Err: err}
}

// problemOf turns an error answer into an error.
func problemOf(resp *http.Response, body []byte) error {
	var p Problem
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		p = Problem{Title: fmt.Sprintf("the server answered %s", resp.Status)}
	}
	p.Status = resp.StatusCode
	return p.Err(retryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date")))
}

// retryAfter reads both forms of the header: seconds, and a date, which is
// taken relative to the server's own clock.
func retryAfter(v, date string) time.Duration {
	if v == "" {
		return 0
	}
	if secs, err := strconv.ParseInt(v, 10, 64); err == nil {
		return time.Duration(min(max(secs, 0), 86400)) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(date)
	if err != nil {
		now = time.Now()
	}
	return min(max(at.Sub(now), 0), 24*time.Hour)
}
