package app

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/notify"
)

// TestMisconfigured: an error that blames a setting names the key of the setting. The error of a
// server that is away, or whose own certificate has expired, names no key.
func TestMisconfigured(t *testing.T) {
	t.Parallel()
	var c Config
	c.Redis.PasswordFile = "x"
	c.Postgres.DSNFile = "x"
	for _, x := range []struct {
		s          settings
		says, want string
	}{
		{c.kafkaSettings(), "unable to dial: tls: failed to verify certificate: x509: certificate signed by unknown authority", "kafka.tls.ca_file"},
		{c.kafkaSettings(), "SASL_AUTHENTICATION_FAILED: SASL Authentication failed.", "kafka.sasl.password"},
		{c.cassandraSettings(), "gocql: unable to create session: unable to discover protocol version: Provided username u and/or password are incorrect", "cassandra.password"},
		{c.cassandraSettings(), "tls: failed to verify certificate: x509: certificate is valid for localhost, not db", "cassandra.tls.server_name"},
		{c.redisSettings(), "WRONGPASS invalid username-password pair or user is disabled.", "redis.password_file"},
		{c.redisSettings(), "remote error: tls: certificate required", "redis.tls.cert_file"},
		{c.redisSettings(), "tls: first record does not look like a TLS handshake", "redis.tls.enabled"},
		{c.postgresSettings(), "FATAL: password authentication failed for user \"u\" (SQLSTATE 28P01)", "postgres.dsn_file"},
		{c.postgresSettings(), "FATAL: connection requires a valid client certificate (SQLSTATE 28000)", "postgres.cert_file"},
		{c.redisSettings(), "dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{c.redisSettings(), "x509: certificate has expired or is not yet valid", ""},
		{c.kafkaSettings(), "context deadline exceeded", ""},
		{c.redisSettings(), "redis: all sentinels specified in configuration are unreachable: dial tcp: i/o timeout NOAUTH Authentication required.", ""},
		{c.redisSettings(), "remote error: tls: internal error", ""},
		{c.redisSettings(), "remote error: tls: unrecognized name", "redis.tls.server_name"},
	} {
		err := misconfigured(x.s, notify.Unavailable("server", time.Second, errors.New(x.says)))
		e, _ := errors.AsType[*notify.Error](err)
		switch {
		case x.want == "" && err != nil:
			t.Errorf("%s: %v", x.says, err)
		case x.want != "" && (e == nil || e.Field != x.want || e.Kind != notify.KindInvalid || e.Code != "bad_config"):
			t.Errorf("%s: %v, want %s", x.says, err, x.want)
		}
	}
	if err := misconfigured(c.redisSettings(), nil); err != nil {
		t.Error(err)
	}
}
