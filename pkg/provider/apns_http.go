package provider

import (
	"context"
	"net/http"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// apnsHTTP speaks HTTP/2 by net/http: a goroutine an item.
type apnsHTTP struct {
	a    *APNs
	pool *connPool
}

func newAPNsHTTP(a *APNs) *apnsHTTP {
	cfg := &a.cfg
	return &apnsHTTP{a, newConnPool(cfg.Connections, cfg.Stagger, cfg.BackoffMin, cfg.BackoffMax, cfg.Endpoint, a.base, cfg.Log)}
}

func (h *apnsHTTP) run(ctx context.Context) { h.pool.run(ctx) }
func (h *apnsHTTP) state() Connections      { return h.pool.state() }
func (h *apnsHTTP) held() error             { return h.pool.hold.err() }

func (h *apnsHTTP) deliver(ctx context.Context, c *apnsCall, call *notify.Call, report notify.Report) {
	each(len(call.Items), h.a.cfg.Concurrency, func() func(int) {
		w := &apnsWriter{call: c, vars: c.vars.Fork()}
		return func(i int) { report.One(i, h.send(ctx, c, w, call.Category, &call.Items[i])) }
	})
}

// send brings one item to an answer. An outdated token is renewed, and the item
// sent once more.
func (h *apnsHTTP) send(ctx context.Context, c *apnsCall, w *apnsWriter, cat notify.Category, it *notify.Item) notify.Result {
	address := apnsToken(it.Address)
	if address == nil {
		return badAPNsAddress
	}
	payload, err := w.payload(it)
	if err != nil {
		return failed(ctx, "apns", err)
	}
	u := under(h.a.base, "/3/device/"+string(address))
	var r notify.Result
	var then action
	judge := func(ans *answer) connState {
		r, then = apnsResult(ans, time.Now())
		return connStateOf(ans.status, then)
	}
	for renewed := false; ; renewed = true {
		tok, err := h.a.token.get(ctx)
		if err != nil {
			return failed(ctx, "apns", err)
		}
		if _, lost := h.pool.post(ctx, cat, "apns", h.a.cfg.Endpoint.Timeout, u, c.header(it, tok), payload, judge); lost != nil {
			return *lost
		}
		h.a.judged(it, &r, then, &h.pool.hold)
		if then == renewToken {
			if _, ok := h.a.renew(ctx, tok, &r); ok && !renewed {
				continue
			}
		}
		return r
	}
}

// connStateOf says what an answer means for its connection.
func connStateOf(status int, then action) connState {
	switch {
	case then == leaveConn:
		return connLeave
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return connRefused
	case status >= 500:
		return connUnknown
	}
	return connProven
}
