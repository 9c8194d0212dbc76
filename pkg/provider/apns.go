package provider

import (
	"cmp"
	"crypto/ecdsa"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
)

// APNsConfig is how to reach Apple's push service.
type APNsConfig struct {
	// PushConfig; its BaseURL defaults to https://api.push.apple.com.
	PushConfig
	// TeamID and KeyID of the signing key (10 characters each). Required.
	TeamID, KeyID string
	// Key is the signing key (P-256), as from ParseAPNsKey. Required.
	Key *ecdsa.PrivateKey
	// Topic is the bundle id. Required.
	Topic string
	// PushType of what has a title or body. Default "alert". (What has neither
	// is sent as "background".)
	PushType string
	// Store is how long APNs keeps a push that never expires for a device that
	// is off. Default 30 days, its own limit; negative: try once, keep nothing.
	Store time.Duration
}

func (c APNsConfig) withDefaults() APNsConfig {
	c.PushConfig = c.PushConfig.withDefaults("apns", "https://api.push.apple.com")
	c.Store = cmp.Or(c.Store, 30*24*time.Hour)
	c.PushType = cmp.Or(c.PushType, "alert")
	return c
}

func (c APNsConfig) validate() error {
	if err := required("apns", "team_id", c.TeamID, "key_id", c.KeyID, "topic", c.Topic); err != nil {
		return err
	}
	if c.Key == nil || c.Key.Curve.Params().BitSize != 256 {
		return notify.Invalid("bad_key", "apns.key", "an ECDSA key on P-256 is needed")
	}
	return c.PushConfig.validate("apns")
}

// APNs is the client of Apple's push service: a fixed number of HTTP/2
// connections, one signed token for all of them.
type APNs struct {
	*pushClient
	cfg APNsConfig
}

// NewAPNs checks cfg. Send waits until Run has opened a connection.
func NewAPNs(cfg APNsConfig) (*APNs, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPushClient("apns", cfg.PushConfig)
	if err != nil {
		return nil, err
	}
	a := &APNs{p, cfg}
	p.guard = tokenGuard{code: "apns_bad_token_spike", log: cfg.Log}
	p.token = newBearer("bearer", apnsMinTokenAge, cfg.Log, apnsMint(cfg.Key, cfg.TeamID, cfg.KeyID))
	p.prepare, p.meaning = a.newCall, apnsResult
	p.header = func(k pushKind) []h2.Field {
		return []h2.Field{{Name: "apns-topic", Value: cfg.Topic}, {Name: "apns-push-type", Value: k.pushType}, {Name: "apns-priority", Value: k.priority}}
	}
	return a, nil
}
