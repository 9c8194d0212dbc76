package provider

import (
	"context"
	"crypto/ecdsa"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// APNsConfig is how to reach Apple's push service.
type APNsConfig struct {
	// Endpoint; BaseURL defaults to https://api.push.apple.com.
	Endpoint Endpoint
	// TeamID and KeyID of the signing key (10 characters each). Required.
	TeamID, KeyID string
	// Key is the signing key (P-256), as from ParseAPNsKey. Required.
	Key *ecdsa.PrivateKey
	// Topic is the bundle id. Required.
	Topic string
	// PushType of what has a title or body. Default "alert". (What has neither
	// is sent as "background".)
	PushType string
	// Connections to keep open. Default 10.
	Connections int
	// Stagger is the least time between opening two of them. Default 200 ms.
	Stagger time.Duration
	// BackoffMin and BackoffMax bound the doubling time between attempts to
	// open a connection that failed. Default 500 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
	// Store is how long APNs keeps a push that never expires for a device that
	// is off. Default 30 days, its own limit; negative: try once, keep nothing.
	Store time.Duration
	// Concurrency is how many items of one call are sent at a time. Default
	// 1,000; the connections' streams bound all calls together.
	Concurrency int
	// Confirm: default ConfirmAccepted, since APNs reports nothing further.
	Confirm Confirmation
	// Log gets connection and token trouble. Default: nowhere.
	Log *slog.Logger
}

func (c APNsConfig) withDefaults() APNsConfig {
	c.Endpoint = c.Endpoint.withDefaults("https://api.push.apple.com", 10*time.Second)
	c.Connections = orInt(c.Connections, 10)
	c.Concurrency = orInt(c.Concurrency, 1000)
	c.Stagger = orTime(c.Stagger, 200*time.Millisecond)
	c.BackoffMin = orTime(c.BackoffMin, 500*time.Millisecond)
	c.BackoffMax = orTime(c.BackoffMax, 30*time.Second)
	c.Store = orTime(c.Store, 30*24*time.Hour)
	c.Confirm = c.Confirm.or(ConfirmAccepted)
	c.Log = orDiscard(c.Log).With("provider", "apns")
	if c.PushType == "" {
		c.PushType = "alert"
	}
	return c
}

func (c APNsConfig) validate() error {
	if err := required("apns", "team_id", c.TeamID, "key_id", c.KeyID, "topic", c.Topic); err != nil {
		return err
	}
	switch {
	case c.Key == nil || c.Key.Curve.Params().BitSize != 256:
		return notify.Invalid("bad_key", "apns.key", "an ECDSA key on P-256 is needed")
	case c.Connections < 1 || c.Connections > 1000:
		return notify.Invalid("bad_connections", "apns.connections", "1 to 1000 connections")
	case c.Concurrency < 1:
		return notify.Invalid("bad_concurrency", "apns.concurrency", "at least 1")
	}
	return nil
}

func orInt(v, d int) int {
	if v == 0 {
		return d
	}
	return v
}

func orTime(v, d time.Duration) time.Duration {
	if v == 0 {
		return d
	}
	return v
}

// APNs is the client of Apple's push service: a fixed number of HTTP/2
// connections, one signed token for all of them.
type APNs struct {
	cfg   APNsConfig
	base  *url.URL
	pool  *connPool
	token *bearer
	dead  spike
}

// NewAPNs checks cfg. Send waits until Run has opened a connection.
func NewAPNs(cfg APNsConfig) (*APNs, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	base, err := cfg.Endpoint.parse("apns")
	if err != nil {
		return nil, err
	}
	a := &APNs{cfg: cfg, base: base}
	a.token = newBearer("bearer", apnsMinTokenAge, cfg.Log, apnsMint(cfg.Key, cfg.TeamID, cfg.KeyID))
	a.pool = newConnPool(cfg.Connections, cfg.Stagger, cfg.BackoffMin, cfg.BackoffMax, cfg.Endpoint, base, cfg.Log)
	return a, nil
}

// Run keeps connections and token fresh until ctx ends, then waits for what is
// in flight, at most Endpoint.Timeout.
func (a *APNs) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { a.token.run(ctx) })
	a.pool.run(ctx)
	wg.Wait()
	return nil
}

// Connections is the state of the pool now.
func (a *APNs) Connections() Connections { return a.pool.state() }

// Send delivers every item of call and reports each once. Addresses are
// "apns:<token>" or the bare token.
func (a *APNs) Send(ctx context.Context, call *notify.Call, report func(i int, r notify.Result)) {
	c, err := a.newCall(call, time.Now())
	if err != nil {
		for i := range call.Items {
			report(i, failed(ctx, "apns", err))
		}
		return
	}
	each(len(call.Items), a.cfg.Concurrency, func() func(int) {
		w := &apnsWriter{call: c, vars: c.vars.Fork()}
		return func(i int) { report(i, a.send(ctx, c, w, &call.Items[i])) }
	})
}

// send brings one item to an answer. An outdated token is renewed, and the item
// sent once more.
func (a *APNs) send(ctx context.Context, c *apnsCall, w *apnsWriter, it *notify.Item) notify.Result {
	address := apnsToken(it.Address)
	if address == "" {
		return notify.Result{Class: notify.ClassPermanent, Code: "bad_address", Provider: "apns"}
	}
	payload, err := w.payload(it)
	if err != nil {
		return failed(ctx, "apns", err)
	}
	u := under(a.base, "/3/device/"+address)
	var r notify.Result
	var then action
	judge := func(ans *answer) connState {
		r, then = apnsResult(ans, time.Now())
		return connStateOf(ans.status, then)
	}
	for renewed := false; ; renewed = true {
		tok, err := a.token.get(ctx)
		if err != nil {
			return failed(ctx, "apns", err)
		}
		if _, lost := a.pool.post(ctx, "apns", a.cfg.Endpoint.Timeout, u, c.header(it, tok), payload, judge); lost != nil {
			return *lost
		}
		switch {
		case r.Class == notify.ClassAccepted:
			r.Confirmed = a.cfg.Confirm == ConfirmAccepted
			a.dead.accepted()
		case r.Class == notify.ClassThrottled:
			a.pool.hold.set(&r)
		case then == badAddress:
			a.dead.judge(it, &r, a.cfg.Log)
		case then == renewToken:
			next, err := a.token.replace(ctx, tok)
			if err == nil && next != tok && !renewed {
				continue
			}
			r.RetryAfter = max(r.RetryAfter, time.Until(tok.minted.Add(apnsMinTokenAge)))
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
