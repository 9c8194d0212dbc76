package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/log"
	"github.com/notifyd/notifyd/pkg/secrets"
)

// Every file of the configuration that contains a secret is refused while everybody on the machine
// can read it, and the error names its key. The modes 0440 and 0400 of a container are accepted.
func TestExposedSecretFilesAreRefused(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	cassandraOf := func(c *Config) error { _, err := c.cassandra(cassandra.Cluster{}, logger); return err }
	kafka := func(c *Config) error { _, err := c.Kafka.Conn(logger); return err }
	redisOf := func(c *Config) error { _, err := c.redis(logger); return err }
	// The clients themselves read the TLS files, before they connect.
	cassandraTLS := func(c *Config) error {
		cc, err := c.cassandra(cassandra.Cluster{Hosts: []string{"127.0.0.1:1"}}, logger)
		if err == nil {
			_, err = cassandra.Open(t.Context(), cc)
		}
		return err
	}
	kafkaTLS := func(c *Config) error {
		c.Kafka.Brokers = []string{"127.0.0.1:1"}
		conn, err := c.Kafka.Conn(logger)
		if err == nil {
			_, err = log.NewReader(conn)
		}
		return err
	}
	redisTLS := func(c *Config) error {
		c.Redis.Addresses = []string{"127.0.0.1:1"}
		rc, err := c.redis(logger)
		if err == nil {
			_, err = redis.Connect(rc)
		}
		return err
	}
	postgres := func(c *Config) error { _, err := c.postgres(); return err }
	providers := func(c *Config) error { _, err := newProviders(c, nil, logger); return err }
	type secretFile struct {
		set  func(c *Config, file string)
		open func(c *Config) error
	}
	all := map[string]secretFile{
		"providers.apns.key_file":        {func(c *Config, f string) { c.Providers.APNs.KeyFile = f }, providers},
		"providers.fcm.credentials_file": {func(c *Config, f string) { c.Providers.FCM.Credentials = f }, providers},
		"providers.twilio.accounts_file": {func(c *Config, f string) { c.Providers.Twilio.AccountsFile = f }, providers},
		"providers.sendgrid.key_file":    {func(c *Config, f string) { c.Providers.SendGrid.KeyFile = f }, providers},
		"cassandra.password_file":        {func(c *Config, f string) { c.Cassandra.PasswordFile = f }, cassandraOf},
		"cassandra.tls.key_file":         {func(c *Config, f string) { c.Cassandra.TLS = secrets.TLS{Enabled: true, CertFile: f, KeyFile: f} }, cassandraTLS},
		"kafka.sasl.password_file":       {func(c *Config, f string) { c.Kafka.SASL.Mechanism, c.Kafka.SASL.PasswordFile = "SCRAM-SHA-512", f }, kafka},
		"kafka.tls.key_file":             {func(c *Config, f string) { c.Kafka.TLS = secrets.TLS{Enabled: true, CertFile: f, KeyFile: f} }, kafkaTLS},
		"redis.password_file":            {func(c *Config, f string) { c.Redis.PasswordFile = f }, redisOf},
		"redis.sentinel_password_file":   {func(c *Config, f string) { c.Redis.SentinelFile = f }, redisOf},
		"redis.tls.key_file":             {func(c *Config, f string) { c.Redis.TLS = secrets.TLS{Enabled: true, CertFile: f, KeyFile: f} }, redisTLS},
		"postgres.dsn_file":              {func(c *Config, f string) { c.Postgres.DSNFile = f }, postgres},
		"postgres.password_file":         {func(c *Config, f string) { c.Postgres.PasswordFile = f }, postgres},
		"postgres.key_file":              {func(c *Config, f string) { c.Postgres.CertFile, c.Postgres.KeyFile = f, f }, postgres},
		"sqs.credentials_file": {func(c *Config, f string) {
			c.SQS.Region, c.SQS.Endpoint, c.SQS.CredentialsFile = "here", "http://127.0.0.1:1", f
		}, func(c *Config) error { _, err := c.openSQS(t.Context()); return err }},
		"archive.s3.credentials_file": {func(c *Config, f string) { c.Archive.S3.Bucket, c.Archive.S3.Credentials = "b", f }, func(c *Config) error { _, err := openBucket(t.Context(), c); return err }},
		"secrets.key_file":            {func(c *Config, f string) { c.Secrets.KeyFile = f }, func(c *Config) error { return (sealer{&Node{cfg: *c}}).sealCallers(t.Context()) }},
		"tracing.headers_file":        {func(c *Config, f string) { c.Tracing.HeadersFile = f }, func(c *Config) error { _, err := collectorHeaders(c.Tracing.HeadersFile); return err }},
	}

	const says = "can be accessed by everybody on this machine: chmod 600"
	for key, one := range all {
		file := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []os.FileMode{0o644, 0o604, 0o602, 0o600, 0o440, 0o400} {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			c := Default()
			one.set(&c, file)
			err := one.open(&c)
			exposed := err != nil && strings.Contains(err.Error(), says)
			if want := mode&0o007 != 0; exposed != want || want && !strings.Contains(err.Error(), key) {
				t.Errorf("%s of mode %#o: %v", key, mode, err)
			}
			// If a file has no key or no list of accounts, the error names the setting and the
			// file.
			if strings.HasPrefix(key, "providers.") && key != "providers.sendgrid.key_file" && (err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), file)) {
				t.Errorf("%s with junk in it: %v", key, err)
			}
		}
	}
	// For each new setting with a file it must be decided whether the file is public, or a secret
	// that is checked.
	public := []string{"providers.ca_file", "providers.sendgrid.webhook_key_file", "auth.jwks_file"}
	auth := []string{"auth.key_file", "auth.hs256_file"} // pkg/server has their test
	for key := range flatten(Default()) {
		_, checked := all[key]
		if strings.HasSuffix(key, "_file") && !checked && !slices.Contains(public, key) && !slices.Contains(auth, key) &&
			!strings.HasSuffix(key, "ca_file") && !strings.HasSuffix(key, "cert_file") {
			t.Errorf("%s names a file: say whether it is secret", key)
		}
	}
}
