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

// PushConfig is what the clients of APNs and FCM have in common.
type PushConfig struct {
	// Endpoint; BaseURL defaults to the provider's own.
	Endpoint Endpoint
	// Stagger is the least time between opening two connections.
	Stagger time.Duration `default:"200ms"`
	// BackoffMin and BackoffMax bound the doubling time between attempts to
	// open a connection that failed. Default 500 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
	// Log gets connection and token trouble.
	Log *slog.Logger `default:"discard"`
}

func (c PushConfig) withDefaults(provider, base string) PushConfig {
	c = setting.Fill(c)
	c.Endpoint = c.Endpoint.withDefaults(base, 10*time.Second)
	c.Log = c.Log.With("provider", provider)
	return c
}

// pushClient sends the pushes of one provider by pkg/provider/h2. The goroutine
// that sends a call renders its items, hands them over in batches and reports
// their answers.
type pushClient struct {
	provider string // as in Result.Provider
	push     PushConfig
	// confirmed: what the provider accepts is DELIVERED, since it reports nothing further.
	confirmed bool
	base      *url.URL
	token     *bearer
	guard     tokenGuard
	// prepare makes a call ready, or says what is wrong with it.
	prepare func(call *notify.Call, now time.Time) (pushCall, error)
	// meaning classifies an answer.
	meaning func(a *answer, now time.Time) (notify.Result, action)
	// header returns the header fields that all pushes of a kind share, beside those
	// that every push has. nil: there are none.
	header func(kind pushKind) []h2.Field

	pool  *h2.Pool
	hold  hold
	sends sync.Pool // of *pushSend

	mu     sync.Mutex
	signed *token // the token in kinds
	kinds  map[pushKind]*h2.Fields
}

// pushKind is what the header fields of a push depend on, its token and its own
// values apart. FCM has one kind.
type pushKind struct{ pushType, priority string }

// pushCall is a call as its provider takes it. One goroutine uses it.
type pushCall interface {
	kind() pushKind
	// request makes r the request of an item, but for r.Fields. It keeps the
	// memory of r.
	request(r *h2.Request, it *notify.Item) error
}

// newPushClient returns a client without its token, guard, prepare, meaning and header.
func newPushClient(provider string, cfg PushConfig, connections int, confirmed bool) (*pushClient, error) {
	base, err := cfg.Endpoint.parse(provider)
	if err != nil {
		return nil, err
	}
	p := &pushClient{provider: provider, push: cfg, confirmed: confirmed, base: base, kinds: map[pushKind]*h2.Fields{}}
	p.sends.New = func() any { return &pushSend{batch: h2.NewBatch()} }
	p.pool = p.newPool(connections, p.judge, cfg.Log)
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

// Run keeps connections and token fresh until ctx ends, then waits for what is
// in flight, at most Endpoint.Timeout.
func (p *pushClient) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { p.token.run(ctx) })
	err := p.pool.Run(ctx)
	wg.Wait()
	return err
}

// judge says what an answer means for its connection, and keeps others from
// calling where the account is throttled.
func (p *pushClient) judge(r *h2.Request) h2.Verdict {
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

func frameAnswer(r *h2.Request) answer {
	a := answer{status: r.Status, body: r.Answer}
	if r.RetryAfter != "" {
		a.header = http.Header{"Retry-After": {r.RetryAfter}}
	}
	return a
}

// fields are the header fields that the pushes of a call share with those of
// other calls.
func (p *pushClient) fields(kind pushKind, tok *token) *h2.Fields {
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

// newFields encodes the fields of a kind. Apple asks for authorization to stay out
// of the table.
func (p *pushClient) newFields(kind pushKind, tok *token) *h2.Fields {
	var own []h2.Field
	if p.header != nil {
		own = p.header(kind)
	}
	return h2.NewFields(p.base.Scheme, p.base.Host, append(own,
		h2.Field{Name: "content-type", Value: jsonHeader[0]},
		h2.Field{Name: "user-agent", Value: agentHeader[0]},
		h2.Field{Name: "authorization", Value: tok.header, Sensitive: true})...)
}

// pushSend is what one call at a time needs of memory.
type pushSend struct {
	batch  *h2.Batch
	pushes []push
	free   []int // of them, those not under way
	ready  []*h2.Request
	answer answer // the one looked at
}

// push is one item under way.
type push struct {
	req     h2.Request
	item    int
	token   *token
	renewed bool
}

// keptAnswer is the largest buffer for an answer that is kept for the next, in
// bytes: APNs' own are below a hundred.
const keptAnswer = 1 << 10

// renderAhead is how many items are rendered before they are handed over.
const renderAhead = 64

// maxPushes is how many items of one call are sent at a time. The connections' streams
// bound all calls together.
const maxPushes = 1000

// Send delivers every item of call and reports each once. Addresses are
// "apns:<token>" or "fcm:<token>", or the bare token.
func (p *pushClient) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	c, err := p.prepare(call, time.Now())
	if err != nil {
		report(0, len(call.Items), failed(ctx, p.provider, err))
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
	// (not after a panic of report, when requests may still be under way)
	s.batch.Reset()
	p.sends.Put(s)
}

// reset makes room for n pushes under way.
func (s *pushSend) reset(n int) {
	if len(s.pushes) < n {
		s.pushes = make([]push, n)
		for i := range s.pushes {
			s.pushes[i].req.Tag = i
		}
	}
	s.free = s.free[:0]
	for i := range n {
		s.free = append(s.free, n-1-i)
	}
}

// render makes requests of the next items, and reports those that cannot be
// sent. It returns the first item that is left.
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
			report.One(next, failed(ctx, p.provider, bad))
			continue
		}
		s.free = s.free[:len(s.free)-1]
		x.item, x.token, x.renewed = next, tok, false
		x.req.Fields = fields
		s.ready = append(s.ready, &x.req)
	}
	return next
}

// result is what became of a push; again: it is to be sent once more, with a new
// token.
func (p *pushClient) result(ctx context.Context, now time.Time, s *pushSend, c pushCall, x *push, it *notify.Item) (r notify.Result, again bool) {
	if x.req.Failure != h2.Answered {
		return p.lost(ctx, &x.req), false
	}
	s.answer = frameAnswer(&x.req)
	r, then := p.meaning(&s.answer, now)
	switch r.Class {
	case notify.ClassAccepted:
		r.Confirmed = p.confirmed
		p.guard.accepted()
	case notify.ClassThrottled:
		p.hold.set(&r)
	case notify.ClassDeadAddress:
		p.guard.judge(it, &r, then)
	}
	if then != renewToken {
		return r, false
	}
	next, err := p.token.replace(ctx, x.token)
	if err != nil || next == x.token {
		if r.Class == notify.ClassRetry { // not before there may be another token
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

// lost is the result of a request that brought no answer; classify does the same
// for net/http.
func (p *pushClient) lost(ctx context.Context, r *h2.Request) notify.Result {
	f := failure{class: notify.ClassUnavailable, code: "connection_failed"}
	switch {
	case r.Failure == h2.NoConnection:
		e := &notify.Error{Kind: notify.KindUnavailable, Code: "no_connection", Msg: "no connection", Err: r.Err}
		if d, ok := errors.AsType[*h2.Down](r.Err); ok {
			e.RetryAfter = d.RetryAfter
		}
		return failed(ctx, p.provider, e)
	case r.Failure == h2.Withheld:
		return failed(ctx, p.provider, r.Err)
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

// once sends the message of a test by a connection of its own, of which nothing else
// learns: with a token, and with another body unless it is nil.
func (p *pushClient) once(ctx context.Context, to string, tok *token, body []byte) (answer, *failure) {
	call, r := trialCall(notify.Push, to), &h2.Request{}
	c, err := p.prepare(call, time.Now())
	if err == nil {
		err = c.request(r, &call.Items[0])
	}
	if err != nil {
		return answer{}, failing(ctx, p.provider, err)
	}
	r.Fields = p.newFields(c.kind(), tok)
	if body != nil {
		r.Body = body
	}
	pool := p.newPool(1, func(*h2.Request) h2.Verdict { return h2.NoVerdict }, nil)
	running, stop := context.WithCancel(context.WithoutCancel(ctx)) // the wait below ends with ctx
	var wg sync.WaitGroup
	wg.Go(func() { _ = pool.Run(running) })
	defer wg.Wait()
	defer stop()
	b := h2.NewBatch()
	pool.Submit(b, r)
	b.Wait(ctx, pool)
	if r.Failure != h2.Answered {
		res := p.lost(ctx, r)
		return answer{}, &failure{class: res.Class, code: res.Code, err: cmp.Or(r.Err, errors.New(res.Code))}
	}
	return frameAnswer(r), nil
}
