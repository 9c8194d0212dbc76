package app

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/notifyd/notifyd/pkg/cluster"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// Values of Config.Engines. They decide where the log and the stores are.
const (
	EnginesEmbedded    = "embedded"
	EnginesDistributed = "distributed"
)

// validateServers calls the function bad for each setting of the servers that breaks a rule.
func validateServers(c *Config, bad func(key, format string, args ...any)) {
	if c.Engines != EnginesDistributed {
		if len(c.Roles) != 1 || (c.Roles[0] != cluster.RoleAll && c.Roles[0] != cluster.RoleAPI) {
			bad("roles", "is %s, but with engines: embedded one process has all roles; only engines: distributed can spread roles over processes", strings.Join(c.Roles, ", "))
		}
		return
	}
	if _, err := cluster.ParseRoles(c.Roles); err != nil {
		bad("roles", "%v", err)
	}
	if c.Kafka.Keep < c.Audit.Window {
		bad("kafka.keep", "is %s, but must be at least audit.window (%s), because the audit reads that far back", c.Kafka.Keep, c.Audit.Window)
	}
	for key, list := range map[string][]string{"kafka.brokers": c.Kafka.Brokers, "cassandra.hosts": c.Cassandra.Hosts, "redis.addresses": c.Redis.Addresses} {
		if len(list) == 0 {
			bad(key, "is empty, but engines: distributed needs at least one host:port")
		}
	}
	if c.Kafka.Replication > 0 && c.Kafka.MinInSync > c.Kafka.Replication {
		bad("kafka.min_insync", "is %d, but must be from 0 to kafka.replication (%d)", c.Kafka.MinInSync, c.Kafka.Replication)
	}
	switch m := log.Mechanism(c.Kafka.SASL.Mechanism); {
	case m != "" && m != log.OAUTHBEARER && c.Kafka.SASL.User == "":
		bad("kafka.sasl.user", "is empty, but kafka.sasl.mechanism is %s", m)
	case (m == log.PLAIN || m == log.OAUTHBEARER) && !c.Kafka.TLS.Enabled:
		bad("kafka.sasl.mechanism", "is %s, which sends the password: set kafka.tls.enabled", m)
	}
	switch {
	case c.Redis.Mode == "single" && len(c.Redis.Addresses) > 1:
		bad("redis.addresses", "has %d addresses, but redis.mode is single", len(c.Redis.Addresses))
	case c.Redis.Mode == "sentinel" && c.Redis.Master == "":
		bad("redis.master", "is empty, but redis.mode: sentinel needs the name of the master")
	case c.Redis.Mode == "cluster" && c.Redis.DB != 0:
		bad("redis.db", "is %d, but a Redis cluster has only database 0", c.Redis.DB)
	}
	switch {
	case c.Postgres.DSN == "" && c.Postgres.DSNFile == "":
		bad("postgres", "neither dsn nor dsn_file is set; set one of them")
	case c.Postgres.DSN != "" && c.Postgres.DSNFile != "":
		bad("postgres", "dsn and dsn_file are both set; set only one of them")
	}
	if (c.Postgres.CertFile == "") != (c.Postgres.KeyFile == "") {
		bad("postgres", "cert_file and key_file must be set together")
	}
	for _, one := range []struct{ key, secret, file string }{
		{"kafka.sasl", c.Kafka.SASL.Password, c.Kafka.SASL.PasswordFile},
		{"cassandra", c.Cassandra.Password, c.Cassandra.PasswordFile},
		{"redis", c.Redis.Password, c.Redis.PasswordFile},
	} {
		if one.secret != "" && one.file != "" {
			bad(one.key+".password_file", "is set, but the environment also sets the password; set only one of them")
		}
	}
	for key, t := range map[string]secrets.TLS{"kafka.tls": c.Kafka.TLS, "cassandra.tls": c.Cassandra.TLS, "redis.tls": c.Redis.TLS} {
		switch {
		case (t.CertFile == "") != (t.KeyFile == ""):
			bad(key, "cert_file and key_file must be set together")
		case !t.Enabled && (t.CAFile != "" || t.CertFile != "" || t.ServerName != ""):
			bad(key+".enabled", "is false, but other values of %s are set", key)
		}
	}
	if c.SQS.Endpoint != "" && c.SQS.Region == "" {
		bad("sqs.region", "is empty, but sqs.endpoint is set")
	}
	if oldest := c.Archive.After + c.Archive.Every; c.Archive.Dir != "" && c.Kafka.Keep < oldest {
		bad("kafka.keep", "is %s, but must be at least archive.after plus archive.every (%s), because the archive reads the log", c.Kafka.Keep, oldest)
	}
}

// checkSecret returns an error if other users can read a secret file. It is for files that another
// package reads later. If file is empty, no file is set, and checkSecret returns nil.
func checkSecret(key, file string) error {
	if file == "" {
		return nil
	}
	if err := secrets.CheckFile(file); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// exposedSecrets returns a problem for each secret that is in a configuration file or on the
// command line, because other users may be able to read it there.
func exposedSecrets(l *Loaded) (problems []problem) {
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
				continue // the value may contain a password, so the problem does not show it
			case err == nil && u.Scheme != "":
				if _, has := u.User.Password(); !has && !u.Query().Has("password") {
					continue
				}
			case !strings.Contains(f.Value.String(), "password"):
				continue
			}
		}
		file := key + "_file"
		problems = append(problems, problem{key: key, text: "a secret must come from the file in " + file + " or from the environment variable " + EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "__"))})
	}
	return problems
}
