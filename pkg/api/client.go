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

// Client calls notifyd's API. Every error is a *notify.Error, or the error of the context. A Client
// may be used by many goroutines at the same time. Its fields must not change while it is used.
type Client struct {
	// BaseURL is the server's address, e.g. "http://127.0.0.1:7420".
	BaseURL string
	// Token returns the bearer token of the next request; nil: no token is sent.
	Token func(ctx context.Context) (string, error)
	// HTTPClient sends the requests; nil: http.DefaultClient. NewTransport returns a transport
	// that keeps enough connections for many concurrent requests.
	HTTPClient *http.Client
	// Retries is the maximum number of retries of a request after 429, 503 or a broken connection.
	// Only requests that are safe to repeat are retried. 0: no retries.
	Retries int
	// Patience is how long a request is repeated while the server answers with Retry-After. During
	// this time, such an answer resets the count of retries to 0, so that Retries does not end the
	// request.
	Patience time.Duration
	// Backoff is the wait before the first retry if the server sent no Retry-After. It doubles for
	// each further retry, with jitter, up to 20 times Backoff. Default: 250 ms.
	Backoff time.Duration
	// Context and Reason are stored in the server's audit log with an operator's changes. Context
	// is the operator's name for this server. Reason is the reason of the change.
	Context, Reason string
	// OnAudit is called with the id of the audit row of each change, even if the change was then
	// refused. Any goroutine may call it. nil: no call.
	OnAudit func(id string)
	// UserAgent is the name of the program; empty: "notifyd-client".
	UserAgent string
	// Load marks all requests as part of a load run. It is the token of the run's load grant, or
	// LoadLocal. Empty: not a load run.
	Load string
}

// NewTransport returns a transport for high throughput to one server. It keeps up to conns idle
// connections (0: 128) and closes them before the server does. It has large write buffers, and does
// not ask for compression.
func NewTransport(conns int) *http.Transport {
	if conns <= 0 {
		conns = 128
	}
	dialer := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment, // never used for loopback
		DialContext:           dialer.DialContext,
		MaxIdleConns:          conns,
		MaxIdleConnsPerHost:   conns,
		IdleConnTimeout:       45 * time.Second, // below the server's 60 s, so that the client closes first
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        16 << 10,
		DisableCompression:    true,
		ForceAttemptHTTP2:     true,
	}
}

// Reply is an answer with its unchanged body.
type Reply struct {
	Status    int
	Body      []byte
	Replayed  bool // this is a repeat of the first answer to the Idempotency-Key
	RequestID string
}

// maxReply is the largest size of an answer that is read. It is large because a page of 1,000 dead
// letters or a fan-out's list of rejected receivers is large.
const maxReply = 64 << 20

// call is one request, before it is sent.
type call struct {
	method, path   string
	query          url.Values
	contentType    string
	body           []byte
	key            string // Idempotency-Key
	repeatable     bool   // sending it twice has the same effect as sending it once
	expectContinue bool   // send the body only after the server asked for it (Expect: 100-continue)
}

// largeBody is a size in bytes. If the server refuses a request with a body of this size or more,
// the next try uses "Expect: 100-continue": it sends the body only when the server asks for it.
const largeBody = 64 << 10

// do sends the request c, repeats it if that is safe, and decodes the answer into the parameter
// result. If result is nil, it does not decode the answer.
func (cl *Client) do(ctx context.Context, c call, result any) (Reply, error) {
	began := time.Now()
	for try, counted := 0, 0; ; try++ {
		reply, err := cl.sendOnce(ctx, c)
		if err == nil {
			if result == nil || len(reply.Body) == 0 {
				return reply, nil
			}
			if err := json.Unmarshal(reply.Body, result); err != nil {
				return reply, &notify.Error{Kind: notify.KindInternal, Code: "bad_answer", Msg: "the server's answer is not the expected JSON", Err: err}
			}
			return reply, nil
		}
		wait, told := cl.retryDelay(try, err), notify.RetryAfterOf(err) > 0
		if counted++; told && time.Since(began)+wait <= cl.Patience {
			counted = 0
		}
		if ctx.Err() != nil || !c.mayRetry(err) || counted > cl.Retries {
			return reply, err
		}
		c.expectContinue = told && len(c.body) >= largeBody
		if !notify.Sleep(ctx, wait) {
			return reply, err
		}
	}
}

// mayRetry reports whether a failed request may be sent again. After a 429 nothing was stored.
// After a 503 or a broken connection the server may have done the request, so only repeatable
// requests are sent again. A 409 with Retry-After means that a request with the same key is still
// running.
func (c *call) mayRetry(err error) bool {
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

// retryDelay returns the wait before the next try. If the server sent a Retry-After, retryDelay
// adds a random time of up to half of it. Otherwise all clients that were refused at the same
// moment would try again at the same moment.
func (cl *Client) retryDelay(try int, err error) time.Duration {
	base := cl.Backoff
	if base <= 0 {
		base = 250 * time.Millisecond
	}
	wait := min(base<<min(try, 10), 20*base)
	wait = wait/2 + rand.N(wait/2+1)
	asked := notify.RetryAfterOf(err)
	return max(wait, asked+rand.N(asked/2+1))
}

// sendOnce sends c one time.
func (cl *Client) sendOnce(ctx context.Context, c call) (Reply, error) {
	resp, err := cl.roundTrip(ctx, c)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get(HeaderAuditID); id != "" && cl.OnAudit != nil {
		cl.OnAudit(id)
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

// roundTrip sends c and returns the answer. The body of the answer is not read yet.
func (cl *Client) roundTrip(ctx context.Context, c call) (*http.Response, error) {
	u := strings.TrimSuffix(cl.BaseURL, "/") + c.path
	if len(c.query) > 0 {
		u += "?" + c.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, c.method, u, nil)
	if err != nil {
		return nil, &notify.Error{Kind: notify.KindInvalid, Code: "bad_url", Msg: "the server's address is not a valid URL", Err: err}
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
	if c.expectContinue {
		h["Expect"] = []string{"100-continue"}
	}
	for name, v := range map[string]string{HeaderContext: cl.Context, HeaderReason: cl.Reason} {
		if v != "" && c.method != http.MethodGet {
			if !httpguts.ValidHeaderFieldValue(v) {
				return nil, notify.Invalid("control_character", name, "must not contain control characters")
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
			return nil, &notify.Error{Kind: notify.KindUnauthorized, Code: "no_token", Msg: "the token cannot be read", Err: err}
		}
		if !httpguts.ValidHeaderFieldValue(token) {
			return nil, &notify.Error{Kind: notify.KindUnauthorized, Code: "no_token", Msg: "the token contains control characters; perhaps its file is damaged"}
		}
		h["Authorization"] = []string{"Bearer " + token}
	}
	hc := cl.HTTPClient
	if hc == nil {
		hc = http.DefaultClient
	}
	// The API sends no redirects, so a redirect does not come from notifyd. A client that follows
	// it would send the body to a wrong place. On the same host it would also send the token.
	once := *hc
	once.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := once.Do(req)
	if err != nil {
		return nil, connError(ctx, err)
	}
	return resp, nil
}

// lentBody is a request body that the transport may read only until roundTrip returns. If the
// server answers early, a goroutine of the transport may read the body later. By then the caller
// may have overwritten the buffer. So takeBack makes all later reads fail. The mutex mu guards the
// other two fields.
type lentBody struct {
	mu        sync.Mutex
	data      []byte
	takenBack bool
}

func (l *lentBody) takeBack() {
	l.mu.Lock()
	l.data, l.takenBack = nil, true
	l.mu.Unlock()
}

type bodyReader struct {
	lent *lentBody
	off  int
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.lent.mu.Lock()
	defer r.lent.mu.Unlock()
	if r.lent.takenBack {
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
		err = errors.New("the answer is larger than 64 MiB")
	}
	return body, err
}

// connError returns the notify.Error for an error of the transport, or the error of ctx if ctx has
// ended.
func connError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err // remove the URL from the message
	}
	return &notify.Error{Kind: notify.KindUnavailable, Code: "no_answer", Msg: "the server did not answer", Err: err}
}

// problemOf returns the error for an answer with an error status.
func problemOf(resp *http.Response, body []byte) error {
	var p Problem
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		p = Problem{Title: fmt.Sprintf("the server answered %s", resp.Status)}
	}
	p.Status = resp.StatusCode
	return p.Err(retryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date")))
}

// retryAfter parses both forms of Retry-After: seconds, or a date. It compares a date with the Date
// header, which is the server's clock.
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
