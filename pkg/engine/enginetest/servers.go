package enginetest

import (
	"os"
	"testing"
)

// These environment variables contain the addresses of the servers that the tests of
// engines use. `make test-engines` sets all of them. The tests of one engine need only the
// variable of that engine.
const (
	KafkaEnv     = "NOTIFY_TEST_KAFKA"     // host:port of a broker
	CassandraEnv = "NOTIFY_TEST_CASSANDRA" // host:port of a node
	RedisEnv     = "NOTIFY_TEST_REDIS"     // host:port
	PostgresEnv  = "NOTIFY_TEST_POSTGRES"  // a DSN of a role that may create databases
	SQSEnv       = "NOTIFY_TEST_SQS"       // URL of the endpoint
)

// Server returns the address of a server from the environment variable env. If the variable
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
