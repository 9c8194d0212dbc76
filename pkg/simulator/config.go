package simulator

import (
	"cmp"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
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

	// ControlAddr is where the control API and the inbox listen, in plain HTTP.
	ControlAddr string `default:"127.0.0.1:0"`

	// Receipts as they are at the start and after a reset.
	Receipts Receipts

	// LedgerFile gets a JSON line per receiver of every request. What it holds
	// already is counted first. Empty: no file.
	LedgerFile string

	// LedgerMemory is about how many bytes of memory the ledger takes. What there is no
	// room for is in files without a name in Dir, or in the system's folder for
	// temporary files: below 64 bytes a receiver.
	LedgerMemory int `default:"1073741824" min:"1048576"`

	// InboxSize is how many messages the inbox keeps.
	InboxSize int `default:"200" min:"1"`

	// Now is the clock for token ages, quotas, rules and the ledger. Latencies
	// and receipts run on timers. Default time.Now.
	Now func() time.Time

	// Log gets what goes wrong on the simulator's side.
	Log *slog.Logger `default:"discard"`
}

// APNsConfig configures the APNs server.
type APNsConfig struct {
	Addr    string `default:"127.0.0.1:0"`
	Topic   string `default:"com.example.notifyd"` // bundle id; its suffixes are accepted too
	Streams int    `default:"1000" min:"1"`        // MAX_CONCURRENT_STREAMS of a connection
	// FirstStreams is what a connection may have until a provider token of it was
	// accepted, as APNs begins with one. 0: Streams.
	FirstStreams int           `min:"0"`
	Latency      Latency       // default none
	TokenTTL     time.Duration `default:"1h" above:"0"` // age at which a provider token has expired

	// TokenFloor is the least time between two provider tokens on a connection;
	// a faster change is answered 429 TooManyProviderTokenUpdates, as is all that
	// follows on that connection within it. Below 0: no floor.
	TokenFloor time.Duration `default:"20m"`
}

// FCMConfig configures the FCM server and its token endpoint, on one port.
type FCMConfig struct {
	Addr      string        `default:"127.0.0.1:0"`
	Project   string        `default:"notifyd-dev"`
	Streams   int           `default:"100" min:"1"` // of an HTTP/2 connection
	Latency   Latency       // default none
	Quota     int           `default:"600000"`       // messages a minute of the project; below 0: no limit
	PerDevice int           `default:"240"`          // messages a minute of a device; below 0: no limit
	TokenTTL  time.Duration `default:"1h" above:"0"` // lifetime of an access token
}

// TwilioConfig configures the Twilio server.
type TwilioConfig struct {
	Addr        string          `default:"127.0.0.1:0"`
	Accounts    []TwilioAccount // default: N from the seed
	N           int             `default:"4" min:"1"` // ignored with Accounts
	Latency     Latency         // default none
	Concurrency int             `default:"100" min:"1"` // requests an account may have under way; then 429, code 20429

	// RetryAfter is sent with those 429s, rounded up to seconds. 0: the header is
	// left out, as in Twilio's documentation.
	RetryAfter time.Duration `min:"0"`
}

// SendGridConfig configures the SendGrid server.
type SendGridConfig struct {
	Addr    string   `default:"127.0.0.1:0"`
	Pools   []string `default:"pool-1,pool-2,pool-3,pool-4"` // names of the IP pools
	Latency Latency  // default none
}

// CallbackConfig configures the receiver of triggers.
type CallbackConfig struct {
	Addr    string  `default:"127.0.0.1:0"` // plain HTTP
	Latency Latency // default none

	// Keep is how many triggers the ledger of calls remembers, the oldest
	// forgotten first. Each takes about 200 bytes.
	Keep int `default:"4000000" min:"1"`
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

	// Batch is the most events in one webhook call.
	Batch int `json:"batch" default:"500"`
}

func (c Config) withDefaults() Config {
	c = setting.Fill(c)
	c.APNs, c.FCM, c.Twilio = setting.Fill(c.APNs), setting.Fill(c.FCM), setting.Fill(c.Twilio)
	c.SendGrid, c.Callback, c.Receipts = setting.Fill(c.SendGrid), setting.Fill(c.Callback), setting.Fill(c.Receipts)
	if c.Now == nil {
		c.Now = time.Now
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
		{"sendgrid.latency", c.SendGrid.Latency}, {"callback.latency", c.Callback.Latency},
	} {
		if err := l.l.validate(l.field); err != nil {
			return err
		}
	}
	if err := cmp.Or(
		setting.Err("simulator", &c), setting.Err("apns", &c.APNs), setting.Err("fcm", &c.FCM),
		setting.Err("twilio", &c.Twilio), setting.Err("sendgrid", &c.SendGrid), setting.Err("callback", &c.Callback),
	); err != nil {
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
