package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/archive/s3"
	"github.com/notifyd/notifyd/pkg/archive/s3/s3test"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestArchive runs a node with an archive. Outcomes come into the archive. The doctor and the
// metrics say how far it is behind, and the doctor also says that its folder is gone.
func TestArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := testConfig(t, dir)
	cfg.Archive.Dir = filepath.Join(dir, "archive")
	cfg.Archive.Every, cfg.Archive.After = 20*time.Millisecond, time.Millisecond
	l := run(t, cfg, seams{historyAge: 20 * time.Millisecond})
	got, err := l.client.Send(t.Context(), push("ann", "hello"), "")
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, got.NotificationID, notify.Delivered.String())
	var ms []archive.Manifest
	eventually(t, "a file of outcomes", func() bool {
		if ms, err = archive.List(cfg.Archive.Dir); err != nil {
			t.Fatal(err)
		}
		return len(ms) > 0
	})
	if len(ms) != 1 || ms[0].Kind != archive.Outcomes || ms[0].Lines != 1 {
		t.Errorf("%+v", ms)
	}
	if err := archive.Verify(cfg.Archive.Dir, &ms[0]); err != nil {
		t.Error(err)
	}
	finding := func() engine.Finding {
		t.Helper()
		v, err := views{l.Node}.doctor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range v.(engine.Findings) {
			if f.Check == "archive" {
				return f
			}
		}
		t.Fatal("the doctor does not look at the archive")
		return engine.Finding{}
	}
	eventually(t, "a doctor that is content", func() bool { f := finding(); return f.Level == "ok" && strings.Contains(f.Detail, "1 files") })
	families, err := l.metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	gauges := map[string]float64{}
	for _, f := range families {
		if len(f.Metric) == 1 && f.Metric[0].Gauge != nil {
			gauges[f.GetName()] = f.Metric[0].Gauge.GetValue()
		}
	}
	if age, wait := gauges["notifyd_archive_age_seconds"], gauges["notifyd_archive_wait_seconds"]; wait != cfg.Archive.Wait.Seconds() || age <= 0 || age >= wait {
		t.Errorf("the archive is %g s behind, of %g", age, wait)
	}
	if err := os.Rename(cfg.Archive.Dir, cfg.Archive.Dir+".moved"); err != nil {
		t.Fatal(err)
	}
	for os.WriteFile(cfg.Archive.Dir, nil, 0o600) != nil { // the archive has made the folder again
		if err := os.RemoveAll(cfg.Archive.Dir); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a doctor that complains", func() bool { f := finding(); return f.Level == "warn" && f.Repair != "" })
}

// TestArchiveOverServers has two processes over the same servers, with an archive. One of them
// writes the archive from the log. When that process ends, the other continues. A record that is
// not archived is not trimmed from the log.
func TestArchiveOverServers(t *testing.T) {
	t.Parallel()
	cfg := sharing(t)
	cfg.Archive.Dir = filepath.Join(t.TempDir(), "archive")
	cfg.Archive.Every, cfg.Archive.After = 20*time.Millisecond, time.Millisecond
	s := newShared(t, &cfg)
	n := runAs(t, "all", cfg, seams{servers: s.open})
	other := runAs(t, "all", cfg, seams{servers: s.open})
	lines := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprint(want, " lines in the archive"), func() bool {
			ms, err := archive.List(cfg.Archive.Dir)
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			for i := range ms {
				if err := archive.Verify(cfg.Archive.Dir, &ms[i]); err != nil {
					t.Error(err)
				}
				got += ms[i].Lines
			}
			if got > want {
				t.Fatalf("%d lines", got)
			}
			return got == want
		})
	}
	send := func(l *life) {
		t.Helper()
		if _, err := l.client.Send(t.Context(), push("ann", "hello"), ""); err != nil {
			t.Fatal(err)
		}
	}
	send(n)
	lines(1)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	send(other)
	lines(2)
	eventually(t, "the log may be trimmed behind both", func() bool { // a file is stored before its position is
		at, err := other.groups.archivedOffsets(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return sumOf(at, "notifications-push") == 2
	})
}

// TestArchiveToS3OverServers has two processes over the same servers, which archive into one
// bucket, each with a folder of its own. The bucket is away at first, and later the process that
// writes ends. Every dead letter and every outcome comes into the bucket once.
func TestArchiveToS3OverServers(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	away.Store(true)
	store := &s3test.Store{Fail: func(*http.Request) int {
		if away.Load() {
			return http.StatusForbidden // a refusal, which the client does not try again by itself
		}
		return 0
	}}
	srv := httptest.NewServer(store)
	defer srv.Close()
	cred, err := s3test.Credentials(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg := sharing(t)
	cfg.Archive.Every, cfg.Archive.After = 20*time.Millisecond, time.Millisecond
	cfg.Archive.S3 = s3.Config{Bucket: s3test.Bucket, Prefix: "own", Region: s3test.Region, Endpoint: srv.URL, PathStyle: true, Credentials: cred}
	s := newShared(t, &cfg)
	refusing := &script{answers: []notify.Result{{Class: notify.ClassPermanent, Code: "apns_bad_topic", Provider: "apns"}}}
	start := func() *life {
		mine := cfg
		mine.Archive.Dir = filepath.Join(t.TempDir(), "archive")
		return runAs(t, "all", mine, seams{servers: s.open, provider: refusing.seams().provider})
	}
	n, other := start(), start()
	var sent []string
	send := func(l *life) {
		t.Helper()
		for range 5 {
			got, err := l.client.Send(t.Context(), push("ann", "hello"), fmt.Sprint("key", len(sent))) // with a key, so that the client may try again
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, got.NotificationID)
		}
		for _, id := range sent {
			l.becomes(t, id, "FAILED")
		}
	}
	archived := func() {
		t.Helper()
		var got map[string][]string // ids, by kind
		eventually(t, fmt.Sprint(len(sent), " dead letters and outcomes in the bucket"), func() bool {
			got = idsOf(t, store.Objects())
			return len(got[archive.DeadLetters]) >= len(sent) && len(got[archive.Outcomes]) >= len(sent)
		})
		want := slices.Sorted(slices.Values(sent))
		for kind, ids := range got {
			if slices.Sort(ids); !slices.Equal(ids, want) {
				t.Errorf("%s: %v in the bucket, sent were %v", kind, ids, want)
			}
		}
	}
	send(n)
	eventually(t, "the archive says that the store refuses", func() bool {
		return n.archive.Status(t.Context(), time.Now()).Err != nil || other.archive.Status(t.Context(), time.Now()).Err != nil
	})
	away.Store(false)
	archived()
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	send(other)
	archived()
	for _, p := range store.Problems() {
		t.Error(p)
	}
}

// idsOf returns the notifications in the files of a bucket that have a manifest, by kind.
func idsOf(t *testing.T, objects map[string]s3test.Object) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for key, o := range objects {
		if !strings.HasSuffix(key, ".json") {
			continue
		}
		var m archive.Manifest
		if err := json.Unmarshal(o.Data, &m); err != nil {
			t.Fatal(err)
		}
		z, err := zstd.NewReader(bytes.NewReader(objects[path.Join("own", m.File)].Data), zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		for dec := json.NewDecoder(z); ; {
			var line struct {
				Outcome string `json:"notification_id"`
				Letter  string `json:"id"`
			}
			if err := dec.Decode(&line); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", m.File, err)
			}
			out[m.Kind] = append(out[m.Kind], line.Outcome+line.Letter)
		}
		z.Close()
	}
	return out
}
