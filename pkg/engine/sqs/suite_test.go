package sqs

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	api "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// credentials returns a file with credentials. A server on loopback accepts any.
func credentials(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "credentials")
	must(t, os.WriteFile(name, []byte("[default]\naws_access_key_id = test\naws_secret_access_key = hidden-word\n"), 0o600))
	return name
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testConfig(t testing.TB) Config {
	t.Helper()
	return Config{
		Region: "eu-central-1", Endpoint: enginetest.Server(t, enginetest.SQSEnv), CredentialsFile: credentials(t),
		Prefix: "t-" + strings.ToLower(rand.Text()) + "-", Timeout: time.Minute, Wait: time.Second,
	}
}

func mustOpen(t enginetest.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// migrated is a queue that is there, and removed with the test's end.
func migrated(t testing.TB, cfg Config) (*Store, engine.Queue) {
	t.Helper()
	s := mustOpen(t, cfg)
	q, err := s.Queue("q", enginetest.QueueReceives)
	must(t, err)
	must(t, s.Migrate(t.Context(), q))
	t.Cleanup(func() {
		for l := range q.(*queue).lanes {
			if url, err := q.(*queue).queueURL(context.Background(), l); err == nil {
				_, _ = s.api.DeleteQueue(context.Background(), &api.DeleteQueueInput{QueueUrl: url})
			}
		}
	})
	return s, q
}

// open gives the suite a queue of its own; reopen is another process, which knows
// nothing of the first.
func open(t enginetest.T) (engine.Queue, func() engine.Queue) {
	tt := t.(testing.TB)
	cfg := testConfig(tt)
	_, q := migrated(tt, cfg)
	return q, func() engine.Queue {
		q, err := mustOpen(t, cfg).Queue("q", enginetest.QueueReceives)
		must(tt, err)
		return q
	}
}

func TestQueue(t *testing.T) { enginetest.QueueService(t, open) }
