package app

import (
	"errors"
	"slices"
	"strings"

	"github.com/notifyd/notifyd/pkg/notify"
)

// settings holds the configuration keys that decide whether a server accepts a connection. Errors name
// one of these keys.
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

// faults lists wrong settings and the errors that they cause. If an error contains one of the texts
// in the field says, the setting that the function key returns is wrong. Errors are recognised by
// their texts, because a driver may keep nothing else of an error. The list does not contain an
// expired certificate of a server, because the operator of the server may renew it.
var faults = []struct {
	key  func(settings) string
	msg  string
	says []string
}{
	{func(s settings) string { return s.ca }, "does not contain the CA that signed the server's certificate", []string{
		"certificate signed by unknown authority",
	}},
	{func(s settings) string { return s.name }, "the server's certificate is for another name", []string{
		"x509: certificate is valid for", "x509: certificate is not valid for", "x509: cannot validate certificate",
	}},
	{func(s settings) string { return s.enabled }, "the server does not use TLS at this address", []string{
		"first record does not look like a TLS handshake", "server refused TLS connection",
	}},
	{func(s settings) string { return s.name }, "the server does not accept this name", []string{
		"remote error: tls: unrecognized name",
	}},
	{func(s settings) string { return s.cert }, "the server refuses this client's certificate", []string{
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

// misconfigured returns an error that names the wrong configuration key if err shows that the
// configuration is wrong. In this case the server refuses this client, or this client does not
// trust the server. If the cause of err may end without a change of the configuration,
// misconfigured returns nil. A process with a wrong configuration must not start, because waiting
// does not help. In a rolling update, the old process then continues to work.
func misconfigured(s settings, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*notify.Error](err); ok && e.Kind == notify.KindInvalid {
		return err
	}
	text := err.Error()
	if strings.Contains(text, "all sentinels") { // each sentinel gives its own error, and some sentinels may be down
		return nil
	}
	for _, r := range faults {
		if slices.ContainsFunc(r.says, func(says string) bool { return strings.Contains(text, says) }) {
			return &notify.Error{Kind: notify.KindInvalid, Code: "bad_config", Field: r.key(s), Msg: r.msg, Err: err}
		}
	}
	return nil
}

// explainConfig returns the error of misconfigured. If misconfigured returns nil, it returns err.
func explainConfig(s settings, err error) error {
	if bad := misconfigured(s, err); bad != nil {
		return bad
	}
	return err
}
