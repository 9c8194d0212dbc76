package history

import (
	"context"
	"encoding/binary"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memFS adapts pebble's in-memory file system, which can lose power.
type memFS struct{ fs *vfs.MemFS }

type memFile struct{ vfs.File }

func (m memFS) MkdirAll(dir string) error {
	if err := m.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return m.SyncDir("/")
}
func (m memFS) List(dir string) ([]string, error) { return m.fs.List(dir) }
func (m memFS) Create(name string) (File, error) {
	f, err := m.fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return memFile{f}, nil
}
func (m memFS) Open(name string) (File, error) {
	f, err := m.fs.Open(name)
	if err != nil {
		if _, serr := m.fs.Stat(name); serr != nil {
			return nil, fs.ErrNotExist
		}
		return nil, err
	}
	return memFile{f}, nil
}
func (m memFS) Rename(from, to string) error { return m.fs.Rename(from, to) }
func (m memFS) Remove(name string) error     { return m.fs.Remove(name) }
func (m memFS) SyncDir(dir string) error {
	d, err := m.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
func (f memFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
func (f memFile) WriteBack(off, n int64) {}
func (f memFile) Forget()                {}

// faultFS passes through and calls hook before every change; an error of the
// hook is the call's error.
type faultFS struct {
	FS
	hook func(op, name string) error
}

type faultFile struct {
	File
	fs   *faultFS
	name string
}

func (f *faultFS) Create(name string) (File, error) {
	if err := f.hook("create", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return faultFile{file, f, name}, nil
}
func (f *faultFS) Rename(from, to string) error {
	if err := f.hook("rename", to); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}
func (f *faultFS) Remove(name string) error {
	if err := f.hook("remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}
func (f *faultFS) SyncDir(dir string) error {
	if err := f.hook("syncdir", dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}
func (f faultFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.fs.hook("write", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, off)
}
func (f faultFile) SyncData() error {
	if err := f.fs.hook("sync", f.name); err != nil {
		return err
	}
	return f.File.SyncData()
}

const topic = "notifications-push"

// baseAt is a base of a time, with n as its random part: equal times order by n.
func baseAt(ms int64, n uint64) notify.Base {
	var b notify.Base
	var t [8]byte
	binary.BigEndian.PutUint64(t[:], uint64(ms))
	copy(b[:6], t[2:])
	binary.BigEndian.PutUint64(b[8:], n)
	return b
}

// receiver is a user at an index.
type receiver struct {
	index uint32
	user  string
}

// envelope builds an original chunk.
func envelope(base notify.Base, partition uint16, block uint32, caller string, rs ...receiver) *notify.Envelope {
	var w notify.ReceiverWriter
	for _, r := range rs {
		w.Append(notify.Receiver{Index: r.index, User: []byte(r.user)})
	}
	return &notify.Envelope{
		Chunk:  notify.Chunk{Base: base, Partition: partition, Block: block},
		FanOut: true, Channel: notify.Push, Category: notify.Marketing,
		Accepted: base.Time().UnixMilli(), Caller: caller,
		Content: notify.Content{Title: "t", Body: "b"},
		Count:   uint32(len(rs)), Receivers: w.Bytes(),
	}
}

func record(part int32, offset int64, e *notify.Envelope) Record {
	return Record{Topic: topic, Partition: part, Offset: offset, Value: notify.AppendEnvelope(nil, e), Time: e.Accepted}
}

// open opens a store and runs it until the test ends or stop is called.
func open(t testing.TB, cfg Config) (s *Store, stop func()) {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Log("run:", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		s.Close()
	})
	t.Cleanup(stop)
	return s, stop
}

// sealNow freezes every tail and waits until all is sealed.
func sealNow(t testing.TB, s *Store) {
	t.Helper()
	for _, p := range s.allParts() {
		p.appendMu.Lock()
		if p.active != nil {
			if err := s.freezeActive(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		// All slots are free when nothing is frozen.
		for range maxFrozen {
			p.slots <- struct{}{}
		}
		for range maxFrozen {
			<-p.slots
		}
		p.appendMu.Unlock()
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var now = time.Now().UnixMilli()

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func segFiles(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+fileSuffix))
	must(t, err)
	return names
}

func fileSize(t testing.TB, name string) int64 {
	t.Helper()
	st, err := os.Stat(name)
	must(t, err)
	return st.Size()
}

func newMem() memFS { return memFS{vfs.NewCrashableMem()} }
