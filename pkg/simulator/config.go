package simulator

import (
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// Config says what to simulate. The zero value is four providers on free
// loopback ports that accept everything valid, at once, and send receipts.
type Config struct {
	// Seed gives every key, account and random choice. 0 is a seed as good as any.
	Seed uint64

	// Dir keeps the seed over restarts, and holds the credentials and the CA as
	// files for other processes, readable by the owner alone. A seed found there
	// wins over Seed; when there is none and Seed is 0, one is drawn. Empty: no files.
	Dir string

	APNs     APNsConfig
	FCM      FCMConfig
	Twilio   TwilioConfig
	SendGrid SendGridConfig

	Callback CallbackConfig

	// OAuthLatency is that of FCM's token endpoint. Default: none.
	OAuthLatency Latency

	// ControlAddr is where the control API and the inbox listen, in plain HTTP.
	// Default 127.0.0.1:0.
	ControlAddr string

	// Receipts as they are at the start and after a reset.
	Receipts Receipts

	// LedgerFile gets a JSON line per receiver of every request. What it holds
	// already is counted first. Empty: no file.
	LedgerFile string

	// InboxSize is how many messages the inbox keeps. Default 200.
	InboxSize int

	// Now is the clock for token ages, quotas, rules and the ledger. Latencies
	// and receipts run on timers. Default time.Now.
	Now func() time.Time

	// Log gets what goes wrong on the simulator's side. Default: discarded.
	Log *slog.Logger
}

// APNsConfig configures the APNs server.
type APNsConfig struct {
	Addr    string // default 127.0.0.1:0
	KeyPEM  string // PKCS #8 P-256 key of the provider token; default from the seed
	KeyID   string // default from the seed
	TeamID  string // default from the seed
	Topic   string // bundle id, default com.example.notifyd; its suffixes are accepted too
	Streams int    // MAX_CONCURRENT_STREAMS of a connection, default 1000
	// FirstStreams is what a connection may have until a provider token of it was
	// accepted, as APNs begins with one. 0: Streams.
	FirstStreams int

	Latency   Latency       // default none
	PerDevice int           // notifications a device takes per minute, then 429; 0: no limit
	TokenTTL  time.Duration // age at which a provider token has expired, default 1 h

	// TokenFloor is the least time between two provider tokens on a connection;
	// a faster change is answered 429 TooManyProviderTokenUpdates, as is all that
	// follows on that connection within it. Default 20 min; below 0: no floor.
	TokenFloor time.Duration
}

// FCMConfig configures the FCM server and its token endpoint, on one port.
type FCMConfig struct {
	Addr      string        // default 127.0.0.1:0
	KeyPEM    string        // PKCS #8 RSA key of the service account; default from the seed
	Project   string        // default notifyd-dev
	Streams   int           // of an HTTP/2 connection, default 100
	Latency   Latency       // default none
	Quota     int           // messages a minute of the project, default 600,000; below 0: no limit
	PerDevice int           // messages a minute of a device, default 240; below 0: no limit
	TokenTTL  time.Duration // lifetime of an access token, default 1 h
}

// TwilioConfig configures the Twilio server.
type TwilioConfig struct {
	Addr        string          // default 127.0.0.1:0
	Accounts    []TwilioAccount // default: N from the seed
	N           int             // default 4; ignored with Accounts
	Latency     Latency         // default none
	Concurrency int             // requests an account may have under way, default 100; then 429, code 20429

	// RetryAfter is sent with those 429s, rounded up to seconds. 0: the header is
	// left out, as in Twilio's documentation.
	RetryAfter time.Duration

	// SenderMPS is how many segments a second a sender hands to the network; a
	// queue of more than 10 h is refused with 21611, and a message that would wait
	// longer than its ValidityPeriod fails with 30036. 0: no limit.
	SenderMPS float64
}

// SendGridConfig configures the SendGrid server.
type SendGridConfig struct {
	Addr       string        // default 127.0.0.1:0
	APIKey     string        // default from the seed
	Pools      []string      // names of the IP pools, default pool-1 to pool-4
	Latency    Latency       // default none
	RateLimit  int           // requests a pool takes per RateWindow, then 429; 0: no limit
	RateWindow time.Duration // default 1 s
}

// CallbackConfig configures the receiver of triggers.
type CallbackConfig struct {
	Addr    string  // default 127.0.0.1:0, plain HTTP
	Latency Latency // default none

	// Secret is what calls must be signed with, whsec_ and base64 (Standard
	// Webhooks); the control API changes it. Empty: that of the credentials, and
	// calls that are not signed well are only counted.
	Secret string

	// Keep is how many triggers the ledger of calls remembers, the oldest
	// forgotten first. Default 4,000,000, about 200 bytes each.
	Keep int
}

// Receipts says what the providers send back.
type Receipts struct {
	Off bool `json:"off"` // send none

	// Delay is the time from acceptance to the final receipt.
	Delay Latency `json:"delay"`

	// Undelivered is the share of messages whose receipt reports a failure: 30003
	// for an SMS, a bounce for a mail. 0 to 1.
	Undelivered float64 `json:"undelivered"`

	// Duplicates is the share of receipts sent twice. 0 to 1.
	Duplicates float64 `json:"duplicates"`

	// SendGridURL takes the event webhook. Empty: no events; the URL of an SMS
	// comes with the message.
	SendGridURL string `json:"sendgrid_url"`

	// Batch is the most events in one webhook call. Default 500.
	Batch int `json:"batch"`
}

func (c Config) withDefaults() Config {
	const free = "127.0.0.1:0"
	for _, a := range []*string{&c.APNs.Addr, &c.FCM.Addr, &c.Twilio.Addr, &c.SendGrid.Addr, &c.ControlAddr, &c.Callback.Addr} {
		if *a == "" {
			*a = free
		}
	}
	if c.APNs.Topic == "" {
		c.APNs.Topic = "com.example.notifyd"
	}
	c.APNs.Streams = orInt(c.APNs.Streams, 1000)
	c.APNs.TokenTTL = orDuration(c.APNs.TokenTTL, time.Hour)
	c.APNs.TokenFloor = orDuration(c.APNs.TokenFloor, 20*time.Minute)
	if c.FCM.Project == "" {
		c.FCM.Project = "notifyd-dev"
	}
	c.FCM.Streams = orInt(c.FCM.Streams, 100)
	c.FCM.Quota = orInt(c.FCM.Quota, 600_000)
	c.FCM.PerDevice = orInt(c.FCM.PerDevice, 240)
	c.FCM.TokenTTL = orDuration(c.FCM.TokenTTL, time.Hour)
	c.Twilio.N = orInt(c.Twilio.N, 4)
	c.Twilio.Concurrency = orInt(c.Twilio.Concurrency, 100)
	if len(c.SendGrid.Pools) == 0 {
		c.SendGrid.Pools = []string{"pool-1", "pool-2", "pool-3", "pool-4"}
	}
	c.SendGrid.RateWindow = orDuration(c.SendGrid.RateWindow, time.Second)
	c.Callback.Keep = orInt(c.Callback.Keep, 4_000_000)
	c.Receipts.Batch = orInt(c.Receipts.Batch, 500)
	c.InboxSize = orInt(c.InboxSize, 200)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	for _, a := range []struct{ field, addr string }{
		{"apns.addr", c.APNs.Addr}, {"fcm.addr", c.FCM.Addr}, {"twilio.addr", c.Twilio.Addr},
		{"sendgrid.addr", c.SendGrid.Addr}, {"control_addr", c.ControlAddr}, {"callback.addr", c.Callback.Addr},
	} {
		if _, _, err := net.SplitHostPort(a.addr); err != nil {
			return notify.Invalid("bad_address", a.field, "is a host and a port")
		}
	}
	for _, l := range []struct {
		field string
		l     Latency
	}{
		{"apns.latency", c.APNs.Latency}, {"fcm.latency", c.FCM.Latency}, {"twilio.latency", c.Twilio.Latency},
		{"sendgrid.latency", c.SendGrid.Latency}, {"oauth_latency", c.OAuthLatency},
		{"callback.latency", c.Callback.Latency},
	} {
		if err := l.l.validate(l.field); err != nil {
			return err
		}
	}
	for _, n := range []struct {
		field string
		ok    bool
	}{
		{"apns.streams", c.APNs.Streams > 0}, {"apns.first_streams", c.APNs.FirstStreams >= 0}, {"apns.per_device", c.APNs.PerDevice >= 0}, {"apns.token_ttl", c.APNs.TokenTTL > 0},
		{"fcm.streams", c.FCM.Streams > 0}, {"fcm.token_ttl", c.FCM.TokenTTL > 0},
		{"twilio.n", c.Twilio.N > 0}, {"twilio.concurrency", c.Twilio.Concurrency > 0},
		{"twilio.retry_after", c.Twilio.RetryAfter >= 0}, {"twilio.sender_mps", c.Twilio.SenderMPS >= 0},
		{"sendgrid.rate_limit", c.SendGrid.RateLimit >= 0}, {"sendgrid.rate_window", c.SendGrid.RateWindow > 0},
		{"inbox_size", c.InboxSize > 0}, {"callback.keep", c.Callback.Keep > 0},
	} {
		if !n.ok {
			return notify.Invalid("out_of_range", n.field, "is out of its range")
		}
	}
	if _, err := parseSecret(c.Callback.Secret); err != nil {
		return err
	}
	return c.Receipts.validate()
}

func (r Receipts) validate() error {
	if err := r.Delay.validate("receipts.delay"); err != nil {
		return err
	}
	if !(r.Undelivered >= 0 && r.Undelivered <= 1 && r.Duplicates >= 0 && r.Duplicates <= 1) {
		return notify.Invalid("bad_rate", "receipts", "undelivered and duplicates are shares from 0 to 1")
	}
	if r.Batch < 1 {
		return notify.Invalid("out_of_range", "receipts.batch", "is at least 1")
	}
	if r.SendGridURL != "" {
		if u, err := url.Parse(r.SendGridURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return notify.Invalid("bad_url", "receipts.sendgrid_url", "is an http or https URL")
		}
	}
	return nil
}

func orDuration(v, def time.Duration) time.Duration {
	if v == 0 {
		return def
	}
	return v
}
