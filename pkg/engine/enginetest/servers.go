package enginetest

import (
	"os"
	"testing"
)

// Where the tests of the engines that are servers find them. `make test-engines`
// sets all of them; by hand one is enough.
const (
	KafkaEnv     = "NOTIFY_TEST_KAFKA"     // host:port of a broker
	CassandraEnv = "NOTIFY_TEST_CASSANDRA" // host:port of a node
	RedisEnv     = "NOTIFY_TEST_REDIS"     // host:port
	PostgresEnv  = "NOTIFY_TEST_POSTGRES"  // a DSN of a role that may create databases
	SQSEnv       = "NOTIFY_TEST_SQS"       // URL of the endpoint
)

// Server returns where the server of a test is. Where nothing says so the test
// is skipped, or fails if NOTIFY_REQUIRE_ENGINES is 1.
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
