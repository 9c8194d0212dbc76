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
// documentation. Rules about several values are in validate.
type Config struct {
	// Version is the version of the program. The command sets it. It cannot be configured.
	Version string `koanf:"-"`
	// Dev is true if "notifyd dev" runs the process. DataDir is then the folder "data" inside the
	// --data-dir of that command. Backups store the value of Dev. It cannot be configured.
	Dev bool `koanf:"-"`

	DataDir string `koanf:"data_dir" doc:"folder of the embedded log and stores; empty: $XDG_DATA_HOME/notifyd"`

	Engines   string           `koanf:"engines" default:"embedded" oneof:"embedded distributed" doc:"embedded: log and stores in this process and its data_dir; distributed: the servers of kafka, cassandra, redis and postgres, which many processes share"`
	Roles     []string         `koanf:"roles" default:"all" doc:"what this process does, with engines: distributed: all, or some of api, worker (or worker:push, worker:sms-bulk, ...), scheduler, dispatcher, operator"`
	Instance  string           `koanf:"instance" doc:"name of this process in leases and logs; empty: the host's name; each start adds what makes it unique"`
	Kafka     log.Config       `koanf:"kafka"`
	Cassandra cassandra.Config `koanf:"cassandra"`
	Redis     redis.Config     `koanf:"redis"`
	Postgres  postgres.Config  `koanf:"postgres"`
	SQS       sqs.Config       `koanf:"sqs"`

	API  server.Config     `koanf:"api"`
	Auth server.AuthConfig `koanf:"auth"`

	Secrets struct {
		KeyFile string `koanf:"key_file" doc:"file with the key that seals callers' signing secrets in the store: 32 bytes in base64 (openssl rand -base64 32); a new key goes on the line above the old one. Keep it with the configuration, apart from backups. With engines: distributed every process has the same file; empty: they are stored in clear. With engines: embedded it is made where nothing is sealed yet; empty: data_dir with .secrets-key behind its name"`
	} `koanf:"secrets"`

	Log struct {
		Listen     string         `koanf:"listen" default:"127.0.0.1:7422" is:"loopback" empty:"yes" doc:"loopback address where kcat and rpk read the embedded log, which nobody can write to there; port 0: any; off: none"`
		Partitions map[string]int `koanf:"partitions" doc:"partitions of each channel's topics; with engines: distributed 18, 12 and 84 unless set, and notifyd migrate up raises them, to multiples, while processes run"`
		Sync       bool           `koanf:"sync" default:"true" doc:"fsync before a record is acknowledged; off loses acknowledged records at a power cut"`
		CapMiB     int            `koanf:"cap_mib" default:"2048" min:"64" doc:"MiB the embedded log may hold; at the cap intake answers 503"`
		MinFreeMiB int            `koanf:"min_free_mib" default:"256" min:"1" doc:"MiB that must stay free on its volume"`
		Linger     time.Duration  `koanf:"linger" default:"2ms" min:"0" doc:"how long records wait for others to share a batch and its fsync"`
	} `koanf:"log"`

	Intake struct {
		Refuse      map[string][]string `koanf:"refuse" doc:"categories a channel refuses, e.g. {sms: [marketing, digest]}"`
		SMS         []string            `koanf:"sms_categories" default:"otp,alert" is:"category" doc:"categories SMS takes"`
		BulkWait    time.Duration       `koanf:"bulk_wait" default:"1s" above:"0" doc:"longest expected wait with which a batch or a fan-out is taken; over it 503 overloaded"`
		SpillMiB    int                 `koanf:"spill_mib" default:"64" min:"1" doc:"MiB of otp and alert kept while the log is away"`
		Idempotency time.Duration       `koanf:"idempotency" default:"24h" above:"0" doc:"how long idempotency keys are kept at least"`
	} `koanf:"intake"`

	History struct {
		Retention time.Duration `koanf:"retention" default:"720h" above:"0" doc:"how long who-got-what is kept; older ids answer 410"`
	} `koanf:"history"`

	Archive struct {
		Dir   string        `koanf:"dir" doc:"folder for compressed files of dead letters and outcomes, before they age out; empty: no archive"`
		Every time.Duration `koanf:"every" default:"1h" above:"0" doc:"how often files are written"`
		After time.Duration `koanf:"after" default:"24h" above:"0" doc:"how old an outcome is when it is archived: later receipts are not in it; below history.retention"`
		Wait  time.Duration `koanf:"wait" default:"168h" above:"0" doc:"how long what has aged out is kept for an archive that is behind"`
		S3    s3.Config     `koanf:"s3"`
	} `koanf:"archive"`

	Timers struct {
		Shards      int           `koanf:"shards" default:"16" min:"1" max:"4096" doc:"partitions of each minute; with engines: distributed 64 unless set; a store keeps the number it was first started with; with engines: distributed, notifyd migrate up raises it while processes run"`
		MaxDelay    time.Duration `koanf:"max_delay" default:"8784h" above:"0" doc:"how far ahead notifications and triggers may be scheduled"`
		Jitter      time.Duration `koanf:"jitter" default:"5s" min:"0" max:"1h" doc:"largest spread of scheduled notifications and triggers: later only, at most a tenth of the delay; never otp, alert or exact"`
		CatchUpRate int           `koanf:"catch_up_rate" default:"20000" min:"1" doc:"timers a second released of what came due while no process released them, over all processes"`
	} `koanf:"timers"`

	Triggers struct {
		Plain          bool          `koanf:"plain" doc:"admit http:// callback URLs beside https://"`
		Allow          []string      `koanf:"allow" doc:"prefixes that may be called although they are not on the public internet, e.g. [10.1.0.0/16]"`
		Deny           []string      `koanf:"deny" doc:"prefixes that may not be called, beside the built-in ones"`
		Ports          []int         `koanf:"ports" doc:"ports that may be called; empty: 443, and 80 with plain; 0: all"`
		Timeout        time.Duration `koanf:"timeout" default:"10s" above:"0" max:"25s" doc:"longest callback, from the look-up of the name to the end of the answer"` // at most 25 s, so that a call ends within its claim
		CallerInFlight int           `koanf:"caller_in_flight" default:"100" min:"1" doc:"callbacks of one caller at once"`
		InFlight       int           `koanf:"in_flight" default:"4096" min:"1" doc:"callbacks at once in all"`
		MaxPending     int           `koanf:"max_pending" default:"1000000" min:"1" doc:"triggers one caller may have waiting"`
	} `koanf:"triggers"`

	Jobs struct {
		ApproveAbove int           `koanf:"approve_above" min:"0" doc:"plans of more dead letters than this wait for another operator's approval; 0: none do"`
		Keep         time.Duration `koanf:"keep" default:"2160h" above:"0" doc:"how long a job that is over is kept, with its report; then it is forgotten"`
		Most         int           `koanf:"most" default:"1000" min:"1" doc:"how many jobs that are over are kept at most: the oldest go first"`
	} `koanf:"jobs"`

	Audit struct {
		Every  time.Duration `koanf:"every" default:"1h" min:"0" doc:"how often what was accepted is added up against its outcomes; 0: only when it is asked for"`
		Window time.Duration `koanf:"window" default:"26h" min:"0" doc:"how far such a run looks back; 0: to all that is kept"`
	} `koanf:"audit"`

	Workers struct {
		Push       Lane          `koanf:"push" doc:"push lanes"`
		SMS        Lane          `koanf:"sms" doc:"sms lanes"`
		Email      Lane          `koanf:"email" doc:"email lanes"`
		MaxRetries int           `koanf:"max_retries" default:"3" min:"0" doc:"attempts after the first"`
		BatchAge   time.Duration `koanf:"batch_age" default:"5s" above:"0" doc:"longest a mail waits for others of its content"`
		Strict     []string      `koanf:"strict" is:"lane" doc:"lanes in which a user's messages wait behind one that waits for its retry, e.g. [push, sms, email-bulk]"`
		Bulk       float64       `koanf:"bulk_share" default:"0.5" above:"0" max:"1" doc:"share of a provider's capacity that bulk lanes may use"`
		Drain      time.Duration `koanf:"drain" default:"20s" above:"0" doc:"how long a stop waits for work in flight"`
		CallLimit  time.Duration `koanf:"call_limit" default:"30s" above:"0" doc:"longest provider call"`
	} `koanf:"workers"`

	Providers struct {
		Stub          bool                    `koanf:"stub" doc:"accept everything inside the process, to measure the rest"`
		Simulated     bool                    `koanf:"simulated" doc:"all providers below are simulators: no load run needs a second operator's approval for them"`
		CAFile        string                  `koanf:"ca_file" doc:"PEM of a CA to trust besides the system's"`
		ConfigOpenFor time.Duration           `koanf:"config_open_for" default:"5m" above:"0" doc:"how long a provider that refused our credentials or settings is not called before it is tried again; its notifications wait"`
		APNs          provider.APNsConfig     `koanf:"apns"`
		FCM           provider.FCMConfig      `koanf:"fcm"`
		Twilio        provider.TwilioConfig   `koanf:"twilio"`
		SendGrid      provider.SendGridConfig `koanf:"sendgrid"`
	} `koanf:"providers"`

	Tracing trace.Config `koanf:"tracing"`

	Logging struct {
		Level  string `koanf:"level" default:"info" oneof:"debug info warn error" doc:"debug, info, warn or error"`
		Format string `koanf:"format" default:"json" oneof:"json text" doc:"json or text"`
	} `koanf:"logging"`
}

// Lane holds the settings of a channel's lanes.
type Lane struct {
	InFlight int `koanf:"in_flight" min:"1" doc:"addresses at the provider at once"`
	Window   int `koanf:"window" min:"1" doc:"receivers a claim window"`
	Ahead    int `koanf:"ahead" min:"1" doc:"claim windows open per partition"`
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

// Settings returns the figures that limit how much work a process does. It does not read the file of
// accounts.
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
