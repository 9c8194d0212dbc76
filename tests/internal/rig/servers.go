package rig

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/notifyd/notifyd/pkg/engine/cassandra"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Servers are the servers of make engines, as flags have them: addresses with commas
// between where there may be several.
type Servers struct {
	Kafka, Cassandra, Redis, Postgres, Keyspace string
	Nodes                                       int // of Kafka and of Cassandra each

	// Database of PostgreSQL. Default: postgres.
	Database string
	// Prefix of the keys in Redis. Default: the product's.
	Prefix string
	// Partitions of each topic of pushes and of mails that migrate creates. Default: 6 and 4.
	Partitions int
}

// Flags registers a flag for each of them.
func (s *Servers) Flags() {
	flag.StringVar(&s.Kafka, "kafka", "127.0.0.1:19092", "addresses of the brokers, with commas between")
	flag.StringVar(&s.Cassandra, "cassandra", "127.0.0.1:19042", "addresses of the nodes, with commas between")
	flag.StringVar(&s.Redis, "redis", "127.0.0.1:16379", "address of the server")
	flag.StringVar(&s.Postgres, "postgres", "127.0.0.1:15432", "address of the server")
	flag.StringVar(&s.Keyspace, "keyspace", "notifyd", "keyspace in Cassandra")
	flag.IntVar(&s.Nodes, "nodes", 1, "brokers of Kafka, and nodes of Cassandra: 1 or 3")
}

// InSync returns how many copies of the log must have a record before it is acknowledged.
func (s *Servers) InSync() int { return s.Nodes/2 + 1 }

// YAML returns notifyd's configuration of these servers, with the time-outs of appends and of
// Cassandra.
func (s *Servers) YAML(appends, cassandra time.Duration) string {
	list := func(addresses string) string { return `"` + strings.ReplaceAll(addresses, ",", `", "`) + `"` }
	limit := func(key string, d time.Duration) string {
		if d == 0 {
			return ""
		}
		return fmt.Sprintf(", %s: %s", key, d)
	}
	return fmt.Sprintf(`engines: distributed
kafka: {brokers: [%s], replication: %d, min_insync: %d%s}
cassandra: {hosts: [%s], keyspace: %s, replication: %d%s}
redis: {addresses: [%q], prefix: %q}
postgres: {dsn: %q}
log: {partitions: {push: %d, sms: 4, email: %d}}
`, list(s.Kafka), s.Nodes, s.InSync(), limit("append_timeout", appends), list(s.Cassandra), s.Keyspace, s.Nodes, limit("timeout", cassandra), s.Redis, cmp.Or(s.Prefix, "notifyd:"),
		s.DSN(cmp.Or(s.Database, "postgres")), cmp.Or(s.Partitions, 6), cmp.Or(s.Partitions, 4))
}

// CassandraConfig opens the rows that the processes write.
func (s *Servers) CassandraConfig(timeout time.Duration) cassandra.Config {
	return cassandra.Config{Hosts: strings.Split(s.Cassandra, ","), Keyspace: s.Keyspace, Replication: s.Nodes, Timeout: timeout}
}

// Resent is how many receivers of requests since then were handed to a provider again
// although an earlier call may have been taken, by their rows: the bound of duplicates.
func Resent(ctx context.Context, store *cassandra.Store, since time.Time) (n int64, err error) {
	err = store.Status().Scan(ctx, since.UnixMilli(), time.Now().Add(time.Hour).UnixMilli(), func(row *notify.Row) error {
		n += int64(row.Resent)
		return nil
	})
	return n, err
}

// DSN returns the connection string of a database of PostgreSQL.
func (s *Servers) DSN(database string) string {
	return fmt.Sprintf("postgres://notifyd@%s/%s?sslmode=disable", s.Postgres, database)
}
