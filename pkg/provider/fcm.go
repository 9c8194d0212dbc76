package provider

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// fcmQuotaBlock is how long calls stop after a quota is used up, if FCM's answer names no time. FCM
// refills quotas every minute.
const fcmQuotaBlock = time.Minute

// FCMConfig configures the client of Firebase Cloud Messaging (HTTP v1). The tagged fields are
// the section providers.fcm of the configuration file; only the program sets the other fields.
type FCMConfig struct {
	URL         string `koanf:"url" default:"https://fcm.googleapis.com" doc:"base URL of the API of FCM"`
	TokenURL    string `koanf:"token_url" doc:"URL that issues OAuth tokens; empty: the URL in credentials_file"`
	Credentials string `koanf:"credentials_file" doc:"file with the service account's JSON key"`
	Confirmed   bool   `koanf:"confirmed" default:"true" doc:"true: a push that FCM accepts becomes DELIVERED, because FCM reports nothing later; false: it becomes SENT"`

	PushConfig
	// Connections is the number of connections to keep open; FCM allows 100 streams on each.
	Connections int `default:"10" min:"1" max:"1000"`
	// Account is read from Credentials with ParseServiceAccount. Required.
	Account ServiceAccount
}

func (c FCMConfig) withDefaults() FCMConfig {
	confirmed := c.Confirmed // false is a valid value, which Fill would replace
	c = setting.Fill(c)
	c.Confirmed, c.PushConfig = confirmed, c.PushConfig.withDefaults("fcm", c.URL)
	c.TokenURL = cmp.Or(c.TokenURL, c.Account.TokenURL, "https://oauth2.googleapis.com/token")
	return c
}

func (c FCMConfig) validate() error {
	if err := requireFields("fcm", "project", c.Account.Project, "email", c.Account.Email); err != nil {
		return err
	}
	if c.Account.Key == nil {
		return notify.Invalid("bad_key", "fcm.key", "must be an RSA key")
	}
	if u, err := url.Parse(c.TokenURL); err != nil || u.Host == "" {
		return notify.Invalid("bad_url", "fcm.token_url", "must be a URL with a host")
	}
	return setting.Err("fcm", &c)
}

// FCM is the client of Firebase Cloud Messaging. It sends one request per device over HTTP/2 and
// uses one access token for all requests.
type FCM struct {
	*pushClient
	cfg   FCMConfig
	url   *url.URL
	oauth *http.Transport
}

// NewFCM checks cfg and returns a client. Send waits until Run has opened a connection.
func NewFCM(cfg FCMConfig) (*FCM, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPushClient("fcm", cfg.PushConfig, cfg.Connections, cfg.Confirmed)
	if err != nil {
		return nil, err
	}
	f := &FCM{p, cfg, withPath(p.base, "/v1/projects/"+cfg.Account.Project+"/messages:send"), cfg.Endpoint.transport()}
	p.guard = tokenGuard{code: "fcm_bad_token_spike", log: cfg.Log}
	p.token = newBearer("Bearer", fcmMinTokenAge, cfg.Log, f.mint)
	p.prepare = f.newCall
	p.meaning = func(a *providerAnswer, now time.Time) (notify.Result, answerAction) {
		return fcmResult(a, now, fcmQuotaBlock)
	}
	return f, nil
}

// Run keeps the connections open and the token valid until ctx ends. Then it waits for requests in
// flight, at most for Endpoint.Timeout.
func (f *FCM) Run(ctx context.Context) error {
	defer f.oauth.CloseIdleConnections()
	return f.pushClient.Run(ctx)
}
