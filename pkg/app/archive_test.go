package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

// TestArchive runs a node with an archive: outcomes come into it, the doctor and
// the metrics tell how far it is, and also that its folder is gone.
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
	for os.WriteFile(cfg.Archive.Dir, nil, 0o600) != nil { // the archive was faster
		if err := os.RemoveAll(cfg.Archive.Dir); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a doctor that complains", func() bool { f := finding(); return f.Level == "warn" && f.Repair != "" })
}

// TestArchiveOverServers has two processes over the same servers with an archive: one of them
// writes it, from the log, and when that one ends the other goes on. What is not archived is
// not trimmed from the log.
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
	eventually(t, "the log may be trimmed behind both", func() bool { // a file is there before its position
		at, err := other.groups.archived(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return sumOf(at, "notifications-push") == 2
	})
}
