package provider

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
	"github.com/notifyd/notifyd/pkg/setting"
)

// PushConfig contains the settings that the clients of APNs and FCM share.
type PushConfig struct {
	// Endpoint is the provider's address. Default of BaseURL: the provider's URL.
	Endpoint Endpoint
	// Stagger is the minimum time between opening two connections.
	Stagger time.Duration `default:"200ms"`
	// BackoffMin and BackoffMax limit the time between attempts to connect. The time doubles with
	// each failure. Default 500 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
	// Log gets errors of connections and tokens.
	Log *slog.Logger `default:"discard"`
}

func (c PushConfig) withDefaults(provider, base string) PushConfig {
	c = setting.Fill(c)
	c.Endpoint = c.Endpoint.withDefaults(base, 10*time.Second)
	c.Log = c.Log.With("provider", provider)
	return c
}

// pushClient sends the pushes of one provider over pkg/provider/h2. The goroutine that calls Send
// renders the call's items, submits them in batches and reports their answers.
type pushClient struct {
	provider string // as in Result.Provider
	push     PushConfig
	// confirmed means that an accepted push counts as DELIVERED, because the provider sends no
	// later report.
	confirmed bool
	base      *url.URL
	token     *bearer
	guard     tokenGuard
	// prepare converts a call to the provider's form. It returns an error if the call's content is
	// invalid.
	prepare func(call *notify.Call, now time.Time) (pushCall, error)
	// meaning classifies an answer.
	meaning func(a *providerAnswer, now time.Time) (notify.Result, answerAction)
	// header returns the header fields of a kind of push, without the fields that newFields adds to
	// every push. nil: no kind has fields of its own.
	header func(kind pushKind) []h2.Field

	pool  *h2.Pool
	hold  callHold
	sends sync.Pool // of *pushSend

	mu     sync.Mutex   // guards the fields below
	signed *bearerToken // the token that the header fields in kinds contain
	kinds  map[pushKind]*h2.Fields
}

// pushKind identifies pushes that have the same header fields, apart from the authorization field and
// the fields of a single push. FCM has only one kind.
type pushKind struct{ pushType, priority string }

// pushCall is a call in the provider's form. Only one goroutine uses it.
type pushCall interface {
	kind() pushKind
	// request fills all fields of r for an item, except r.Fields. It reuses the memory of r.
	request(r *h2.Request, it *notify.Item) error
}

// newPushClient returns a client. The caller sets the fields token, guard, prepare, meaning and
// header.
func newPushClient(provider string, cfg PushConfig, connections int, confirmed bool) (*pushClient, error) {
	base, err := cfg.Endpoint.parse(provider)
	if err != nil {
		return nil, err
	}
	p := &pushClient{provider: provider, push: cfg, confirmed: confirmed, base: base, kinds: map[pushKind]*h2.Fields{}}
	p.sends.New = func() any { return &pushSend{batch: h2.NewBatch()} }
	p.pool = p.newPool(connections, p.judgeAnswer, cfg.Log)
	return p, nil
}

func (p *pushClient) newPool(size int, judge func(*h2.Request) h2.Verdict, log *slog.Logger) *h2.Pool {
	e := &p.push.Endpoint
	var t *tls.Config
	if p.base.Scheme == "https" {
		t = e.tls()
	}
	return h2.New(h2.Config{
		Dial: h2.Dialer(hostPort(p.base), t), Size: size, Stagger: p.push.Stagger,
		BackoffMin: p.push.BackoffMin, BackoffMax: p.push.BackoffMax, Timeout: e.Timeout, DialTimeout: e.DialTimeout,
		PingAfter: e.pingAfter, PingTimeout: e.pingTimeout,
		Admit: p.hold.err, Judge: judge, Log: log,
	})
}

// Run keeps the connections open and the token valid until ctx ends. Then it waits for requests in
// flight, at most for Endpoint.Timeout.
func (p *pushClient) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.token.run(ctx) })
	err := p.pool.Run(ctx)
	wg.Wait()
	return err
}

// judgeAnswer returns what an answer means for its connection. If the class of the answer is
// ClassThrottled, judgeAnswer also stops all other calls for the RetryAfter of the answer's result.
func (p *pushClient) judgeAnswer(r *h2.Request) h2.Verdict {
	a := frameAnswer(r)
	res, then := p.meaning(&a, time.Now())
	if res.Class == notify.ClassThrottled {
		p.hold.set(&res)
	}
	switch {
	case then == leaveConn:
		return h2.Leave
	case r.Status == http.StatusForbidden || r.Status == http.StatusUnauthorized:
		return h2.Unproven
	case r.Status >= 500:
		return h2.NoVerdict
	}
	return h2.Proven
}

func frameAnswer(r *h2.Request) providerAnswer {
	a := providerAnswer{status: r.Status, body: r.Answer}
	if r.RetryAfter != "" {
		a.header = http.Header{"Retry-After": {r.RetryAfter}}
	}
	return a
}

// fields returns the header fields that pushes of a kind share, also across calls. It makes new
// fields when the token has changed.
func (p *pushClient) fields(kind pushKind, tok *bearerToken) *h2.Fields {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.signed != tok {
		clear(p.kinds)
		p.signed = tok
	}
	x := p.kinds[kind]
	if x == nil {
		x = p.newFields(kind, tok)
		p.kinds[kind] = x
	}
	return x
}

// newFields makes the header fields that pushes of a kind share. The authorization field is not put
// into HPACK's table, as Apple asks.
func (p *pushClient) newFields(kind pushKind, tok *bearerToken) *h2.Fields {
	var own []h2.Field
	if p.header != nil {
		own = p.header(kind)
	}
	return h2.NewFields(p.base.Scheme, p.base.Host, append(own,
		h2.Field{Name: "content-type", Value: jsonHeader[0]},
		h2.Field{Name: "user-agent", Value: agentHeader[0]},
		h2.Field{Name: "authorization", Value: tok.header, Sensitive: true})...)
}

// pushSend contains what one call of Send needs. Later calls use its memory again.
type pushSend struct {
	batch  *h2.Batch
	pushes []pushInFlight
	free   []int          // indexes in pushes that are not in flight
	ready  []*h2.Request  // rendered, to be submitted
	answer providerAnswer // the answer that is being classified
}

// pushInFlight is the push of one item, from its request until its result is known.
type pushInFlight struct {
	req     h2.Request
	item    int
	token   *bearerToken
	renewed bool // the push was sent again with a new token
}

// keptAnswer is the largest answer buffer that is kept for the next push, in bytes. APNs' answers
// are shorter than a hundred bytes.
const keptAnswer = 1 << 10

// renderAhead is how many items are rendered before they are submitted together.
const renderAhead = 64

// maxPushes is how many items of one call are in flight at a time. The number of streams limits how
// many items of all calls are in flight.
const maxPushes = 1000

// Send delivers every item of the call and reports each item once. An address is "apns:<token>",
// "fcm:<token>", or only the token.
func (p *pushClient) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	c, err := p.prepare(call, time.Now())
	if err != nil {
		report(0, len(call.Items), resultOf(ctx, p.provider, err))
		return
	}
	s := p.sends.Get().(*pushSend)
	s.reset(min(len(call.Items), maxPushes))
	s.batch.Rank = int(call.Category)
	next, busy := 0, 0
	for next < len(call.Items) || busy > 0 {
		if ctx.Err() != nil {
			s.batch.Cancel(p.pool)
		}
		var done []*h2.Request
		if next < len(call.Items) && len(s.free) > 0 {
			next = p.render(ctx, s, c, call, next, report)
			busy += len(s.ready)
			p.pool.Submit(s.batch, s.ready...)
			done = s.batch.Take()
		} else {
			done = s.batch.Wait(ctx, p.pool)
		}
		s.ready = s.ready[:0]
		now := time.Now()
		for _, r := range done {
			x := &s.pushes[r.Tag]
			res, again := p.result(ctx, now, s, c, x, &call.Items[x.item])
			if again {
				s.ready = append(s.ready, r)
				continue
			}
			if cap(r.Answer) > keptAnswer {
				r.Answer = nil
			}
			busy--
			s.free = append(s.free, r.Tag)
			report.One(x.item, res)
		}
		if len(s.ready) > 0 {
			p.pool.Submit(s.batch, s.ready...)
		}
	}
	// If the function report panics, the code below does not run, because requests may still be in
	// flight.
	s.batch.Reset()
	p.sends.Put(s)
}

// reset makes room for n pushes.
func (s *pushSend) reset(n int) {
	if len(s.pushes) < n {
		s.pushes = make([]pushInFlight, n)
		for i := range s.pushes {
			s.pushes[i].req.Tag = i
		}
	}
	s.free = s.free[:0]
	for i := range n {
		s.free = append(s.free, n-1-i)
	}
}

// render makes requests from the call's items, beginning with the item whose index is next. It reports
// items that cannot be sent. It returns the index of the first item that it has not rendered.
func (p *pushClient) render(ctx context.Context, s *pushSend, c pushCall, call *notify.Call, next int, report notify.Report) int {
	s.ready = s.ready[:0]
	tok, err := p.token.get(ctx)
	var fields *h2.Fields
	if err == nil {
		fields = p.fields(c.kind(), tok)
	}
	for ; next < len(call.Items) && len(s.ready) < renderAhead && len(s.free) > 0; next++ {
		x := &s.pushes[s.free[len(s.free)-1]]
		bad := c.request(&x.req, &call.Items[next])
		if bad == nil {
			bad = err
		}
		if bad != nil {
			report.One(next, resultOf(ctx, p.provider, bad))
			continue
		}
		s.free = s.free[:len(s.free)-1]
		x.item, x.token, x.renewed = next, tok, false
		x.req.Fields = fields
		s.ready = append(s.ready, &x.req)
	}
	return next
}

// result returns the result of a push. If the second result (again) is true, the push must be sent
// once more, and a new token is already in the request.
func (p *pushClient) result(ctx context.Context, now time.Time, s *pushSend, c pushCall, x *pushInFlight, it *notify.Item) (r notify.Result, again bool) {
	if x.req.Failure != h2.Answered {
		return p.failedResult(ctx, &x.req), false
	}
	s.answer = frameAnswer(&x.req)
	r, then := p.meaning(&s.answer, now)
	switch r.Class {
	case notify.ClassAccepted:
		r.Confirmed = p.confirmed
		p.guard.noteAccepted()
	case notify.ClassThrottled:
		p.hold.set(&r)
	case notify.ClassDeadAddress:
		p.guard.correctDeadToken(it, &r, then)
	}
	if then != renewToken {
		return r, false
	}
	next, err := p.token.replace(ctx, x.token)
	if err != nil || next == x.token {
		if r.Class == notify.ClassRetry { // the token cannot be replaced before it reaches minAge
			r.RetryAfter = max(r.RetryAfter, time.Until(x.token.minted.Add(p.token.minAge)))
		}
		return r, false
	}
	if x.renewed {
		return r, false
	}
	x.token, x.renewed = next, true
	x.req.Fields = p.fields(c.kind(), next)
	return r, true
}

// failedResult returns the result of a request without an answer. classifyFailure does the same for
// net/http.
func (p *pushClient) failedResult(ctx context.Context, r *h2.Request) notify.Result {
	f := failure{class: notify.ClassUnavailable, code: "connection_failed"}
	switch {
	case r.Failure == h2.NoConnection:
		e := &notify.Error{Kind: notify.KindUnavailable, Code: "no_connection", Msg: "no connection", Err: r.Err}
		if d, ok := errors.AsType[*h2.Down](r.Err); ok {
			e.RetryAfter = d.RetryAfter
		}
		return resultOf(ctx, p.provider, e)
	case r.Failure == h2.Withheld:
		return resultOf(ctx, p.provider, r.Err)
	case r.Failure == h2.Refused:
		f.code = "stream_refused"
	case r.Failure == h2.Closing:
		f.code = "connection_closing"
	case r.Sent && (r.Failure == h2.TimedOut || errors.Is(ctx.Err(), context.DeadlineExceeded)):
		f = failure{class: notify.ClassAmbiguous, code: "timeout"}
	case r.Sent && r.Failure == h2.Cancelled:
		f = failure{class: notify.ClassAmbiguous, code: "cancelled"}
	case r.Sent:
		f = failure{class: notify.ClassAmbiguous, code: "connection_lost"}
	case r.Failure == h2.Cancelled || ctx.Err() != nil:
		f = failure{class: notify.ClassRetry, code: "cancelled"}
	case r.Failure == h2.TimedOut:
		f.code = "timeout"
	}
	return f.result(p.provider)
}

// sendTest sends a test message over a separate connection. The parameter to is the address of the
// device, and tok is the token to use. If body is not nil, it is sent instead of the message. The
// shared connections and other calls are not affected.
func (p *pushClient) sendTest(ctx context.Context, to string, tok *bearerToken, body []byte) (providerAnswer, *failure) {
	call, r := trialCall(notify.Push, to), &h2.Request{}
	c, err := p.prepare(call, time.Now())
	if err == nil {
		err = c.request(r, &call.Items[0])
	}
	if err != nil {
		return providerAnswer{}, failureOf(ctx, p.provider, err)
	}
	r.Fields = p.newFields(c.kind(), tok)
	if body != nil {
		r.Body = body
	}
	pool := p.newPool(1, func(*h2.Request) h2.Verdict { return h2.NoVerdict }, nil)
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // the Wait below ends when ctx ends
	var wg sync.WaitGroup
	wg.Go(func() { _ = pool.Run(running) })
	defer wg.Wait()
	defer stop()
	b := h2.NewBatch()
	pool.Submit(b, r)
	b.Wait(ctx, pool)
	if r.Failure != h2.Answered {
		res := p.failedResult(ctx, r)
		return providerAnswer{}, &failure{class: res.Class, code: res.Code, err: cmp.Or(r.Err, errors.New(res.Code))}
	}
	return frameAnswer(r), nil
}
