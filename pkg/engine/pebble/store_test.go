package pebble

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pebbledb "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/engine"
	"github.com/notifyd/notifyd/pkg/notify"
)

func wantCode(t *testing.T, err error, kind notify.Kind, code, part string) {
	t.Helper()
	e, ok := errors.AsType[*notify.Error](err)
	if !ok || e.Kind != kind || e.Code != code || !strings.Contains(e.Error(), part) {
		t.Fatalf("error %v, want %v %q that names %q", err, kind, code, part)
	}
}

// TestSecondProcess runs this test binary again on the folder.
func TestSecondProcess(t *testing.T) {
	if dir := os.Getenv("PEBBLE_TEST_DIR"); dir != "" {
		_, err := Open(Config{Dir: dir})
		wantCode(t, err, notify.KindUnavailable, "store_locked", dir)
		return
	}
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b") // made by Open
	s := mustOpen(t, Config{Dir: dir})
	_, err := Open(Config{Dir: dir})
	wantCode(t, err, notify.KindUnavailable, "store_locked", dir)
	cmd := exec.Command(os.Args[0], "-test.run=^TestSecondProcess$")
	cmd.Env = append(os.Environ(), "PEBBLE_TEST_DIR="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("second process: %v\n%s", err, out)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mustOpen(t, Config{Dir: dir}).Close(); err != nil { // the lock is gone
		t.Fatal(err)
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, testConfig(fs))
	if err := s.db.Set(formatKey, []byte("7"), pebbledb.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(testConfig(fs))
	wantCode(t, err, notify.KindConflict, "store_newer", "it has format 7, but this build reads formats up to 6")
	_, err = Open(testConfig(fs)) // the refusal let go of the folder
	wantCode(t, err, notify.KindConflict, "store_newer", "data")

	fs = vfs.NewMem()
	s = mustOpen(t, testConfig(fs))
	if err := s.db.Set(formatKey, []byte("5"), pebbledb.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(testConfig(fs)) // no release wrote it
	wantCode(t, err, notify.KindConflict, "store_foreign", "data")

	other := vfs.NewMem()
	db, err := pebbledb.Open("data", &pebbledb.Options{FS: other, Merger: firstWins})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Set([]byte("x"), nil, pebbledb.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(testConfig(other))
	wantCode(t, err, notify.KindConflict, "store_foreign", "data")
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Dir: "d", CacheBytes: 5}, {Dir: "d", MemTableBytes: 5}, {Dir: "d", MemTableBytes: 1 << 40}} {
		_, err := Open(cfg)
		wantCode(t, err, notify.KindInvalid, "bad_config", "")
	}
}

func TestDamagedFolderIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := mustOpen(t, Config{Dir: dir})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	if err != nil || len(manifests) == 0 {
		t.Fatal(manifests, err)
	}
	for _, m := range manifests {
		if err := os.WriteFile(m, []byte("this is no manifest"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Open(Config{Dir: dir})
	wantCode(t, err, notify.KindInternal, "store_corrupt", dir)
	for _, m := range manifests { // waiting brings back none that is gone
		if err := os.Remove(m); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Open(Config{Dir: dir})
	wantCode(t, err, notify.KindInternal, "store_corrupt", dir)
}

// A damaged write-ahead log is an error, even the first log of a new store: acknowledged
// writes after the damage must not be dropped silently.
func TestDamagedWriteAheadLogIsAnError(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Dir: t.TempDir()})
	for i := range 200 {
		if err := s.db.Set(append([]byte{tFormat, 'x'}, string(rune('a'+i))...), bytes.Repeat([]byte{7}, 1000), pebbledb.Sync); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir() // what a kill now would leave
	if err := os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(s.cfg.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "copy")
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	name := logs[len(logs)-1]
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		b[100_000+i] ^= 0xff
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(Config{Dir: dir})
	wantCode(t, err, notify.KindInternal, "store_corrupt", dir)
}

// TestCloseWritesWhatWasAccepted: each call that began before Close is durable or returns
// an error, and no goroutine is left.
func TestCloseWritesWhatWasAccepted(t *testing.T) {
	fs := vfs.NewCrashableMem()
	leaks := goleak.IgnoreCurrent()
	s := mustOpen(t, testConfig(fs))
	var p promises
	ended := make(chan error)
	for i := range 8 {
		go func() {
			for n := 0; ; n++ {
				row := testRow(i<<16+n, 0)
				if err := s.Status().Put(context.Background(), []notify.Row{row}); err != nil {
					ended <- err
					return
				}
				p.add("row", func(s *Store) error {
					got, err := s.Status().Get(context.Background(), []notify.RowKey{row.Key})
					return found(err == nil && got[0].Count == 1, err)
				})
			}
		}()
	}
	for len(p.soFar()) < 100 {
		if _, err := s.Status().Get(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		wantCode(t, <-ended, notify.KindUnavailable, "store", "closed")
	}
	goleak.VerifyNone(t, leaks)
	again := mustOpen(t, testConfig(fs.CrashClone(vfs.CrashCloneCfg{})))
	if lost := broken(again, p.soFar()); len(lost) > 0 {
		t.Fatalf("%d lost", len(lost))
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCheckpoint(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, testConfig(fs))
	if err := s.Meta().PutMeta(t.Context(), "store_id", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint("copy"); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint("copy"); err == nil { // exists; the store itself is well
		t.Fatal("a second checkpoint in the same folder")
	}
	if err := s.Meta().PutMeta(t.Context(), "store_id", []byte("later")); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(fs)
	cfg.Dir = "copy"
	c := mustOpen(t, cfg)
	got, err := c.Meta().GetMeta(t.Context(), "store_id")
	if err != nil || string(got) != "x" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := errors.Join(c.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestMetricsAndDiskUsage(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Dir: t.TempDir()})
	for n := range 10 {
		if err := s.Status().Put(t.Context(), []notify.Row{testRow(n, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	m := s.Metrics()
	if m.Writes != 10 || m.Groups == 0 || m.Groups > 10 || m.WALBytes == 0 || m.DiskBytes == 0 {
		t.Fatalf("%+v", m)
	}
	u, err := s.DiskUsage()
	if err != nil || u.Available == 0 || u.Total < u.Available || u.Store == 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCallerLeaves: if a context ends while the disk hangs, its caller returns. The next
// writer of the same key waits until the first write has settled. No reader sees a version
// before it is durable.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingFS(vfs.NewMem())
		s := mustOpen(t, testConfig(disk))
		disk.hang()
		ctx, cancel := context.WithCancel(t.Context())
		var first, second error
		var version uint64
		go func() {
			_, first = s.Prefs().Put(ctx, engine.Profile{User: "u", TimeZone: "first"})
		}()
		synctest.Wait()
		if v, err := s.Prefs().Version(t.Context()); v != 0 || err != nil {
			t.Fatalf("version %d, %v before it is durable", v, err)
		}
		cancel()
		synctest.Wait()
		if !errors.Is(first, context.Canceled) || notify.KindOf(first) != notify.KindUnavailable {
			t.Fatalf("error %v", first)
		}
		go func() {
			version, second = s.Prefs().Put(t.Context(), engine.Profile{User: "u", TimeZone: "second", Version: 1})
		}()
		synctest.Wait()
		if s.commit.writes.Load() != 1 {
			t.Fatal("the second write did not wait for the first")
		}
		disk.release()
		synctest.Wait()
		if second != nil || version != 2 { // it saw the first one's version
			t.Fatalf("version %d, %v", version, second)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestNobodySeesWhatIsNotDurable: a caller that loses the race for an idempotency key, or
// repeats a cancellation, sees the first one only when a loss of power cannot undo it.
func TestNobodySeesWhatIsNotDurable(t *testing.T) {
	for name, call := range map[string]func(*Store) error{
		"reserve": func(s *Store) error {
			_, _, err := s.Idem().Reserve(context.Background(), engine.Reservation{Key: engine.IdemKey{Key: "k"}, Expires: 9}, 0)
			return err
		},
		"cancel": func(s *Store) error {
			_, err := s.Cancels().Put(context.Background(), engine.Cancel{Scope: "cmp_1"})
			return err
		},
		"part": func(s *Store) error {
			return s.Campaigns().AddPart(context.Background(), "cmp_1", "shop", 1, notify.Base{1}, 1, 0, 0)
		},
		"job": func(s *Store) error {
			_, _, err := s.Jobs().Create(context.Background(), engine.Job{ID: "1", Kind: "k", Name: "n"})
			return err
		},
		"caller": func(s *Store) error {
			err := s.Callers().Put(context.Background(), engine.Caller{ID: "c"})
			if notify.KindOf(err) == notify.KindConflict {
				err = nil
			}
			return err
		},
		"head": func(s *Store) error {
			_, _, err := s.Schedules().Swap(context.Background(), 0, engine.ScheduleHead{Base: notify.Base{1}})
			return err
		},
		"trigger": func(s *Store) error {
			_, err := s.Triggers().Create(context.Background(), []engine.Trigger{{ID: "trg_1"}})
			return err
		},
		"dead letter": func(s *Store) error {
			return s.DeadLetters().Put(context.Background(), []engine.DeadLetter{{Caller: "c"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := newHangingFS(vfs.NewMem())
				s := mustOpen(t, testConfig(disk))
				disk.hang()
				var returned atomic.Int32
				for range 3 {
					go func() {
						if err := call(s); err != nil {
							t.Error(err)
						}
						returned.Add(1)
					}()
					synctest.Wait()
				}
				if n := returned.Load(); n != 0 {
					t.Fatalf("%d calls returned while the disk hangs", n)
				}
				disk.release()
				synctest.Wait()
				if n := returned.Load(); n != 3 {
					t.Fatalf("%d of 3 calls returned", n)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestFeedStopsAtWhatIsDurable: a reader keeps the number of the last letter that it
// got. After a loss of power the store gives the numbers of letters that were not durable
// to other letters, so the feed must not show a letter before it is durable.
func TestFeedStopsAtWhatIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingFS(vfs.NewMem())
		s := mustOpen(t, testConfig(disk))
		d := s.DeadLetters()
		put := func(n byte, caller string) {
			if err := d.Put(t.Context(), []engine.DeadLetter{{ID: notify.ID{Base: notify.Base{n}}, Caller: caller, State: "dead", Until: 1 << 40}}); err != nil {
				t.Error(err)
			}
		}
		want := func(when string, feed, walked int, last uint64) {
			t.Helper()
			got, err := d.Feed(t.Context(), "c", 0, 10)
			if err != nil || len(got) != feed {
				t.Errorf("%s: the feed has %d letters, %v, want %d", when, len(got), err, feed)
			}
			if page, _, err := d.List(t.Context(), engine.DeadLetterFilter{}, nil, 10); err != nil || len(page) != walked {
				t.Errorf("%s: %d letters are listed, %v, want %d", when, len(page), err, walked)
			}
			n := 0
			if err := d.Walk(t.Context(), 0, math.MaxUint64, func(*engine.DeadLetter) error { n++; return nil }); err != nil || n != walked {
				t.Errorf("%s: %d letters were walked, %v, want %d", when, n, err, walked)
			}
			if ord, err := d.Last(t.Context()); err != nil || ord != last {
				t.Errorf("%s: the last number is %d, %v, want %d", when, ord, err, last)
			}
		}
		put(1, "c")
		want("settled", 1, 1, 1)
		disk.hang()
		for n := byte(2); n <= 4; n++ {
			caller := "c"
			if n == 3 {
				caller = "other"
			}
			go put(n, caller)
			synctest.Wait()
		}
		if _, err := d.Get(t.Context(), notify.ID{Base: notify.Base{2}}, 0); err != nil {
			t.Errorf("the letter that is being synced is not there: %v", err)
		}
		want("while the disk hangs", 1, 1, 1)
		disk.release()
		synctest.Wait()
		want("after the sync", 3, 4, 4)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, testConfig(disk))
		d = s.DeadLetters()
		want("opened again", 3, 4, 4)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// hangingFS holds every sync until it is released.
type hangingFS struct {
	vfs.FS
	gate chan chan struct{}
}

func newHangingFS(fs vfs.FS) *hangingFS {
	h := &hangingFS{FS: fs, gate: make(chan chan struct{}, 1)}
	open := make(chan struct{})
	close(open)
	h.gate <- open
	return h
}

func (h *hangingFS) hang()    { <-h.gate; h.gate <- make(chan struct{}) }
func (h *hangingFS) release() { g := <-h.gate; close(g); h.gate <- g }

func (h *hangingFS) wait() {
	g := <-h.gate
	h.gate <- g
	<-g
}

func (h *hangingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := h.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	return hangingFile{f, h}, nil
}

type hangingFile struct {
	vfs.File
	h *hangingFS
}

func (f hangingFile) Sync() error     { f.h.wait(); return f.File.Sync() }
func (f hangingFile) SyncData() error { f.h.wait(); return f.File.SyncData() }

// TestInBubble: the store runs under a fake clock, several times a process.
func TestInBubble(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			s := mustOpen(t, testConfig(vfs.NewMem()))
			for n := range 10 {
				time.Sleep(5 * time.Minute)
				if err := s.Status().Put(t.Context(), []notify.Row{testRow(n, 0)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
