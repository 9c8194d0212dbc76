package sqs

import (
	"crypto/md5"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	api "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func md5Of(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

func wantCode(t testing.TB, err error, kind notify.Kind, code string) {
	t.Helper()
	e, ok := err.(*notify.Error)
	if !ok || e.Kind != kind || e.Code != code {
		t.Fatalf("error %v, want %v %s", err, kind, code)
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s := mustOpen(t, cfg)
	q, err := s.Queue("q", 3)
	must(t, err)
	wantCode(t, q.Enqueue(t.Context(), []engine.Message{{}}), notify.KindUnavailable, "queue_missing")
	for _, f := range s.Doctor(t.Context(), q) {
		if f.Level != "fail" || f.Repair != "run notifyd migrate up" {
			t.Errorf("finding %+v", f)
		}
	}
	s, q = migrated(t, cfg)
	must(t, q.Enqueue(t.Context(), []engine.Message{{Body: []byte("kept")}}))
	must(t, s.Migrate(t.Context(), q)) // again
	ds, err := q.Receive(t.Context(), 1, cfg.Timeout)
	must(t, err)
	if len(ds) != 1 || string(ds[0].Body) != "kept" {
		t.Errorf("deliveries %+v", ds)
	}
	fs := s.Doctor(t.Context(), q)
	if len(fs) < 3 || slices.ContainsFunc(fs, func(f engine.Finding) bool { return f.Level != "ok" || f.Repair != "" }) {
		t.Errorf("findings %+v", fs)
	}
	// Another number of receives is another policy.
	other := mustOpen(t, cfg)
	five, err := other.Queue("q", 5)
	must(t, err)
	if fs := other.Doctor(t.Context(), five); !slices.ContainsFunc(fs, func(f engine.Finding) bool { return f.Level == "fail" && strings.Contains(f.Detail, "redrive") }) {
		t.Errorf("findings %+v", fs)
	}
	must(t, other.Migrate(t.Context(), five))
	if fs := other.Doctor(t.Context(), five); slices.ContainsFunc(fs, func(f engine.Finding) bool { return f.Level != "ok" }) {
		t.Errorf("findings %+v", fs)
	}
	must(t, s.Migrate(t.Context(), q))
}

// Receive never returns a body that another program has sent. It becomes dead.
func TestForeignBodies(t *testing.T) {
	t.Parallel()
	s, q := migrated(t, testConfig(t))
	url, err := q.(*queue).queueURL(t.Context(), onTime)
	must(t, err)
	for _, body := range []string{"hello", "1%%%"} {
		_, err = s.api.SendMessage(t.Context(), &api.SendMessageInput{QueueUrl: url, MessageBody: &body})
		must(t, err)
	}
	must(t, q.Enqueue(t.Context(), []engine.Message{{Body: []byte("ours")}}))
	ds, err := q.Receive(t.Context(), 1, testConfig(t).Timeout)
	for err == nil && len(ds) == 0 {
		ds, err = q.Receive(t.Context(), 1, testConfig(t).Timeout)
	}
	must(t, err)
	if string(ds[0].Body) != "ours" {
		t.Errorf("received %q", ds[0].Body)
	}
}
