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
		Mechanism    string `koanf:"mechanism" oneof:"SCRAM-SHA-512 SCRAM-SHA-256 PLAIN OAUTHBEARER" empty:"yes" doc:"SCRAM-SHA-512 or SCRAM-SHA-256; PLAIN and OAUTHBEARER are allowed only with TLS; empty: no authentication"`
		User         string `koanf:"user" doc:"name to authenticate with; not needed with OAUTHBEARER, because the token contains it"`
		PasswordFile string `koanf:"password_file" doc:"file with the password of the user, or with the token of OAUTHBEARER; read at each authentication, so you can replace it without a restart"`
		Password     string `koanf:"password" secret:"yes" doc:"the password itself, from the environment only: NOTIFYD__KAFKA__SASL__PASSWORD"`
	} `koanf:"sasl"`
	AppendTimeout time.Duration `koanf:"append_timeout" default:"1s" min:"1s" max:"1m" doc:"time limit of an append to the log; after that otp and alert go into the spill buffer, and other requests get 503"`
	Keep          time.Duration `koanf:"keep" default:"168h" min:"1h" doc:"age at which records of lanes are removed if every consumer group has read them; unread records are kept, however old they are. Must be at least audit.window and, with an archive, at least archive.after plus archive.every"`
	Rack          string        `koanf:"rack" doc:"rack of this process, as in broker.rack of the brokers: bulk lanes, history, dead letters, audits and the archive are read from a replica in this rack, fast lanes from the leaders; empty: everything is read from the leaders"`
	TopicPrefix   string        `koanf:"topic_prefix" is:"topic" empty:"yes" doc:"prefix of the names of topics and consumer groups, so that several installations can use the same brokers; it cannot be changed after the first notifyd migrate up"`
	Replication   int           `koanf:"replication" min:"0" doc:"number of copies of the topics that notifyd migrate up creates; 0: the default of the brokers"`
	MinInSync     int           `koanf:"min_insync" min:"0" doc:"min.insync.replicas of the topics that notifyd migrate up creates; 0: the default of the brokers"`
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
