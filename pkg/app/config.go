package app

import (
	"slices"
	"time"

	"github.com/notifyd/notifyd/pkg/limit"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/pkg/provider"
	"github.com/notifyd/notifyd/pkg/worker"
)

// Config of a notifyd process. The comment of a field is its documentation:
// `notifyd config example` prints it.
type Config struct {
	// Version of the program. It is told, not configured.
	Version string `koanf:"-"`
	// Dev reports that "notifyd dev" runs the process. DataDir is then the folder "data"
	// below the --data-dir of that command. Backups store it. It cannot be configured.
	Dev bool `koanf:"-"`

	DataDir string `koanf:"data_dir" doc:"folder of the embedded log and stores; empty: $XDG_DATA_HOME/notifyd"`

	Engines   string    `koanf:"engines" doc:"embedded: log and stores in this process and its data_dir; distributed: the servers of kafka, cassandra, redis and postgres, which many processes share"`
	Roles     []string  `koanf:"roles" doc:"what this process does, with engines: distributed: all, or some of api, worker (or worker:push, worker:sms-bulk, ...), scheduler, dispatcher, operator"`
	Instance  string    `koanf:"instance" doc:"name of this process in leases and logs; empty: the host's name; each start adds what makes it unique"`
	Kafka     Kafka     `koanf:"kafka"`
	Cassandra Cassandra `koanf:"cassandra"`
	Redis     Redis     `koanf:"redis"`
	Postgres  Postgres  `koanf:"postgres"`
	SQS       SQS       `koanf:"sqs"`

	API struct {
		Listen    string  `koanf:"listen" doc:"address of the API"`
		Plaintext string  `koanf:"plaintext" doc:"where HTTP without TLS may listen: loopback, or anywhere, where something in front encrypts"`
		Admin     string  `koanf:"admin" doc:"address of /metrics and pprof; empty: none"`
		PublicURL string  `koanf:"public_url" doc:"where providers reach the API for receipts; empty: http://<listen>"`
		Rate      float64 `koanf:"rate" doc:"requests a second a caller may make that has no rate of its own"`
		Burst     int     `koanf:"burst" doc:"requests such a caller may make at once"`
		BodyMiB   int     `koanf:"body_mib" doc:"MiB of batches and fan-outs in memory at once; one caller gets half of it at most"`
	} `koanf:"api"`

	Auth struct {
		Issuer   string `koanf:"issuer" doc:"iss a token must carry"`
		Audience string `koanf:"audience" doc:"aud a token must carry"`
		JWKSURL  string `koanf:"jwks_url" doc:"where the verification keys are published"`
		JWKSFile string `koanf:"jwks_file" doc:"file with verification keys"`
		KeyFile  string `koanf:"key_file" doc:"PEM file with one verification (or signing) key: RS256, ES256, EdDSA"`
		HS256    string `koanf:"hs256_file" doc:"file with a shared secret, for one machine"`
	} `koanf:"auth"`

	Secrets struct {
		KeyFile string `koanf:"key_file" doc:"file with the key that seals callers' signing secrets in the store: 32 bytes in base64 (openssl rand -base64 32); a new key goes on the line above the old one. Keep it with the configuration, apart from backups. With engines: distributed every process has the same file; empty: they are stored in clear. With engines: embedded it is made where nothing is sealed yet; empty: data_dir with .secrets-key behind its name"`
	} `koanf:"secrets"`

	Log struct {
		Listen     string         `koanf:"listen" doc:"loopback address where kcat and rpk read the embedded log, which nobody can write to there; port 0: any; off: none"`
		Partitions map[string]int `koanf:"partitions" doc:"partitions of each channel's topics; with engines: distributed 18, 12 and 84 unless set"`
		Sync       bool           `koanf:"sync" doc:"fsync before a record is acknowledged; off loses acknowledged records at a power cut"`
		CapMiB     int            `koanf:"cap_mib" doc:"MiB the embedded log may hold; at the cap intake answers 503"`
		MinFreeMiB int            `koanf:"min_free_mib" doc:"MiB that must stay free on its volume"`
		Linger     time.Duration  `koanf:"linger" doc:"how long records wait for others to share a batch and its fsync"`
	} `koanf:"log"`

	Intake struct {
		Refuse      map[string][]string `koanf:"refuse" doc:"categories a channel refuses, e.g. {sms: [marketing, digest]}"`
		SMS         []string            `koanf:"sms_categories" doc:"categories SMS takes"`
		SpillMiB    int                 `koanf:"spill_mib" doc:"MiB of otp and alert kept while the log is away"`
		Idempotency time.Duration       `koanf:"idempotency" doc:"how long idempotency keys are kept at least"`
	} `koanf:"intake"`

	History struct {
		Retention time.Duration `koanf:"retention" doc:"how long who-got-what is kept; older ids answer 410"`
	} `koanf:"history"`

	Archive struct {
		Dir   string        `koanf:"dir" doc:"folder for compressed files of dead letters and outcomes, before they age out; empty: no archive"`
		Every time.Duration `koanf:"every" doc:"how often files are written"`
		After time.Duration `koanf:"after" doc:"how old an outcome is when it is archived: later receipts are not in it; below history.retention"`
		Wait  time.Duration `koanf:"wait" doc:"how long what has aged out is kept for an archive that is behind"`
		S3    struct {
			Bucket      string `koanf:"bucket" doc:"bucket the files are moved to; empty: they stay in archive.dir"`
			Prefix      string `koanf:"prefix" doc:"before the names of the objects; each notifyd has its own"`
			Region      string `koanf:"region" doc:"empty: that of AWS_REGION or of the credentials' profile"`
			Endpoint    string `koanf:"endpoint" doc:"URL of a store that is not AWS's"`
			PathStyle   bool   `koanf:"path_style" doc:"put the bucket into the path, as most other stores want it"`
			Credentials string `koanf:"credentials_file" doc:"file in the form of ~/.aws/credentials; empty: the environment, that file, the machine's role"`
		} `koanf:"s3"`
	} `koanf:"archive"`

	Timers struct {
		Shards      int           `koanf:"shards" doc:"partitions of each minute; with engines: distributed 64 unless set; a store keeps the number it was first started with"`
		MaxDelay    time.Duration `koanf:"max_delay" doc:"how far ahead notifications and triggers may be scheduled"`
		Jitter      time.Duration `koanf:"jitter" doc:"largest spread of scheduled notifications and triggers: later only, at most a tenth of the delay; never otp, alert or exact"`
		CatchUpRate int           `koanf:"catch_up_rate" doc:"timers a second released of what came due while the process was away"`
	} `koanf:"timers"`

	Triggers struct {
		Plain          bool          `koanf:"plain" doc:"admit http:// callback URLs beside https://"`
		Allow          []string      `koanf:"allow" doc:"prefixes that may be called although they are not on the public internet, e.g. [10.1.0.0/16]"`
		Deny           []string      `koanf:"deny" doc:"prefixes that may not be called, beside the built-in ones"`
		Ports          []int         `koanf:"ports" doc:"ports that may be called; empty: 443, and 80 with plain; 0: all"`
		Timeout        time.Duration `koanf:"timeout" doc:"longest callback, from the look-up of the name to the end of the answer"`
		CallerInFlight int           `koanf:"caller_in_flight" doc:"callbacks of one caller at once"`
		InFlight       int           `koanf:"in_flight" doc:"callbacks at once in all"`
		MaxPending     int           `koanf:"max_pending" doc:"triggers one caller may have waiting"`
	} `koanf:"triggers"`

	Jobs struct {
		ApproveAbove int           `koanf:"approve_above" doc:"plans of more dead letters than this wait for another operator's approval; 0: none do"`
		Keep         time.Duration `koanf:"keep" doc:"how long a job that is over is kept, with its report; then it is forgotten"`
		Most         int           `koanf:"most" doc:"how many jobs that are over are kept at most: the oldest go first"`
	} `koanf:"jobs"`

	Audit struct {
		Every  time.Duration `koanf:"every" doc:"how often what was accepted is added up against its outcomes; 0: only when it is asked for"`
		Window time.Duration `koanf:"window" doc:"how far such a run looks back; 0: to all that is kept"`
	} `koanf:"audit"`

	Workers struct {
		Push       Lane          `koanf:"push" doc:"push lanes"`
		SMS        Lane          `koanf:"sms" doc:"sms lanes"`
		Email      Lane          `koanf:"email" doc:"email lanes"`
		MaxRetries int           `koanf:"max_retries" doc:"attempts after the first"`
		BatchAge   time.Duration `koanf:"batch_age" doc:"longest a mail waits for others of its content"`
		Strict     []string      `koanf:"strict" doc:"lanes in which a user's messages wait behind one that waits for its retry, e.g. [push, sms, email-bulk]"`
		Bulk       float64       `koanf:"bulk_share" doc:"share of a provider's capacity that bulk lanes may use, 0 to 1"`
		Drain      time.Duration `koanf:"drain" doc:"how long a stop waits for work in flight"`
		CallLimit  time.Duration `koanf:"call_limit" doc:"longest provider call"`
	} `koanf:"workers"`

	Providers struct {
		Stub          bool          `koanf:"stub" doc:"accept everything inside the process, to measure the rest"`
		CAFile        string        `koanf:"ca_file" doc:"PEM of a CA to trust besides the system's"`
		ConfigOpenFor time.Duration `koanf:"config_open_for" doc:"how long a provider that refused our credentials or settings is not called before it is tried again; its notifications wait"`
		APNs          struct {
			URL         string `koanf:"url" doc:"base URL"`
			KeyFile     string `koanf:"key_file" doc:"PKCS#8 key (.p8) that signs provider tokens"`
			KeyID       string `koanf:"key_id" doc:"its id"`
			TeamID      string `koanf:"team_id" doc:"the team's id"`
			Topic       string `koanf:"topic" doc:"bundle id of the app"`
			Connections int    `koanf:"connections" doc:"HTTP/2 connections"`
			Client      string `koanf:"client" doc:"how HTTP/2 is spoken: frames (many pushes at once), or net/http"`
			Confirmed   bool   `koanf:"confirmed" doc:"accepted is DELIVERED, for nothing further will be confirmed"`
		} `koanf:"apns"`
		FCM struct {
			URL         string `koanf:"url" doc:"base URL"`
			TokenURL    string `koanf:"token_url" doc:"OAuth token endpoint; empty: the credentials'"`
			Credentials string `koanf:"credentials_file" doc:"service account JSON"`
			Confirmed   bool   `koanf:"confirmed" doc:"accepted is DELIVERED, for nothing further will be confirmed"`
		} `koanf:"fcm"`
		Twilio struct {
			URL      string          `koanf:"url" doc:"base URL"`
			Accounts []TwilioAccount `koanf:"accounts" doc:"account pool: sid, token, from"`
			File     string          `koanf:"accounts_file" doc:"JSON file with the account pool"`
			Rate     float64         `koanf:"rate" doc:"messages a second an account may send"`
			Parallel int             `koanf:"parallel" doc:"requests at once an account may make"`
		} `koanf:"twilio"`
		SendGrid struct {
			URL        string   `koanf:"url" doc:"base URL"`
			KeyFile    string   `koanf:"key_file" doc:"file with the API key"`
			From       string   `koanf:"from" doc:"default sender"`
			Pools      []string `koanf:"pools" doc:"IP pools, each with a rate of its own"`
			Rate       float64  `koanf:"rate" doc:"mails a second a pool may send"`
			WebhookKey string   `koanf:"webhook_key_file" doc:"PEM or base64 public key of the event webhook"`
		} `koanf:"sendgrid"`
	} `koanf:"providers"`

	Tracing struct {
		Endpoint    string  `koanf:"endpoint" doc:"URL of a collector that takes OpenTelemetry traces by OTLP/HTTP, e.g. http://127.0.0.1:4318; empty: no spans are made (a traceparent travels all the same)"`
		Sample      float64 `koanf:"sample" doc:"share of requests without a traceparent that begin a trace, 0 to 1; those with one say themselves whether they are recorded"`
		HeadersFile string  `koanf:"headers_file" doc:"file of headers for the collector, a line each: Name: value; they may be secret"`
		Service     string  `koanf:"service" doc:"service.name of the spans"`
	} `koanf:"tracing"`

	Logging struct {
		Level  string `koanf:"level" doc:"debug, info, warn or error"`
		Format string `koanf:"format" doc:"json or text"`
	} `koanf:"logging"`
}

// Lane of a channel.
type Lane struct {
	InFlight int `koanf:"in_flight" doc:"addresses at the provider at once"`
	Window   int `koanf:"window" doc:"receivers a claim window"`
	Ahead    int `koanf:"ahead" doc:"claim windows open per partition"`
}

// TwilioAccount is one account of the pool.
type TwilioAccount struct {
	SID   string `koanf:"sid" json:"sid"`
	Token string `koanf:"token" json:"token"`
	From  string `koanf:"from" json:"from"`
}

// DefaultFor returns the defaults for an engine. With servers, topics and minutes have
// the partition counts of the source's capacity sheet (pkg/plan), since they cannot
// grow later. Embedded, one process owns all of them and fewer cost it less.
func DefaultFor(engines string) Config {
	c := Default()
	if engines == EnginesDistributed {
		c.Engines = engines
		c.Log.Partitions = map[string]int{"push": 18, "sms": 12, "email": 84}
		c.Timers.Shards = 64
	}
	return c
}

// Default returns the configuration of a process without files, environment
// and flags.
func Default() Config {
	var c Config
	c.Engines, c.Roles = EnginesEmbedded, []string{RoleAll}
	c.defaultServers()
	c.API.Listen, c.API.Admin = "127.0.0.1:7420", "127.0.0.1:7421"
	c.API.Plaintext = "loopback"
	c.API.BodyMiB = 512
	c.API.Rate, c.API.Burst = 50_000, 1000
	c.Auth.Issuer, c.Auth.Audience = "notifyd", "notifyd"
	c.Log.Listen = "127.0.0.1:7422"
	c.Log.Partitions = map[string]int{"push": 6, "sms": 4, "email": 4}
	c.Log.Sync, c.Log.CapMiB, c.Log.MinFreeMiB, c.Log.Linger = true, 2048, 256, 2*time.Millisecond
	c.Intake.Refuse = map[string][]string{}
	c.Intake.SMS = []string{"otp", "alert"}
	c.Intake.SpillMiB, c.Intake.Idempotency = 64, 24*time.Hour
	c.History.Retention = 30 * 24 * time.Hour
	c.Archive.Every, c.Archive.After, c.Archive.Wait = time.Hour, 24*time.Hour, 7*24*time.Hour
	c.Timers.Shards, c.Timers.MaxDelay, c.Timers.CatchUpRate, c.Timers.Jitter = 16, 366*24*time.Hour, 20_000, 5*time.Second
	c.Jobs.Keep, c.Jobs.Most = 90*24*time.Hour, 1000
	c.Triggers.Timeout, c.Triggers.CallerInFlight, c.Triggers.InFlight, c.Triggers.MaxPending = 10*time.Second, 100, 4096, 1_000_000
	c.Workers.MaxRetries, c.Workers.BatchAge, c.Workers.Bulk = 3, 5*time.Second, 0.5
	c.Workers.Drain, c.Workers.CallLimit = 20*time.Second, 30*time.Second
	c.Workers.Push = Lane{InFlight: 10_000, Window: 1000, Ahead: 16}
	c.Workers.SMS = Lane{InFlight: 5000, Window: 50, Ahead: 16}
	c.Workers.Email = Lane{InFlight: 16_000, Window: 1000, Ahead: 16}
	c.Providers.APNs.URL, c.Providers.APNs.Connections, c.Providers.APNs.Confirmed = "https://api.push.apple.com", 10, true
	c.Providers.APNs.Client = string(provider.ClientFrames)
	c.Providers.FCM.URL, c.Providers.FCM.Confirmed = "https://fcm.googleapis.com", true
	c.Providers.ConfigOpenFor = 5 * time.Minute
	c.Providers.Twilio.URL, c.Providers.Twilio.Rate, c.Providers.Twilio.Parallel = "https://api.twilio.com", 1000, 100
	c.Providers.SendGrid.URL, c.Providers.SendGrid.Rate = "https://api.sendgrid.com", 100
	c.Audit.Every, c.Audit.Window = time.Hour, 26*time.Hour
	c.Tracing.Sample, c.Tracing.Service = 0.01, "notifyd"
	c.Logging.Level, c.Logging.Format = "info", "json"
	return c
}

// breaker is the configuration of every circuit breaker.
func (c *Config) breaker() limit.BreakerConfig {
	return limit.BreakerConfig{ConfigOpenFor: c.Providers.ConfigOpenFor}
}

// lane returns the settings of a lane.
func (c *Config) lane(l notify.Lane) Lane {
	switch l.Channel {
	case notify.Push:
		return c.Workers.Push
	case notify.SMS:
		return c.Workers.SMS
	}
	return c.Workers.Email
}

// order says whether a lane is one of strict order.
func (c *Config) order(l notify.Lane) worker.Order {
	if slices.Contains(c.Workers.Strict, l.String()) {
		return worker.Strict
	}
	return worker.Relaxed
}

// partitions returns the partition count of a channel's topics.
func (c *Config) partitions(ch notify.Channel) int { return c.Log.Partitions[ch.String()] }
