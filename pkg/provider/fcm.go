package provider

import (
	"context"
	"crypto/rsa"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// FCMConfig is how to reach Firebase Cloud Messaging (HTTP v1).
type FCMConfig struct {
	// Endpoint; BaseURL defaults to https://fcm.googleapis.com.
	Endpoint Endpoint
	// Project is the Firebase project's id. Required.
	Project string
	// Email and Key are of the service account, as from ParseServiceAccount.
	// Required.
	Email string
	Key   *rsa.PrivateKey
	KeyID string
	// TokenURL exchanges the account's assertion for a token. Default
	// https://oauth2.googleapis.com/token.
	TokenURL string
	// Connections to keep open; FCM gives each 100 streams. Default 10.
	Connections int
	// Stagger, BackoffMin, BackoffMax: as of APNsConfig.
	Stagger, BackoffMin, BackoffMax time.Duration
	// QuotaBlock is how long a used-up quota holds everything back when FCM
	// names no time. Default 60 s: quotas refill by the minute.
	QuotaBlock time.Duration
	// Concurrency is how many items of one call are sent at a time. Default 1,000.
	Concurrency int
	// Confirm: default ConfirmAccepted.
	Confirm Confirmation
	// Log gets connection and token trouble. Default: nowhere.
	Log *slog.Logger
}

func (c FCMConfig) withDefaults() FCMConfig {
	c.Endpoint = c.Endpoint.withDefaults("https://fcm.googleapis.com", 10*time.Second)
	if c.TokenURL == "" {
		c.TokenURL = "https://oauth2.googleapis.com/token"
	}
	c.Connections = orInt(c.Connections, 10)
	c.Concurrency = orInt(c.Concurrency, 1000)
	c.Stagger = orTime(c.Stagger, 200*time.Millisecond)
	c.BackoffMin = orTime(c.BackoffMin, 500*time.Millisecond)
	c.BackoffMax = orTime(c.BackoffMax, 30*time.Second)
	c.QuotaBlock = orTime(c.QuotaBlock, time.Minute)
	c.Confirm = c.Confirm.or(ConfirmAccepted)
	c.Log = orDiscard(c.Log).With("provider", "fcm")
	return c
}

func (c FCMConfig) validate() error {
	if err := required("fcm", "project", c.Project, "email", c.Email); err != nil {
		return err
	}
	switch {
	case c.Key == nil:
		return notify.Invalid("bad_key", "fcm.key", "an RSA key is needed")
	case c.Connections < 1 || c.Connections > 1000:
		return notify.Invalid("bad_connections", "fcm.connections", "1 to 1000 connections")
	case c.Concurrency < 1:
		return notify.Invalid("bad_concurrency", "fcm.concurrency", "at least 1")
	}
	if u, err := url.Parse(c.TokenURL); err != nil || u.Host == "" {
		return notify.Invalid("bad_url", "fcm.token_url", "a URL with a host is needed")
	}
	return nil
}

// FCM is the client of Firebase Cloud Messaging: one request per device over
// HTTP/2, one access token for all.
type FCM struct {
	cfg   FCMConfig
	url   *url.URL
	pool  *connPool
	token *bearer
	oauth *http.Transport
	guard tokenGuard
}

// NewFCM checks cfg. Send waits until Run has opened a connection.
func NewFCM(cfg FCMConfig) (*FCM, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	base, err := cfg.Endpoint.parse("fcm")
	if err != nil {
		return nil, err
	}
	f := &FCM{cfg: cfg, url: under(base, "/v1/projects/"+cfg.Project+"/messages:send"), oauth: cfg.Endpoint.transport(http1), guard: tokenGuard{code: "fcm_bad_token_spike", log: cfg.Log}}
	f.token = newBearer("Bearer", fcmMinTokenAge, cfg.Log, f.mint)
	f.pool = newConnPool(cfg.Connections, cfg.Stagger, cfg.BackoffMin, cfg.BackoffMax, cfg.Endpoint, base, cfg.Log)
	return f, nil
}

// Run keeps connections and token fresh until ctx ends, then waits for what is
// in flight, at most Endpoint.Timeout.
func (f *FCM) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { f.token.run(ctx) })
	f.pool.run(ctx)
	wg.Wait()
	f.oauth.CloseIdleConnections()
	return nil
}

// Connections is the state of the pool now.
func (f *FCM) Connections() Connections { return f.pool.state() }

// Send delivers every item of call and reports each once. Addresses are
// "fcm:<token>" or the bare token.
func (f *FCM) Send(ctx context.Context, call *notify.Call, report notify.Report) {
	c, err := newFCMCall(call, time.Now())
	if err != nil {
		report(0, len(call.Items), failed(ctx, "fcm", err))
		return
	}
	each(len(call.Items), f.cfg.Concurrency, func() func(int) {
		w := &fcmWriter{call: c, vars: c.vars.Fork()}
		return func(i int) { report.One(i, f.send(ctx, w, call.Category, &call.Items[i])) }
	})
}

func (f *FCM) send(ctx context.Context, w *fcmWriter, cat notify.Category, it *notify.Item) notify.Result {
	message, err := w.message(it)
	if err != nil {
		return failed(ctx, "fcm", err)
	}
	var r notify.Result
	var then action
	judge := func(ans *answer) connState {
		r, then = fcmResult(ans, time.Now(), f.cfg.QuotaBlock)
		return connStateOf(ans.status, then)
	}
	for renewed := false; ; renewed = true {
		tok, err := f.token.get(ctx)
		if err != nil {
			return failed(ctx, "fcm", err)
		}
		h := http.Header{"Authorization": tok.header, "Content-Type": jsonHeader, "User-Agent": agentHeader}
		w.call.trace.put(h)
		if _, lost := f.pool.post(ctx, cat, "fcm", f.cfg.Endpoint.Timeout, f.url, h, message, judge); lost != nil {
			return *lost
		}
		switch {
		case r.Class == notify.ClassAccepted:
			r.Confirmed = f.cfg.Confirm == ConfirmAccepted
			f.guard.accepted()
		case r.Class == notify.ClassDeadAddress:
			f.guard.judge(it, &r, then)
		case r.Class == notify.ClassThrottled:
			f.pool.hold.set(&r)
		case then == renewToken && !renewed:
			if next, err := f.token.replace(ctx, tok); err == nil && next != tok {
				continue
			}
		}
		return r
	}
}
