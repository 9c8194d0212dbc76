package simulator

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/setting"
)

// Config describes what the simulator simulates. The zero value means four providers on free
// loopback ports. They accept all valid requests, answer at once, and send receipts.
type Config struct {
	// Seed determines every key, account and random choice. 0 is a valid seed.
	Seed uint64

	// Dir is a folder that keeps the seed over restarts. The simulator also writes its credentials
	// and its CA to Dir, for other processes; only the owner can read these files. If Dir contains
	// a seed, that seed replaces Seed. If Dir contains no seed and Seed is 0, the simulator draws a
	// random seed. Empty: no files.
	Dir string

	APNs     APNsConfig
	FCM      FCMConfig
	Twilio   TwilioConfig
	SendGrid SendGridConfig

	Callback CallbackConfig

	// ControlAddr is the address of the control API and the inbox, in plain HTTP.
	ControlAddr string `default:"127.0.0.1:0"`

	// Receipts holds the settings of the receipts at the start and after a reset.
	Receipts Receipts

	// LedgerFile is a file that gets a JSON line for each receiver of each request. At the start
	// the ledger counts the receivers in the lines that the file already has. Empty: no file.
	LedgerFile string

	// LedgerMemory is about how many bytes of memory the ledger may use. The ledger stores the rest
	// in unlinked files in Dir, or in the system's folder for temporary files. See Ledger for the
	// bytes that a receiver needs in these files.
	LedgerMemory int `default:"1073741824" min:"1048576"`

	// InboxSize is the number of messages that the inbox keeps.
	InboxSize int `default:"200" min:"1"`

	// Now is the clock for token ages, quotas, rules and the ledger. Latencies and receipts use
	// timers instead. Default time.Now.
	Now func() time.Time

	// Log receives errors of the simulator itself.
	Log *slog.Logger `default:"discard"`
}

// APNsConfig configures the APNs server.
type APNsConfig struct {
	Addr string `default:"127.0.0.1:0"`
	// Topic is the bundle id. Topics that begin with the bundle id and a dot are accepted, too.
	Topic   string `default:"com.example.notifyd"`
	Streams int    `default:"1000" min:"1"` // MAX_CONCURRENT_STREAMS of a connection
	// FirstStreams is the stream limit of a connection until APNs has accepted a provider token on
	// it. Real APNs begins with one stream. 0: the limit is Streams from the start.
	FirstStreams int           `min:"0"`
	Latency      Latency       // default: no latency
	TokenTTL     time.Duration `default:"1h" above:"0"` // age at which a provider token has expired

	// TokenFloor is the least time between two changes of the provider token on a connection. A
	// faster change gets the answer 429 TooManyProviderTokenUpdates. Until the time has passed,
	// every further request on that connection gets the same answer. Below 0: no limit.
	TokenFloor time.Duration `default:"20m"`
}

// FCMConfig configures the FCM server and its token endpoint, on one port.
type FCMConfig struct {
	Addr      string        `default:"127.0.0.1:0"`
	Project   string        `default:"notifyd-dev"`
	Streams   int           `default:"100" min:"1"` // MAX_CONCURRENT_STREAMS of an HTTP/2 connection
	Latency   Latency       // default: no latency
	Quota     int           `default:"600000"`       // messages a minute for the project; below 0: no limit
	PerDevice int           `default:"240"`          // messages a minute for a device; below 0: no limit
	TokenTTL  time.Duration `default:"1h" above:"0"` // lifetime of an access token
}

// TwilioConfig configures the Twilio server.
type TwilioConfig struct {
	Addr     string          `default:"127.0.0.1:0"`
	Accounts []TwilioAccount // default: N accounts derived from the seed
	N        int             `default:"4" min:"1"` // number of accounts; ignored if Accounts is set
	Latency  Latency         // default: no latency
	// Concurrency is the highest number of requests that one account may have in progress. Further
	// requests get 429 with the error code 20429.
	Concurrency int `default:"100" min:"1"`

	// RetryAfter is the value of the Retry-After header of these 429 answers, rounded up to
	// seconds. 0: no header, as in Twilio's documentation.
	RetryAfter time.Duration `min:"0"`
}

// SendGridConfig configures the SendGrid server.
type SendGridConfig struct {
	Addr    string   `default:"127.0.0.1:0"`
	Pools   []string `default:"pool-1,pool-2,pool-3,pool-4"` // names of the IP pools
	Latency Latency  // default: no latency
}

// CallbackConfig configures the receiver of triggers.
type CallbackConfig struct {
	Addr    string  `default:"127.0.0.1:0"` // plain HTTP
	Latency Latency // default: no latency

	// Keep is the number of triggers whose calls the simulator remembers. It forgets the oldest
	// triggers first. A trigger needs about 200 bytes.
	Keep int `default:"4000000" min:"1"`
}

// Receipts describes which receipts the providers send.
type Receipts struct {
	Off bool `json:"off"` // true: no receipts are sent

	// Delay is the time from acceptance to the final receipt.
	Delay Latency `json:"delay"`

	// Undelivered is the share of messages whose receipt reports a failure, 0 to 1. The failure is
	// error code 30003 for an SMS, and a bounce for a mail.
	Undelivered float64 `json:"undelivered"`

	// Duplicates is the share of receipts that are sent twice, 0 to 1.
	Duplicates float64 `json:"duplicates"`

	// SendGridURL is the URL that receives the event webhook. Empty: no events are sent. Receipts
	// of an SMS go to the URL in the message.
	SendGridURL string `json:"sendgrid_url"`

	// Batch is the most events in one call of the event webhook.
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
			return notify.Invalid("bad_address", a.field, fmt.Sprintf("must be host:port, not %q", a.addr))
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
		return notify.Invalid("bad_rate", "receipts", "undelivered and duplicates must be shares from 0 to 1")
	}
	if r.Batch < 1 {
		return notify.Invalid("out_of_range", "receipts.batch", "must be at least 1")
	}
	if r.SendGridURL != "" {
		if u, err := url.Parse(r.SendGridURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return notify.Invalid("bad_url", "receipts.sendgrid_url", "must be an http or https URL")
		}
	}
	return nil
}
