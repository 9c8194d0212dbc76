package enginetest

import (
	"os"
	"testing"
)

// Environment variables with the addresses of the servers that engine tests use.
// `make test-engines` sets all of them. The tests of one engine need only its own.
const (
	KafkaEnv     = "NOTIFY_TEST_KAFKA"     // host:port of a broker
	CassandraEnv = "NOTIFY_TEST_CASSANDRA" // host:port of a node
	RedisEnv     = "NOTIFY_TEST_REDIS"     // host:port
	PostgresEnv  = "NOTIFY_TEST_POSTGRES"  // a DSN of a role that may create databases
	SQSEnv       = "NOTIFY_TEST_SQS"       // URL of the endpoint
)

// Server returns the address of the server of a test, from the environment variable env. If it
// is not set, Server skips the test, or fails it if NOTIFY_REQUIRE_ENGINES is 1.
func Server(t testing.TB, env string) string {
	t.Helper()
	addr := os.Getenv(env)
	switch {
	case addr != "":
	case os.Getenv("NOTIFY_REQUIRE_ENGINES") == "1":
		t.Fatalf("%s is not set, and NOTIFY_REQUIRE_ENGINES=1: run make engines and make test-engines", env)
	default:
		t.Skipf("%s is not set: run make engines and make test-engines", env)
	}
	return addr
}
