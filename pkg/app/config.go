package app

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/api"
	"github.com/notifyd/notifyd/pkg/archive/s3"
	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/engine/sqs"
	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/server"
	"github.com/notifyd/notifyd/pkg/setting"
	"github.com/notifyd/notifyd/pkg/trace"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Config is the configuration of a notifyd process. The tags of a field define a value: its key, its
// default, its range (see pkg/setting) and its documentation. `notifyd config example` prints the
// documentation. The method validate checks the rules that concern several values.
type Config struct {
	// Version is the version of the program. The command sets it. It cannot be configured.
	Version string `koanf:"-"`
	// Dev is true if "notifyd dev" runs the process. DataDir is then the folder "data" inside the
	// --data-dir of that command. Backups store the value of Dev. It cannot be configured.
	Dev bool `koanf:"-"`

	DataDir string `koanf:"data_dir" doc:"folder of the embedded log and stores; empty: $XDG_DATA_HOME/notifyd"`

	Engines   string           `koanf:"engines" default:"embedded" oneof:"embedded distributed" doc:"embedded: log and stores in this process and its data_dir; distributed: the servers of kafka, cassandra, redis and postgres, which many processes share"`
	Roles     []string         `koanf:"roles" default:"all" doc:"roles of this process: all, or with engines: distributed some of api, worker (or only some lanes: worker:push, worker:sms-bulk, ...), scheduler, dispatcher, operator"`
	Instance  string           `koanf:"instance" doc:"name of this process in lists of processes and in leases, to which each start adds a unique part; give each process its own name; empty: the host's name"`
	Kafka     log.Config       `koanf:"kafka"`
	Cassandra cassandra.Config `koanf:"cassandra"`
	Redis     redis.Config     `koanf:"redis"`
	Postgres  postgres.Config  `koanf:"postgres"`
	SQS       sqs.Config       `koanf:"sqs"`

	API  server.Config     `koanf:"api"`
	Auth server.AuthConfig `koanf:"auth"`

	Secrets struct {
		KeyFile string `koanf:"key_file" doc:"file with the key that seals (encrypts) callers' signing secrets in the store: 32 bytes in base64 (openssl rand -base64 32). To change the key, put the new key on the line above the old one. Keep the file with the configuration, apart from backups. With engines: distributed, give every process the same file; empty: the secrets are not sealed. With engines: embedded, notifyd makes the file if it is missing and no secret is sealed yet; empty: the name of data_dir plus .secrets-key, beside data_dir"`
	} `koanf:"secrets"`

	Log struct {
		Listen     string         `koanf:"listen" default:"127.0.0.1:7422" is:"loopback" empty:"yes" doc:"loopback address at which Kafka clients such as kcat and rpk can read the embedded log, but not write to it; port 0: any free port; off: none"`
		Partitions map[string]int `koanf:"partitions" doc:"number of partitions of the topics of each channel. With engines: distributed the defaults are push 18, sms 12 and email 84; notifyd migrate up can raise a number to a multiple of it while processes run"`
		Sync       bool           `koanf:"sync" default:"true" doc:"true: each record is fsynced before it is acknowledged; false: a power cut loses acknowledged records"`
		CapMiB     int            `koanf:"cap_mib" default:"2048" min:"64" doc:"largest size of the embedded log in MiB; at this size intake answers 503 log_full, for marketing and digest already at seven eighths of it"`
		MinFreeMiB int            `koanf:"min_free_mib" default:"256" min:"1" doc:"MiB that must stay free on the volume of the embedded log; with less, intake answers 503 disk_full"`
		Linger     time.Duration  `koanf:"linger" default:"2ms" min:"0" doc:"how long a record waits for other records, to be written with them in one batch and one fsync; 0: it does not wait"`
	} `koanf:"log"`

	Intake struct {
		Refuse      map[string][]string `koanf:"refuse" doc:"categories a channel refuses, e.g. {sms: [marketing, digest]}"`
		SMS         []string            `koanf:"sms_categories" default:"otp,alert" is:"category" doc:"categories that may be sent by SMS; all others are refused"`
		BulkWait    time.Duration       `koanf:"bulk_wait" default:"1s" above:"0" doc:"longest expected wait with which intake accepts a batch, a fan-out or a marketing or digest notification; above it, intake answers 503 overloaded"`
		SpillMiB    int                 `koanf:"spill_mib" default:"64" min:"1" doc:"size of the spill buffer in MiB: it keeps otp and alert while the log does not accept records; when it is full, they get 503 spill_full"`
		Idempotency time.Duration       `koanf:"idempotency" default:"24h" above:"0" doc:"how long an Idempotency-Key is kept at least; until then a repeated request gets the first answer again"`
	} `koanf:"intake"`

	History struct {
		Retention time.Duration `koanf:"retention" default:"720h" above:"0" doc:"how long outcomes and the history are kept; a request for an older id gets 410"`
	} `koanf:"history"`

	Archive struct {
		Dir   string        `koanf:"dir" doc:"folder for compressed files of dead letters and outcomes, before they age out; empty: no archive"`
		Every time.Duration `koanf:"every" default:"1h" above:"0" doc:"how often archive files are written"`
		After time.Duration `koanf:"after" default:"24h" above:"0" doc:"age at which outcomes are archived; receipts that come later are not in the archive; must be below history.retention"`
		Wait  time.Duration `koanf:"wait" default:"168h" above:"0" doc:"how much longer than its retention data is kept if it is not archived yet; after that it is removed without being archived"`
		S3    s3.Config     `koanf:"s3"`
	} `koanf:"archive"`

	Timers struct {
		Shards      int           `koanf:"shards" default:"16" min:"1" max:"4096" doc:"number of timer shards. A store keeps the number of its first start. With engines: distributed the default is 64, and notifyd migrate up can raise the number while processes run"`
		MaxDelay    time.Duration `koanf:"max_delay" default:"8784h" above:"0" doc:"how far ahead notifications and triggers may be scheduled; a later time is refused"`
		Jitter      time.Duration `koanf:"jitter" default:"5s" min:"0" max:"1h" doc:"longest random delay that is added to the time of scheduled notifications and triggers, at most a tenth of the time until they are due; none for otp and alert, and for triggers that set exact or their own jitter; 0: none"`
		CatchUpRate int           `koanf:"catch_up_rate" default:"20000" min:"1" doc:"how many late timers a second all processes together release; a timer is late if it became due while no process released it"`
	} `koanf:"timers"`

	Triggers struct {
		Plain          bool          `koanf:"plain" doc:"allow callback URLs with http://, not only with https://"`
		Allow          []string      `koanf:"allow" doc:"IP prefixes that callbacks may call although they are not on the public internet, e.g. [10.1.0.0/16]"`
		Deny           []string      `koanf:"deny" doc:"IP prefixes that callbacks may not call, in addition to the built-in ones; deny wins over allow"`
		Ports          []int         `koanf:"ports" doc:"ports that callbacks may call; empty: 443, and with triggers.plain also 80; [0]: all ports"`
		Timeout        time.Duration `koanf:"timeout" default:"10s" above:"0" max:"25s" doc:"time limit of a callback, from the look-up of the host name to the end of the answer"` // at most 25 s, so that a call ends within its claim
		CallerInFlight int           `koanf:"caller_in_flight" default:"100" min:"1" doc:"highest number of concurrent callbacks of a caller that has no limit of its own, over all processes"`
		InFlight       int           `koanf:"in_flight" default:"4096" min:"1" doc:"highest number of concurrent callbacks of all callers, in each process"`
		MaxPending     int           `koanf:"max_pending" default:"1000000" min:"1" doc:"highest number of waiting triggers of a caller that has no limit of its own; at this number new triggers get 429 too_many_pending"`
	} `koanf:"triggers"`

	Jobs struct {
		ApproveAbove int           `koanf:"approve_above" min:"0" doc:"a job for more dead letters or findings than this waits for the approval of another operator; 0: no job waits"`
		Keep         time.Duration `koanf:"keep" default:"2160h" above:"0" doc:"how long a job that is done or cancelled is kept with its report"`
		Most         int           `koanf:"most" default:"1000" min:"1" doc:"highest number of done or cancelled jobs that are kept; the oldest are removed first"`
	} `koanf:"jobs"`

	Audit struct {
		Every  time.Duration `koanf:"every" default:"1h" min:"0" doc:"how often an audit runs: it checks that everything accepted has an outcome or is on its way; 0: only on request (notifyctl audit)"`
		Window time.Duration `koanf:"window" default:"26h" min:"0" doc:"how far back each audit of audit.every looks; 0: it checks everything that is kept"`
	} `koanf:"audit"`

	Workers struct {
		Push       Lane          `koanf:"push" doc:"limits of the lanes push and push-bulk"`
		SMS        Lane          `koanf:"sms" doc:"limits of the lanes sms and sms-bulk"`
		Email      Lane          `koanf:"email" doc:"limits of the lanes email and email-bulk"`
		MaxRetries int           `koanf:"max_retries" default:"3" min:"0" doc:"how many attempts may follow the first one before a notification fails; 0: none"`
		BatchAge   time.Duration `koanf:"batch_age" default:"5s" above:"0" doc:"longest time that a mail waits for mails with the same content, to be sent with them in one request"`
		Strict     []string      `koanf:"strict" is:"lane" doc:"lanes in which a user's messages wait while an earlier message of the user is retried or deferred, e.g. [push, sms, email-bulk]; in other lanes they overtake it"`
		Bulk       float64       `koanf:"bulk_share" default:"0.5" above:"0" max:"1" doc:"share that bulk lanes may use of the rate and the concurrent requests of each SMS account and mail pool, e.g. 0.5; no effect on push"`
		Drain      time.Duration `koanf:"drain" default:"20s" above:"0" doc:"how long a process that is stopped waits for requests and calls in progress"`
		CallLimit  time.Duration `koanf:"call_limit" default:"30s" above:"0" doc:"time limit of one call to a provider"`
	} `koanf:"workers"`

	Providers struct {
		Stub          bool                    `koanf:"stub" doc:"true: accept every message inside the process and call no provider, to measure the rest of notifyd"`
		Simulated     bool                    `koanf:"simulated" doc:"true: the URLs of all providers below belong to simulators, so that a load run needs no approval by a second operator; notifyd then refuses the URLs of real providers"`
		CAFile        string                  `koanf:"ca_file" doc:"PEM of a CA that is trusted for connections to providers, in addition to the system's CAs"`
		ConfigOpenFor time.Duration           `koanf:"config_open_for" default:"5m" above:"0" doc:"how long a provider that refused the credentials or settings of notifyd is not called; its notifications wait"`
		APNs          provider.APNsConfig     `koanf:"apns"`
		FCM           provider.FCMConfig      `koanf:"fcm"`
		Twilio        provider.TwilioConfig   `koanf:"twilio"`
		SendGrid      provider.SendGridConfig `koanf:"sendgrid"`
	} `koanf:"providers"`

	Tracing trace.Config `koanf:"tracing"`

	Logging struct {
		Level  string `koanf:"level" default:"info" oneof:"debug info warn error" doc:"lowest level of log messages that are written: debug, info, warn or error"`
		Format string `koanf:"format" default:"json" oneof:"json text" doc:"form of log messages: json or text"`
	} `koanf:"logging"`
}

// Lane holds the settings of a channel's lanes.
type Lane struct {
	InFlight int `koanf:"in_flight" min:"1" doc:"highest number of addresses in provider calls at the same time; each lane of a process has this limit, and its retries have the same limit again"`
	Window   int `koanf:"window" min:"1" doc:"highest number of receivers that share one claim (a claim window)"`
	Ahead    int `koanf:"ahead" min:"1" doc:"how many claim windows a partition may have open at the same time; if calls take a second or longer, it may open more, within in_flight"`
}

// DefaultFor returns the defaults for a value of Config.Engines. With servers, the numbers of
// partitions and timer shards are the numbers of the capacity sheet (pkg/tool/capacity). With embedded
// engines, one process owns all partitions and shards, and smaller numbers cost it less.
func DefaultFor(engines string) Config {
	c := Default()
	if engines == EnginesDistributed {
		c.Engines = engines
		c.Log.Partitions = map[string]int{"push": 18, "sms": 12, "email": 84}
		c.Timers.Shards = 64
	}
	return c
}

// Default returns the configuration of a process for which no file, environment variable or flag sets a
// value.
func Default() Config {
	c := setting.Fill(Config{})
	c.Log.Partitions = map[string]int{"push": 6, "sms": 4, "email": 4}
	c.Workers.Push = Lane{InFlight: 10_000, Window: 1000, Ahead: 16}
	c.Workers.SMS = Lane{InFlight: 5000, Window: 50, Ahead: 16}
	c.Workers.Email = Lane{InFlight: 16_000, Window: 1000, Ahead: 16}
	return c
}

// breaker returns the configuration of every circuit breaker.
func (c *Config) breaker() limit.BreakerConfig {
	return limit.BreakerConfig{ConfigOpenFor: c.Providers.ConfigOpenFor}
}

// providerMode returns which kind of providers the workers call. The kind is one of api.ProviderModes.
func (c *Config) providerMode() string {
	switch {
	case c.Providers.Stub:
		return api.ProvidersStub
	case c.Providers.Simulated:
		return api.ProvidersSimulated
	}
	return api.ProvidersReal
}

func (c *Config) callsReal() bool { return c.providerMode() == api.ProvidersReal }

func (c *Config) lane(l notify.Lane) Lane {
	switch l.Channel {
	case notify.Push:
		return c.Workers.Push
	case notify.SMS:
		return c.Workers.SMS
	}
	return c.Workers.Email
}

// Settings returns the figures that limit how much work a process does. It does not read
// providers.twilio.accounts_file, so it does not count the accounts in that file.
func (c *Config) Settings() api.ProcessSettings {
	s := api.ProcessSettings{TimerShards: c.Timers.Shards, CatchUpRate: c.Timers.CatchUpRate, CallerRate: c.API.Rate}
	for _, ch := range notify.Channels {
		l := c.lane(notify.Lane{Channel: ch})
		one := api.ChannelSettings{Channel: ch.String(), Partitions: c.partitions(ch), InFlight: l.InFlight, Window: l.Window}
		p := &c.Providers
		switch ch {
		case notify.Push:
			one.Connections = p.APNs.Connections
		case notify.SMS:
			one.Accounts, one.AccountRate, one.Parallel = len(p.Twilio.Accounts), p.Twilio.Rate, p.Twilio.Concurrency
		case notify.Email:
			one.Accounts, one.AccountRate = len(p.SendGrid.Pools), p.SendGrid.Rate
		}
		s.Channels = append(s.Channels, one)
	}
	return s
}

// order returns worker.Strict if a lane keeps strict order, and worker.Relaxed otherwise.
func (c *Config) order(l notify.Lane) worker.Order {
	if slices.Contains(c.Workers.Strict, l.String()) {
		return worker.Strict
	}
	return worker.Relaxed
}

// partitions returns the number of partitions of a channel's topics.
func (c *Config) partitions(ch notify.Channel) int { return c.Log.Partitions[ch.String()] }

// instance returns the configured name of this process. If no name is configured, it returns the name
// of the host.
func (c *Config) instance() string {
	if c.Instance != "" {
		return c.Instance
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "notifyd"
}

// publicURL returns the URL at which providers reach the API.
func (c *Config) publicURL() string {
	if c.API.PublicURL != "" {
		return strings.TrimRight(c.API.PublicURL, "/")
	}
	return "http://" + c.API.Listen
}
