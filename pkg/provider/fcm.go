package provider

import (
	"cmp"
	"context"
	"crypto/rsa"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// FCMConfig is how to reach Firebase Cloud Messaging (HTTP v1).
type FCMConfig struct {
	// PushConfig; its BaseURL defaults to https://fcm.googleapis.com.
	PushConfig
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
	// QuotaBlock is how long a used-up quota holds everything back when FCM
	// names no time. Default 60 s: quotas refill by the minute.
	QuotaBlock time.Duration
}

func (c FCMConfig) withDefaults() FCMConfig {
	c.PushConfig = c.PushConfig.withDefaults("fcm", "https://fcm.googleapis.com")
	c.TokenURL = cmp.Or(c.TokenURL, "https://oauth2.googleapis.com/token")
	c.QuotaBlock = cmp.Or(c.QuotaBlock, time.Minute)
	return c
}

func (c FCMConfig) validate() error {
	if err := required("fcm", "project", c.Project, "email", c.Email); err != nil {
		return err
	}
	if c.Key == nil {
		return notify.Invalid("bad_key", "fcm.key", "an RSA key is needed")
	}
	if u, err := url.Parse(c.TokenURL); err != nil || u.Host == "" {
		return notify.Invalid("bad_url", "fcm.token_url", "a URL with a host is needed")
	}
	return c.PushConfig.validate("fcm")
}

// FCM is the client of Firebase Cloud Messaging: one request per device over
// HTTP/2, one access token for all.
type FCM struct {
	*pushClient
	cfg   FCMConfig
	url   *url.URL
	oauth *http.Transport
}

// NewFCM checks cfg. Send waits until Run has opened a connection.
func NewFCM(cfg FCMConfig) (*FCM, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPushClient("fcm", cfg.PushConfig)
	if err != nil {
		return nil, err
	}
	f := &FCM{p, cfg, under(p.base, "/v1/projects/"+cfg.Project+"/messages:send"), cfg.Endpoint.transport()}
	p.guard = tokenGuard{code: "fcm_bad_token_spike", log: cfg.Log}
	p.token = newBearer("Bearer", fcmMinTokenAge, cfg.Log, f.mint)
	p.prepare = f.newCall
	p.meaning = func(a *answer, now time.Time) (notify.Result, action) { return fcmResult(a, now, cfg.QuotaBlock) }
	return f, nil
}

// Run keeps connections and token fresh until ctx ends, then waits for what is
// in flight, at most Endpoint.Timeout.
func (f *FCM) Run(ctx context.Context) error {
	defer f.oauth.CloseIdleConnections()
	return f.pushClient.Run(ctx)
}
