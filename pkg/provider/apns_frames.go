package provider

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
)

// apnsFrames speaks HTTP/2 by pkg/provider/h2. The goroutine that sends a call
// renders its items, hands them over in batches and reports their answers.
type apnsFrames struct {
	a      *APNs
	pool   *h2.Pool
	hold   hold
	prefix string    // of :path
	sends  sync.Pool // of *apnsSend

	mu    sync.Mutex
	token *token // that of the fields
	kinds map[apnsKind]*h2.Fields
}

// apnsKind is what the header fields of a push depend on, its token and its own
// values apart.
type apnsKind struct{ pushType, priority string }

// apnsSend is what one call at a time needs of memory.
type apnsSend struct {
	batch  *h2.Batch
	pushes []apnsPush
	free   []int // of them, those not under way
	ready  []*h2.Request
}

// apnsPush is one item under way.
type apnsPush struct {
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

func newAPNsFrames(a *APNs) *apnsFrames {
	cfg, e := &a.cfg, &a.cfg.Endpoint
	f := &apnsFrames{a: a, prefix: a.base.EscapedPath() + "/3/device/", kinds: map[apnsKind]*h2.Fields{}}
	f.sends.New = func() any { return &apnsSend{batch: h2.NewBatch()} }
	var t *tls.Config
	if a.base.Scheme == "https" {
		t = e.tls()
	}
	f.pool = h2.New(h2.Config{
		Dial: h2.Dialer(hostPort(a.base), t), Size: cfg.Connections, Stagger: cfg.Stagger,
		BackoffMin: cfg.BackoffMin, BackoffMax: cfg.BackoffMax, Timeout: e.Timeout, DialTimeout: e.DialTimeout,
		PingAfter: e.pingAfter, PingTimeout: e.pingTimeout,
		Admit: f.hold.err, Judge: f.judge, Log: cfg.Log,
	})
	return f
}

func (f *apnsFrames) run(ctx context.Context) { _ = f.pool.Run(ctx) }

func (f *apnsFrames) held() error { return f.hold.err() }

func (f *apnsFrames) state() Connections {
	s := f.pool.Stats()
	return Connections{Open: s.Open, Streams: s.Streams, InFlight: s.InFlight, Waiting: s.Waiting}
}

// judge says what an answer means for its connection, and keeps others from
// calling where the account is throttled.
func (f *apnsFrames) judge(r *h2.Request) h2.Verdict {
	res, then := apnsResult(frameAnswer(r), time.Now())
	if res.Class == notify.ClassThrottled {
		f.hold.set(&res)
	}
	switch connStateOf(r.Status, then) {
	case connLeave:
		return h2.Leave
	case connRefused:
		return h2.Unproven
	case connProven:
		return h2.Proven
	}
	return h2.NoVerdict
}

func frameAnswer(r *h2.Request) *answer {
	a := &answer{status: r.Status, body: r.Answer}
	if r.RetryAfter != "" {
		a.header = http.Header{"Retry-After": {r.RetryAfter}}
	}
	return a
}

// fields are the header fields that the pushes of a call share with those of
// others. Apple asks for authorization to stay out of the table.
func (f *apnsFrames) fields(c *apnsCall, tok *token) *h2.Fields {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.token != tok {
		clear(f.kinds)
		f.token = tok
	}
	kind := apnsKind{c.pushType[0], c.priority[0]}
	x := f.kinds[kind]
	if x == nil {
		x = h2.NewFields(f.a.base.Scheme, f.a.base.Host,
			h2.Field{Name: "apns-topic", Value: f.a.cfg.Topic},
			h2.Field{Name: "apns-push-type", Value: kind.pushType},
			h2.Field{Name: "apns-priority", Value: kind.priority},
			h2.Field{Name: "content-type", Value: jsonHeader[0]},
			h2.Field{Name: "user-agent", Value: agentHeader[0]},
			h2.Field{Name: "authorization", Value: tok.header[0], Sensitive: true})
		f.kinds[kind] = x
	}
	return x
}

// own are the header fields that the pushes of one call have in common.
func (c *apnsCall) own() []byte {
	b := h2.AppendField(nil, "apns-expiration", c.expiration[0])
	if c.collapse != nil {
		b = h2.AppendField(b, "apns-collapse-id", c.collapse[0])
	}
	if c.trace.parent != nil {
		b = h2.AppendField(b, "traceparent", c.trace.parent[0])
	}
	if c.trace.state != nil {
		b = h2.AppendField(b, "tracestate", c.trace.state[0])
	}
	return b
}

func (f *apnsFrames) deliver(ctx context.Context, c *apnsCall, call *notify.Call, report notify.Report) {
	s := f.sends.Get().(*apnsSend)
	s.reset(min(len(call.Items), f.a.cfg.Concurrency))
	s.batch.Rank = int(call.Category)
	own := c.own()
	w := &apnsWriter{call: c, vars: c.vars.Fork()}
	next, busy := 0, 0
	for next < len(call.Items) || busy > 0 {
		if ctx.Err() != nil {
			s.batch.Cancel(f.pool)
		}
		var done []*h2.Request
		if next < len(call.Items) && len(s.free) > 0 {
			next = f.render(ctx, s, c, w, own, call, next, report)
			busy += len(s.ready)
			f.pool.Submit(s.batch, s.ready...)
			done = s.batch.Take()
		} else {
			done = s.batch.Wait(ctx, f.pool)
		}
		s.ready = s.ready[:0]
		for _, r := range done {
			p := &s.pushes[r.Tag]
			res, again := f.result(ctx, c, p, &call.Items[p.item])
			if again {
				s.ready = append(s.ready, r)
				continue
			}
			if cap(r.Answer) > keptAnswer {
				r.Answer = nil
			}
			busy--
			s.free = append(s.free, r.Tag)
			report.One(p.item, res)
		}
		if len(s.ready) > 0 {
			f.pool.Submit(s.batch, s.ready...)
		}
	}
	// (not after a panic of report, when requests may still be under way)
	s.batch.Reset()
	f.sends.Put(s)
}

// reset makes room for n pushes under way.
func (s *apnsSend) reset(n int) {
	if len(s.pushes) < n {
		s.pushes = make([]apnsPush, n)
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
func (f *apnsFrames) render(ctx context.Context, s *apnsSend, c *apnsCall, w *apnsWriter, own []byte, call *notify.Call, next int, report notify.Report) int {
	s.ready = s.ready[:0]
	tok, err := f.a.token.get(ctx)
	var fields *h2.Fields
	if err == nil {
		fields = f.fields(c, tok)
	}
	for ; next < len(call.Items) && len(s.ready) < renderAhead && len(s.free) > 0; next++ {
		it := &call.Items[next]
		address := apnsToken(it.Address)
		if address == nil {
			report.One(next, badAPNsAddress)
			continue
		}
		p := &s.pushes[s.free[len(s.free)-1]]
		body, bad := w.append(p.req.Body[:0], it)
		if p.req.Body = body; bad == nil {
			bad = err
		}
		if bad != nil {
			report.One(next, failed(ctx, "apns", bad))
			continue
		}
		s.free = s.free[:len(s.free)-1]
		p.item, p.token, p.renewed = next, tok, false
		p.req.Fields = fields
		p.req.Path = append(append(p.req.Path[:0], f.prefix...), address...)
		var id [36]byte
		putUUID(&id, notify.AttemptID(it.ID(), it.Key.Epoch, int(it.Addr)))
		p.req.Own = h2.AppendField(append(p.req.Own[:0], own...), "apns-id", id[:])
		s.ready = append(s.ready, &p.req)
	}
	return next
}

// result is what became of a push; again: it is to be sent once more, with a new
// token.
func (f *apnsFrames) result(ctx context.Context, c *apnsCall, p *apnsPush, it *notify.Item) (r notify.Result, again bool) {
	if p.req.Failure != h2.Answered {
		return frameFailure(ctx, &p.req), false
	}
	r, then := notify.Result{Class: notify.ClassAccepted, Provider: "apns"}, action(0)
	if p.req.Status != http.StatusOK {
		r, then = apnsResult(frameAnswer(&p.req), time.Now())
	}
	f.a.judged(it, &r, then, &f.hold)
	if then == renewToken {
		if tok, ok := f.a.renew(ctx, p.token, &r); ok && !p.renewed {
			p.token, p.renewed = tok, true
			p.req.Fields = f.fields(c, tok)
			return r, true
		}
	}
	return r, false
}

// frameFailure translates a request that brought no answer; classify does the
// same for net/http.
func frameFailure(ctx context.Context, r *h2.Request) notify.Result {
	f := failure{class: notify.ClassUnavailable, code: "connection_failed"}
	switch {
	case r.Failure == h2.NoConnection:
		e := &notify.Error{Kind: notify.KindUnavailable, Code: "no_connection", Msg: "no connection", Err: r.Err}
		if d, ok := errors.AsType[*h2.Down](r.Err); ok {
			e.RetryAfter = d.RetryAfter
		}
		return failed(ctx, "apns", e)
	case r.Failure == h2.Withheld:
		return failed(ctx, "apns", r.Err)
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
	return f.result("apns")
}
