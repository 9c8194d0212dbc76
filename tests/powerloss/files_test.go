//go:build linux

package powerloss

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/archive"
	"github.com/notifyd/notifyd/pkg/backup"
	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/engine/memory"
	"github.com/notifyd/notifyd/pkg/history"
	"github.com/notifyd/notifyd/pkg/notify"
	"github.com/notifyd/notifyd/tests/powerloss/lossfs"
)

// TestFilesAreThere checks the functions of package atomicfile. After they have returned, the file
// and every folder above it must survive a power cut. The file system gives only the guarantees
// that POSIX requires.
func TestFilesAreThere(t *testing.T) {
	t.Parallel()
	disk, dir := mount(t, lossfs.WithFolder)
	name := filepath.Join(dir, "a", "b", "file")
	holds := func(name, want string) {
		t.Helper()
		disk.Cut(nil)
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	}
	if err := atomicfile.MkdirAll(filepath.Dir(name)); err != nil {
		t.Fatal(err)
	}
	disk.Cut(nil)
	if info, err := os.Stat(filepath.Dir(name)); err != nil || !info.IsDir() {
		t.Fatal(err)
	}
	for _, content := range []string{"one", "", "three"} {
		if err := atomicfile.WriteFile(name, []byte(content)); err != nil {
			t.Fatal(err)
		}
		holds(name, content)
	}
	if err := atomicfile.Rename(name, name+"2"); err != nil {
		t.Fatal(err)
	}
	holds(name+"2", "three")
}

// TestRestoredIsThere checks that a restored folder survives a power cut, even if backup.Restore
// had to create the folders above it.
func TestRestoredIsThere(t *testing.T) {
	t.Parallel()
	disk, dir := mount(t, lossfs.WithFolder)
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "f"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if _, err := backup.Write(t.Context(), &saved, from, backup.Manifest{}); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "of", "its", "own")
	if _, err := backup.Restore(t.Context(), &saved, to); err != nil {
		t.Fatal(err)
	}
	disk.Cut(nil)
	if b, err := os.ReadFile(filepath.Join(to, "f")); err != nil || string(b) != "1" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestArchivedIsThere checks that the files and the manifest that the archive has written survive
// a power cut, although the archive had to create its folder.
func TestArchivedIsThere(t *testing.T) {
	t.Parallel()
	disk, mnt := mount(t, lossfs.WithFolder)
	store := memory.New()
	if err := store.DeadLetters().Put(t.Context(), []engine.DeadLetter{{ID: notify.ID{Base: notify.NewBase(time.Now())}, Caller: "shop", State: engine.LetterDead}}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(mnt, "kept", "archive")
	a, err := archive.Open(t.Context(), archive.Config{
		Dir: dir, Letters: store.DeadLetters(), Callers: func() []string { return []string{"shop"} },
		History: noHistory{}, Status: store.Status(), Meta: store.Meta(),
	})
	if err == nil {
		err = a.Once(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	disk.Cut(nil)
	ms, err := archive.List(dir)
	if err != nil || len(ms) != 1 || ms[0].Lines != 1 {
		t.Fatalf("%+v, %v", ms, err)
	}
	if err := archive.Verify(dir, &ms[0]); err != nil {
		t.Error(err)
	}
}

type noHistory struct{}

func (noHistory) Settled(context.Context, int64) (map[history.Part]int64, error) {
	return map[history.Part]int64{}, nil
}

func (noHistory) Range(context.Context, map[history.Part]int64, map[history.Part]int64, func(*notify.Envelope) error) (int, error) {
	return 0, nil
}
