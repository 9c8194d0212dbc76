package app

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// Where log and stores are.
const (
	EnginesEmbedded    = "embedded"
	EnginesDistributed = "distributed"
)

// Kafka is the log of engines: distributed.
type Kafka struct {
	Brokers []string    `koanf:"brokers" is:"host:port" doc:"host:port of some brokers"`
	TLS     secrets.TLS `koanf:"tls"`
	SASL    struct {
		Mechanism    string `koanf:"mechanism" oneof:"SCRAM-SHA-512 SCRAM-SHA-256" empty:"yes" doc:"SCRAM-SHA-512 or SCRAM-SHA-256; empty: no authentication"`
		User         string `koanf:"user" doc:"name to authenticate with"`
		PasswordFile string `koanf:"password_file" doc:"file with its password"`
		Password     string `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__KAFKA__SASL__PASSWORD"`
	} `koanf:"sasl"`
	AppendTimeout time.Duration `koanf:"append_timeout" default:"1s" min:"1s" max:"1m" doc:"how long an append may take before the log counts as away: then otp and alert are spilled, the rest answers 503"`
	Keep          time.Duration `koanf:"keep" default:"168h" min:"1h" doc:"how long records of the lanes stay that every reader is done with; what is not read stays whatever its age. Not below audit.window, which is read again"`
	Rack          string        `koanf:"rack" doc:"rack of this process: what can be read from a broker of it is"`
	Replication   int           `koanf:"replication" min:"0" doc:"copies of the topics that migrate creates; 0: the brokers' default"`
	MinInSync     int           `koanf:"min_insync" min:"0" doc:"min.insync.replicas of those topics; 0: the brokers' default"`
}

// validateServers returns what is wrong between the values of servers.
func validateServers(c *Config, bad func(key, format string, args ...any)) {
	if c.Engines != EnginesDistributed {
		if len(c.Roles) != 1 || (c.Roles[0] != cluster.RoleAll && c.Roles[0] != cluster.RoleAPI) {
			bad("roles", "%s: engines: embedded belong to one process, which runs all; engines: distributed spread roles over processes", strings.Join(c.Roles, ", "))
		}
		return
	}
	if _, err := cluster.ParseRoles(c.Roles); err != nil {
		bad("roles", "%v", err)
	}
	if c.Kafka.Keep < c.Audit.Window {
		bad("kafka.keep", "%s is below audit.window, %s: the audit reads that far back", c.Kafka.Keep, c.Audit.Window)
	}
	for key, list := range map[string][]string{"kafka.brokers": c.Kafka.Brokers, "cassandra.hosts": c.Cassandra.Hosts, "redis.addresses": c.Redis.Addresses} {
		if len(list) == 0 {
			bad(key, "is empty: engines: distributed needs a host:port")
		}
	}
	if c.Kafka.Replication > 0 && c.Kafka.MinInSync > c.Kafka.Replication {
		bad("kafka.min_insync", "%d is not from 0 to kafka.replication, %d", c.Kafka.MinInSync, c.Kafka.Replication)
	}
	if m := c.Kafka.SASL.Mechanism; m != "" && c.Kafka.SASL.User == "" {
		bad("kafka.sasl.user", "is empty, but kafka.sasl.mechanism is %s", m)
	}
	switch {
	case c.Redis.Mode == "single" && len(c.Redis.Addresses) > 1:
		bad("redis.addresses", "%d addresses, but redis.mode is single", len(c.Redis.Addresses))
	case c.Redis.Mode == "sentinel" && c.Redis.Master == "":
		bad("redis.master", "is empty: sentinels are asked for a master by its name")
	case c.Redis.Mode == "cluster" && c.Redis.DB != 0:
		bad("redis.db", "%d: a cluster has database 0 only", c.Redis.DB)
	}
	if (c.Postgres.DSN == "") == (c.Postgres.DSNFile == "") {
		bad("postgres", "set one of dsn and dsn_file")
	}
	if (c.Postgres.CertFile == "") != (c.Postgres.KeyFile == "") {
		bad("postgres", "cert_file and key_file go together")
	}
	for _, one := range []struct{ key, secret, file string }{
		{"kafka.sasl", c.Kafka.SASL.Password, c.Kafka.SASL.PasswordFile},
		{"cassandra", c.Cassandra.Password, c.Cassandra.PasswordFile},
		{"redis", c.Redis.Password, c.Redis.PasswordFile},
	} {
		if one.secret != "" && one.file != "" {
			bad(one.key+".password_file", "and the password from the environment are both set")
		}
	}
	for key, t := range map[string]secrets.TLS{"kafka.tls": c.Kafka.TLS, "cassandra.tls": c.Cassandra.TLS, "redis.tls": c.Redis.TLS} {
		switch {
		case (t.CertFile == "") != (t.KeyFile == ""):
			bad(key, "cert_file and key_file go together")
		case !t.Enabled && (t.CAFile != "" || t.CertFile != "" || t.ServerName != ""):
			bad(key+".enabled", "is false, but other values of %s are set", key)
		}
	}
	if c.SQS.Endpoint != "" && c.SQS.Region == "" {
		bad("sqs.region", "is empty, but sqs.endpoint is set")
	}
	if c.Archive.Dir != "" {
		bad("archive.dir", "is set: the archive reads the embedded history; with engines: distributed keep rows longer by history.retention")
	}
}

// secretOf is a secret from its file, or as it is.
func secretOf(key, value, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	b, err := secrets.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// checkSecret returns an error for a secret file that another package reads and
// that other users can read. It takes an empty name: no file is set.
func checkSecret(key, file string) error {
	if file == "" {
		return nil
	}
	if err := secrets.CheckFile(file); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// openSecrets are secrets that stand where others can read them: in a file of
// the configuration, or on the command line.
func openSecrets(l *Loaded) (problems []problem) {
	for key, f := range flatten(l.Config) {
		from := l.Origin[key]
		if f.Tag.Get("secret") == "" || f.Value.String() == "" || from == "default" || strings.HasPrefix(from, EnvPrefix) {
			continue
		}
		if key == "postgres.dsn" {
			u, err := url.Parse(f.Value.String())
			switch {
			case err != nil && strings.Contains(f.Value.String(), "://"):
				problems = append(problems, problem{key: key, text: "is not a URL such as postgres://user@host1:5432,host2:5432/notifyd"})
				continue // what it holds cannot be known, and is not shown
			case err == nil && u.Scheme != "":
				if _, has := u.User.Password(); !has && !u.Query().Has("password") {
					continue
				}
			case !strings.Contains(f.Value.String(), "password"):
				continue
			}
		}
		file := key + "_file"
		problems = append(problems, problem{key: key, text: "a secret comes from " + file + " or from the environment, " + EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))})
	}
	return problems
}
