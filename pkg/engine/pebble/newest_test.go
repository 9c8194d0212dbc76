package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/pkg/notify"
)

// A store whose newest write-ahead log was removed does not open as if nothing
// had been in it: the error names the file, and the way back and on.
func TestNewestLogIsMissed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Dir: dir, CacheBytes: 1 << 20, MemTableBytes: 256 << 10}
	open := func() *Store {
		t.Helper()
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	stop := func(s *Store) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	first := newest(t, dir)
	value := bytes.Repeat([]byte("x"), 64<<10)
	for i := range 16 { // 1 MiB: several memtables, and so several logs
		if err := s.Meta().PutMeta(t.Context(), fmt.Sprint("filler ", i), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Meta().PutMeta(t.Context(), "last", []byte("acknowledged")); err != nil {
		t.Fatal(err)
	}
	stop(s)
	name := newest(t, dir)
	if name == first {
		t.Fatalf("the newest log is still %s: the test does not change logs", name)
	}
	file := filepath.Join(dir, name)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	_, err := Open(cfg)
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Code != "store_wal_missing" || !strings.Contains(e.Msg, name) || !strings.Contains(e.Msg, filepath.Join(dir, NewestLog)) {
		t.Fatalf("without %s: %v", name, err)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	s = open()
	if v, err := s.Meta().GetMeta(t.Context(), "last"); err != nil || string(v) != "acknowledged" {
		t.Errorf("put back: %q, %v", v, err)
	}
	stop(s)

	// Without the file NEWEST-WAL the store opens without the lost log.
	for _, gone := range []string{newest(t, dir), NewestLog} {
		if err := os.Remove(filepath.Join(dir, gone)); err != nil {
			t.Fatal(err)
		}
	}
	stop(open())
}

// newest returns the recorded name of the newest log and checks that no log is newer.
func newest(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, NewestLog))
	if err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*"+logSuffix))
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSpace(string(b))
	slices.Sort(logs) // six digits each
	if len(logs) == 0 || filepath.Base(logs[len(logs)-1]) != name {
		t.Fatalf("%s is written down, the logs are %v", name, logs)
	}
	return name
}

// A crash may leave part of the name in the file. The store must open nevertheless.
func TestHalfAName(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "0000", "000004.log", "../x.log\n", "000004.sst\n"} {
		dir := t.TempDir()
		s, err := Open(Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, NewestLog), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(Config{Dir: dir}); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
