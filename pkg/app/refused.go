package app

import (
	"errors"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// settings are the keys of the configuration that decide whether a server takes us:
// an error names one of them.
type settings struct{ enabled, ca, name, cert, password string }

func (c *Config) kafkaSettings() settings {
	return tlsSettings("kafka", secretKey("kafka.sasl.password", c.Kafka.SASL.PasswordFile))
}

func (c *Config) cassandraSettings() settings {
	return tlsSettings("cassandra", secretKey("cassandra.password", c.Cassandra.PasswordFile))
}

func (c *Config) redisSettings() settings {
	return tlsSettings("redis", secretKey("redis.password", c.Redis.PasswordFile))
}

func (c *Config) postgresSettings() settings {
	s := settings{enabled: "postgres.ca_file", ca: "postgres.ca_file", name: "postgres.dsn", cert: "postgres.cert_file", password: "postgres.dsn"}
	switch {
	case c.Postgres.PasswordFile != "":
		s.password = "postgres.password_file"
	case c.Postgres.DSNFile != "":
		s.password, s.name = "postgres.dsn_file", "postgres.dsn_file"
	}
	return s
}

func tlsSettings(section, password string) settings {
	return settings{section + ".tls.enabled", section + ".tls.ca_file", section + ".tls.server_name", section + ".tls.cert_file", password}
}

func secretKey(key, file string) string {
	if file != "" {
		return key + "_file"
	}
	return key
}

// faults are what clients and servers say when the configuration is at fault, by the key
// of settings that is. By their text, for a driver may keep no more of an error than
// that. The certificate that has expired is not among them: that is the server's, and
// may be renewed.
var faults = []struct {
	key  func(settings) string
	msg  string
	says []string
}{
	{func(s settings) string { return s.ca }, "it does not hold the CA that signed the server's certificate", []string{
		"certificate signed by unknown authority",
	}},
	{func(s settings) string { return s.name }, "the server's certificate is for another name", []string{
		"x509: certificate is valid for", "x509: certificate is not valid for", "x509: cannot validate certificate",
	}},
	{func(s settings) string { return s.enabled }, "the server does not speak TLS there", []string{
		"first record does not look like a TLS handshake", "server refused TLS connection",
	}},
	{func(s settings) string { return s.name }, "the server does not go by this name", []string{
		"remote error: tls: unrecognized name",
	}},
	{func(s settings) string { return s.cert }, "the server does not take our certificate", []string{
		"remote error: tls: bad certificate", "remote error: tls: unknown certificate", "remote error: tls: expired certificate",
		"remote error: tls: revoked certificate", "remote error: tls: unsupported certificate", "remote error: tls: access denied",
	}},
	{func(s settings) string { return s.cert }, "the server asks for a certificate", []string{
		"remote error: tls: certificate required", "requires a valid client certificate",
	}},
	{func(s settings) string { return s.password }, "the server refuses the user or the password", []string{
		"SASL_AUTHENTICATION_FAILED", "password are incorrect", "password authentication failed", "WRONGPASS",
	}},
	{func(s settings) string { return s.password }, "the server asks for a password", []string{"NOAUTH"}},
}

// misconfigured returns the error that names the key which keeps a server from
// taking us, or us from trusting it; nil: err says nothing of the kind, and the
// server may be back in a moment. Such a process does not start: it would never
// right itself, and the one before it still works.
func misconfigured(s settings, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind == notify.KindInvalid {
		return err
	}
	text := err.Error()
	if strings.Contains(text, "all sentinels") { // each says something else, and some may be away
		return nil
	}
	for _, r := range faults {
		if slices.ContainsFunc(r.says, func(says string) bool { return strings.Contains(text, says) }) {
			return &notify.Error{Kind: notify.KindInvalid, Code: "bad_config", Field: r.key(s), Msg: r.msg, Err: err}
		}
	}
	return nil
}

// explained is err, or in its place the one that names the key at fault.
func explained(s settings, err error) error {
	if bad := misconfigured(s, err); bad != nil {
		return bad
	}
	return err
}
