package log

import (
	"log/slog"
	"time"

	"github.com/notifyd/notifyd/pkg/secrets"
)

// Config is the section kafka of the configuration file.
type Config struct {
	Brokers []string    `koanf:"brokers" is:"host:port" doc:"host:port of some brokers"`
	TLS     secrets.TLS `koanf:"tls"`
	SASL    struct {
		Mechanism    string `koanf:"mechanism" oneof:"SCRAM-SHA-512 SCRAM-SHA-256 PLAIN OAUTHBEARER" empty:"yes" doc:"SCRAM-SHA-512, SCRAM-SHA-256, or with TLS alone PLAIN or OAUTHBEARER; empty: no authentication"`
		User         string `koanf:"user" doc:"name to authenticate with; with OAUTHBEARER the token says it"`
		PasswordFile string `koanf:"password_file" doc:"file with its password, or the token of OAUTHBEARER; read at each authentication, so that it may be replaced"`
		Password     string `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__KAFKA__SASL__PASSWORD"`
	} `koanf:"sasl"`
	AppendTimeout time.Duration `koanf:"append_timeout" default:"1s" min:"1s" max:"1m" doc:"how long an append may take before the log counts as away: then otp and alert are spilled, the rest answers 503"`
	Keep          time.Duration `koanf:"keep" default:"168h" min:"1h" doc:"how long records of the lanes stay that every reader is done with; what is not read stays whatever its age. Not below audit.window, which is read again"`
	Rack          string        `koanf:"rack" doc:"rack of this process: bulk lanes and what only copies are read from the replica in it; lanes of codes and alerts from the leaders"`
	TopicPrefix   string        `koanf:"topic_prefix" is:"topic" empty:"yes" doc:"before the name of every topic and consumer group, so that several installations may use the same brokers; set it before the first migrate up"`
	Replication   int           `koanf:"replication" min:"0" doc:"copies of the topics that migrate creates; 0: the brokers' default"`
	MinInSync     int           `koanf:"min_insync" min:"0" doc:"min.insync.replicas of those topics; 0: the brokers' default"`
}

// Conn returns the connection settings. It returns an error if the password cannot be read.
func (c *Config) Conn(logger *slog.Logger) (Conn, error) {
	conn := Conn{Brokers: c.Brokers, Rack: c.Rack, Prefix: c.TopicPrefix, TLS: c.TLS, Logger: logger}
	if c.SASL.Mechanism == "" {
		return conn, nil
	}
	password := func() (string, error) {
		return secrets.FromConfig("kafka.sasl.password_file", c.SASL.Password, c.SASL.PasswordFile)
	}
	conn.SASL = &SASL{Mechanism: Mechanism(c.SASL.Mechanism), User: c.SASL.User, Password: password}
	_, err := password()
	return conn, err
}
