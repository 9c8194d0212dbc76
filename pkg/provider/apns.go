package provider

import (
	"context"
	"crypto/ecdsa"
	"log/slog"
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
	// Client is how HTTP/2 is spoken. Default ClientFrames.
	Client APNsClient
	// Log gets connection and token trouble. Default: nowhere.
	Log *slog.Logger
}

// APNsClient names one of the two ways to speak HTTP/2. They answer alike: one
// suite holds both to it.
type APNsClient string

const (
	// ClientFrames is pkg/provider/h2: many pushes are encoded and written at
	// once, for a tenth of the processor time of the other.
	ClientFrames APNsClient = "frames"
	// ClientNetHTTP is the standard library's, to compare with and to fall back on.
	ClientNetHTTP APNsClient = "net/http"
)

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
	if c.Client == "" {
		c.Client = ClientFrames
	}
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
	case c.Client != ClientFrames && c.Client != ClientNetHTTP:
		return notify.Invalid("bad_client", "apns.client", "is frames or net/http")
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
	wire  apnsWire
	token *bearer
	guard tokenGuard
}

// apnsWire is one way to speak HTTP/2.
type apnsWire interface {
	// run keeps the connections open until ctx ends, then waits for what is in
	// flight, at most Endpoint.Timeout.
	run(ctx context.Context)
	state() Connections
	// held is an error while APNs has asked for no calls.
	held() error
	// deliver brings every item of a call to an answer and reports it.
	deliver(ctx context.Context, c *apnsCall, call *notify.Call, report notify.Report)
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
	a := &APNs{cfg: cfg, base: base, guard: tokenGuard{code: "apns_bad_token_spike", log: cfg.Log}}
	a.token = newBearer("bearer", apnsMinTokenAge, cfg.Log, apnsMint(cfg.Key, cfg.TeamID, cfg.KeyID))
	if cfg.Client == ClientNetHTTP {
		a.wire = newAPNsHTTP(a)
	} else {
		a.wire = newAPNsFrames(a)
	}
	return a, nil
}

// Run keeps connections and token fresh until ctx ends, then waits for what is
// in flight, at most Endpoint.Timeout.
func (a *APNs) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { a.token.run(ctx) })
	a.wire.run(ctx)
	wg.Wait()
	return nil
}

// Connections is the state of the pool now.
func (a *APNs) Connections() Connections { return a.wire.state() }

// Send delivers every item of call and reports each once. Addresses are
// "apns:<token>" or the bare token.
func (a *APNs) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	c, err := a.newCall(call, time.Now())
	if err != nil {
		report(0, len(call.Items), failed(ctx, "apns", err))
		return
	}
	a.wire.deliver(ctx, c, call, report)
}

// judged completes the result of an answer with what it means beyond its item.
func (a *APNs) judged(it *notify.Item, r *notify.Result, then action, hold *hold) {
	switch r.Class {
	case notify.ClassAccepted:
		r.Confirmed = a.cfg.Confirm == ConfirmAccepted
		a.guard.accepted()
	case notify.ClassThrottled:
		hold.set(r)
	case notify.ClassDeadAddress:
		a.guard.judge(it, r, then)
	}
}

// renew gets a token to follow one that was refused as old. False: there is none
// yet, and r says when there may be.
func (a *APNs) renew(ctx context.Context, tok *token, r *notify.Result) (*token, bool) {
	next, err := a.token.replace(ctx, tok)
	if err == nil && next != tok {
		return next, true
	}
	r.RetryAfter = max(r.RetryAfter, time.Until(tok.minted.Add(apnsMinTokenAge)))
	return tok, false
}
