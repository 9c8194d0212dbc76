package rig

import (
	"flag"
	"fmt"
	"strings"
	"time"
)

// Servers are the servers of make engines, as flags have them: addresses with commas
// between where there may be several.
type Servers struct {
	Kafka, Cassandra, Redis, Postgres, Keyspace string
	Nodes                                       int // of Kafka and of Cassandra each
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

// InSync is how many copies of the log take part in an acknowledgement.
func (s *Servers) InSync() int { return s.Nodes/2 + 1 }

// YAML is notifyd's configuration of them.
func (s *Servers) YAML(appends, cassandra time.Duration) string {
	list := func(addresses string) string { return `"` + strings.ReplaceAll(addresses, ",", `", "`) + `"` }
	return fmt.Sprintf(`engines: distributed
kafka: {brokers: [%s], replication: %d, min_insync: %d, append_timeout: %s}
cassandra: {hosts: [%s], keyspace: %s, replication: %d, timeout: %s}
redis: {addresses: [%q]}
postgres: {dsn: "postgres://notifyd@%s/postgres?sslmode=disable"}
log: {partitions: {push: 6, sms: 4, email: 4}}
`, list(s.Kafka), s.Nodes, s.InSync(), appends, list(s.Cassandra), s.Keyspace, s.Nodes, cassandra, s.Redis, s.Postgres)
}
