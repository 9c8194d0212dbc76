package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A second process in a folder opens nothing, and says who has it.
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

// What a killed process left is no obstacle.
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

// The names of new folders are made durable, and of nothing else: each in the
// folder it was made in.
func TestNewFoldersAreSynced(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	var synced []string
	note := func(dir string) error {
		if _, err := os.Stat(filepath.Join(top, "a", "b", "c")); err != nil {
			t.Errorf("synced before all is made: %v", err)
		}
		rel, err := filepath.Rel(top, dir)
		synced = append(synced, rel)
		return err
	}
	for _, want := range [][]string{{"a/b", "a", "."}, nil} {
		synced = nil
		if err := makeFolders(filepath.Join(top, "a", "b", "c")+"/", note); err != nil || !slices.Equal(synced, want) {
			t.Errorf("%q, %v, want %q", synced, err, want)
		}
	}
	failed := errors.New("failed")
	if err := makeFolders(filepath.Join(top, "d"), func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
	if err := makeFolders(filepath.Join(top, "e"), func(string) error { return os.ErrPermission }); err != nil {
		t.Errorf("a folder that may be written to and not read: %v", err)
	}
	if err := makeFolders(filepath.Join(top, "f", "g"), syncFolder); err != nil {
		t.Error(err)
	}
}
