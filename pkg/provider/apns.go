package provider

import (
	"crypto/ecdsa"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider/h2"
	"github.com/notifyd/notifyd/pkg/setting"
)

// APNsConfig configures the client of Apple's push service. The tagged fields are the section
// providers.apns of the configuration file; only the program sets the other fields.
type APNsConfig struct {
	URL         string `koanf:"url" default:"https://api.push.apple.com" doc:"base URL of the API of APNs"`
	KeyFile     string `koanf:"key_file" doc:"file with the PKCS#8 key (.p8) that signs provider tokens"`
	KeyID       string `koanf:"key_id" doc:"id of the key in key_file"`
	TeamID      string `koanf:"team_id" doc:"id of the Apple developer team"`
	Topic       string `koanf:"topic" doc:"bundle id of the app"`
	Connections int    `koanf:"connections" default:"10" min:"1" max:"1000" doc:"number of HTTP/2 connections to keep open"`
	Confirmed   bool   `koanf:"confirmed" default:"true" doc:"true: a push that APNs accepts becomes DELIVERED, because APNs reports nothing later; false: it becomes SENT"`

	PushConfig
	// Key is the P-256 key read from KeyFile with ParseAPNsKey. Required.
	Key *ecdsa.PrivateKey
}

func (c APNsConfig) withDefaults() APNsConfig {
	confirmed := c.Confirmed // false is a valid value, which Fill would replace
	c = setting.Fill(c)
	c.Confirmed, c.PushConfig = confirmed, c.PushConfig.withDefaults("apns", c.URL)
	return c
}

func (c APNsConfig) validate() error {
	if err := requireFields("apns", "team_id", c.TeamID, "key_id", c.KeyID, "topic", c.Topic); err != nil {
		return err
	}
	if c.Key == nil || c.Key.Curve.Params().BitSize != 256 {
		return notify.Invalid("bad_key", "apns.key", "must be an ECDSA key on the curve P-256")
	}
	return setting.Err("apns", &c)
}

// APNs is the client of Apple's push service. It keeps a fixed number of HTTP/2 connections open
// and uses one signed token for all of them.
type APNs struct {
	*pushClient
	cfg APNsConfig
}

// NewAPNs checks cfg and returns a client. Send waits until Run has opened a connection.
func NewAPNs(cfg APNsConfig) (*APNs, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPushClient("apns", cfg.PushConfig, cfg.Connections, cfg.Confirmed)
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
