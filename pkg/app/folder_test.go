package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A second process with the same data folder opens nothing, and says who has the folder.
func TestLockedFolder(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	l := run(t, cfg, seams{})
	_, err := New(cfg, slog.New(slog.DiscardHandler))
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code != "data_dir_locked" || !Locked(err) || notify.KindOf(err) != notify.KindUnavailable {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{cfg.DataDir, Self().Command, "http://" + l.Addr()} {
		if !strings.Contains(e.Msg, want) {
			t.Errorf("%q lacks %q", e.Msg, want)
		}
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
	if _, ok := HolderOf(cfg.DataDir); ok {
		t.Error("the holder stays written down after a stop")
	}
}

// The lock file that a killed process has left is no obstacle.
func TestStaleLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := `{"pid":2147483646,"command":"notifyd dev","since":"2026-01-01T00:00:00Z","api":"http://127.0.0.1:1"}`
	for name, text := range map[string]string{lockFile: "", holderFile: dead} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if h, ok := HolderOf(dir); !ok || h.API != "http://127.0.0.1:1" {
		t.Fatalf("%+v, %v", h, ok)
	}
	l, err := LockFolder(dir, Self())
	if err != nil {
		t.Fatal(err)
	}
	if h, ok := HolderOf(dir); !ok || h.PID != os.Getpid() || h.API != "" {
		t.Errorf("%+v, %v", h, ok)
	}
	if _, err := LockFolder(dir, Self()); !Locked(err) {
		t.Errorf("taken twice: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = LockFolder(dir, Self())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A data folder that existed before, and was open to other users, is closed to them.
func TestDataFolderIsItsOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, dir)
	cfg.DataDir = dir
	l := run(t, cfg, seams{})
	for _, name := range []string{".", "store", "log", "history"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if m := st.Mode().Perm(); m != 0o700 {
			t.Errorf("%s has mode %o, want 700", name, m)
		}
	}
	if err := l.stop(); err != nil {
		t.Fatal(err)
	}
}
