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

// Servers has the addresses of the servers that make engines starts. Kafka and Cassandra may have
// several addresses, separated by commas.
type Servers struct {
	Kafka, Cassandra, Redis, Postgres, Keyspace string
	Nodes                                       int // number of Kafka brokers; Cassandra has the same number of nodes

	// Database is the database in PostgreSQL. Default: postgres.
	Database string
	// Prefix is the prefix of the keys in Redis. Default: notifyd:, as in the product.
	Prefix string
	// Partitions is the number of partitions of each topic for pushes and of each topic for mails.
	// The command notifyd migrate creates the topics. Default: 6 for pushes and 4 for mails.
	Partitions int
}

// Flags registers a flag for each address, for Keyspace and for Nodes.
func (s *Servers) Flags() {
	flag.StringVar(&s.Kafka, "kafka", "127.0.0.1:19092", "addresses of the Kafka brokers, separated by commas")
	flag.StringVar(&s.Cassandra, "cassandra", "127.0.0.1:19042", "addresses of the Cassandra nodes, separated by commas")
	flag.StringVar(&s.Redis, "redis", "127.0.0.1:16379", "address of the Redis server")
	flag.StringVar(&s.Postgres, "postgres", "127.0.0.1:15432", "address of the PostgreSQL server")
	flag.StringVar(&s.Keyspace, "keyspace", "notifyd", "keyspace in Cassandra")
	flag.IntVar(&s.Nodes, "nodes", 1, "number of Kafka brokers, and also of Cassandra nodes: 1 or 3")
}

// InSync returns the number of replicas that must have a record before Kafka acknowledges it.
func (s *Servers) InSync() int { return s.Nodes/2 + 1 }

// YAML returns notifyd's configuration for these servers. The parameter appends is the timeout of
// an append to the log. The parameter cassandra is the timeout of a request to Cassandra. 0 means
// the default of notifyd.
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

// CassandraConfig returns the configuration with which a proof opens the rows that notifyd writes.
func (s *Servers) CassandraConfig(timeout time.Duration) cassandra.Config {
	return cassandra.Config{Hosts: strings.Split(s.Cassandra, ","), Keyspace: s.Keyspace, Replication: s.Nodes, Timeout: timeout}
}

// Resent returns the largest allowed number of duplicates: the receivers that were sent again
// although the provider may have accepted an earlier call. It reads the rows of all requests that
// were accepted at the given time or later.
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
