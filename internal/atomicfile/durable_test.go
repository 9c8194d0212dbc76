package atomicfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/atomicfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Writers of one file do not meet: each content is whole, and none fails.
func TestWriteFileBesideAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				if err := atomicfile.WriteFile(name, bytes.Repeat([]byte{byte('a' + i)}, 1000+i)); err != nil {
					t.Error(err)
				}
				b, err := os.ReadFile(name)
				if err != nil || len(b) != 1000+int(b[0]-'a') || bytes.Count(b, b[:1]) != len(b) {
					t.Errorf("%d bytes, %v", len(b), err)
				}
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := os.MkdirAll(filepath.Join(name, "x"), 0o700); err != nil { // a folder has the name
		t.Fatal(err)
	}
	if err := atomicfile.WriteFile(name, []byte("1")); err == nil {
		t.Error("no error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := atomicfile.WriteFile(filepath.Join(dir, "no", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestMkdirAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a/b/c", "a/b/c", "a", "d/", "e/../g"} {
		if err := atomicfile.MkdirAll(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.IsDir() {
			t.Error(fmt.Sprint(info), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "f/x"} {
		if err := atomicfile.MkdirAll(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A file that is there stays as it is, and nothing is left beside it.
func TestNewFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := atomicfile.NewFile(name, []byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.NewFile(name, []byte("2")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "1" {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestSameVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if !atomicfile.SameVolume(dir, filepath.Dir(dir)) {
		t.Error("a folder and the one above it")
	}
	if runtime.GOOS == "linux" && atomicfile.SameVolume(dir, "/proc") {
		t.Error("a folder and /proc")
	}
	if atomicfile.SameVolume(dir, filepath.Join(dir, "missing")) {
		t.Error("a folder that is not there")
	}
}
