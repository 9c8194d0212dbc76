package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/engine/postgres"
	"github.com/notifyd/notifyd/pkg/engine/redis"
	"github.com/notifyd/notifyd/pkg/engine/sqs"
	"github.com/notifyd/notifyd/pkg/log"
)

// kafka is how the brokers are reached.
func (c *Config) kafka(logger *slog.Logger) (log.Conn, error) {
	k := &c.Kafka
	conn := log.Conn{Brokers: k.Brokers, Rack: k.Rack, TLS: k.TLS, Logger: logger}
	if k.SASL.Mechanism == "" {
		return conn, nil
	}
	password := func() (string, error) {
		return secretOf("kafka.sasl.password_file", k.SASL.Password, k.SASL.PasswordFile)
	}
	conn.SASL = &log.SASL{Mechanism: log.Mechanism(k.SASL.Mechanism), User: k.SASL.User, Password: password}
	_, err := password()
	return conn, err
}

// cassandra is how a cluster is reached: the one of cassandra.hosts but for what
// a part says otherwise.
func (c *Config) cassandra(part Cluster, logger *slog.Logger) (cassandra.Config, error) {
	k := &c.Cassandra
	out := cassandra.Config{
		Hosts: k.Hosts, Keyspace: k.Keyspace, LocalDC: k.Datacenter, Replication: k.Replication, Username: k.Username,
		Consistency: k.Consistency, EveryReceiver: k.Every, StatusTTL: c.History.Retention, Timeout: k.Timeout, TLS: k.TLS, Logger: logger,
	}
	if len(part.Hosts) > 0 {
		out.Hosts = part.Hosts
	}
	if part.Keyspace != "" {
		out.Keyspace = part.Keyspace
	}
	var err error
	out.Password, err = secretOf("cassandra.password_file", k.Password, k.PasswordFile)
	return out, err
}

func (c *Config) redis(logger *slog.Logger) (redis.Config, error) {
	k := &c.Redis
	out := redis.Config{Addrs: k.Addresses, Cluster: k.Mode == "cluster", DB: k.DB, Username: k.Username, Prefix: k.Prefix, TLS: k.TLS, Logger: logger}
	if k.Mode == "sentinel" {
		out.Master, out.SentinelUsername = k.Master, k.SentinelUser
	}
	var err error
	if out.Password, err = secretOf("redis.password_file", k.Password, k.PasswordFile); err != nil {
		return out, err
	}
	out.SentinelPassword, err = secretOf("redis.sentinel_password_file", "", k.SentinelFile)
	return out, err
}

func (c *Config) postgres() (postgres.Config, error) {
	k := &c.Postgres
	// The store reads these two itself: the password before each connection.
	if err := errors.Join(checkSecret("postgres.password_file", k.PasswordFile), checkSecret("postgres.key_file", k.KeyFile)); err != nil {
		return postgres.Config{}, err
	}
	dsn, err := secretOf("postgres.dsn_file", k.DSN, k.DSNFile)
	return postgres.Config{
		DSN: strings.TrimSpace(dsn), PasswordFile: k.PasswordFile, CAFile: k.CAFile, CertFile: k.CertFile, KeyFile: k.KeyFile, Plaintext: k.Plaintext,
	}, err
}

func (c *Config) openSQS(ctx context.Context) (*sqs.Store, error) {
	k := &c.SQS
	if err := checkSecret("sqs.credentials_file", k.Credentials); err != nil {
		return nil, err
	}
	return sqs.Open(ctx, sqs.Config{Region: k.Region, Endpoint: k.Endpoint, Prefix: k.Prefix, CredentialsFile: k.Credentials})
}
