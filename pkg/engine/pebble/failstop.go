package pebble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// latch closes the store for writing at the first failure. What is in the page
// cache after a failed fsync is unknown, and a second fsync that succeeds says
// nothing about the first, so there is no way back but a new start, which
// recovers from what is really on the disk.
type latch struct {
	log    *slog.Logger
	armed  atomic.Bool // between the end of Open and Close
	failed chan struct{}

	mu  sync.Mutex
	err error
}

func newLatch(log *slog.Logger) *latch {
	return &latch{log: log, failed: make(chan struct{})}
}

// trip records the first failure and wakes everybody who waits for a write.
func (l *latch) trip(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	l.log.Error("store failed; it takes no more writes until the next start", "err", err)
	close(l.failed)
}

// cause is the failure that closed the store, nil while it is well.
func (l *latch) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// freeze never returns. Pebble answers a failure of its log or manifest by
// ending the process, and in one place (a failing log rotation) by a throw no
// recover can stop; it has no state to go on from. The goroutine is held where
// it is instead: nothing it would have changed or acknowledged happens, readers
// go on, and the process can say what is wrong and stop in order.
func (l *latch) freeze() { select {} }

// failStopFS watches what is written to the store's folder.
type failStopFS struct {
	vfs.FS
	dir string
	l   *latch
}

// check trips the latch for a failed write to the store's own files, and
// freezes the caller if Pebble could not survive hearing of it. Files outside
// (a checkpoint's) are their caller's business. A failed flush or compaction
// loses nothing, as the log still has it, so Pebble may see that error.
func (f *failStopFS) check(name string, err error) error {
	if err == nil || !f.l.armed.Load() {
		return err
	}
	if name != f.dir && f.PathDir(name) != f.dir {
		return err
	}
	f.l.trip(fmt.Errorf("%s: %w", f.PathBase(name), err))
	base := f.PathBase(name)
	if name == f.dir || strings.HasSuffix(base, ".log") || strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.") {
		f.l.freeze()
	}
	return err
}

func (f *failStopFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, f.check(name, err)
	}
	return &failStopFile{File: file, name: name, fs: f}, nil
}

func (f *failStopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.wrap(name, file, err)
}

func (f *failStopFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return f.wrap(name, file, err)
}

func (f *failStopFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	return f.wrap(newname, file, err)
}

func (f *failStopFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(name, file, err)
}

func (f *failStopFS) Link(oldname, newname string) error {
	return f.check(newname, f.FS.Link(oldname, newname))
}

func (f *failStopFS) Rename(oldname, newname string) error {
	return f.check(newname, f.FS.Rename(oldname, newname))
}

func (f *failStopFS) MkdirAll(name string, perm os.FileMode) error {
	return f.check(name, f.FS.MkdirAll(name, perm))
}

func (f *failStopFS) Unwrap() vfs.FS { return f.FS }

type failStopFile struct {
	vfs.File
	name string
	fs   *failStopFS
}

func (f *failStopFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.fs.check(f.name, err)
}

func (f *failStopFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	return n, f.fs.check(f.name, err)
}

func (f *failStopFile) Sync() error     { return f.fs.check(f.name, f.File.Sync()) }
func (f *failStopFile) SyncData() error { return f.fs.check(f.name, f.File.SyncData()) }
func (f *failStopFile) Close() error    { return f.fs.check(f.name, f.File.Close()) }

func (f *failStopFile) SyncTo(n int64) (bool, error) {
	full, err := f.File.SyncTo(n)
	return full, f.fs.check(f.name, err)
}

// pebbleLog passes Pebble's own log on.
type pebbleLog struct{ l *latch }

func (p pebbleLog) Infof(format string, args ...any) {
	if p.l.log.Enabled(context.Background(), slog.LevelDebug) {
		p.l.log.Debug(fmt.Sprintf(format, args...))
	}
}

func (p pebbleLog) Errorf(format string, args ...any) {
	p.l.log.Error(fmt.Sprintf(format, args...))
}

// Fatalf is called where Pebble has no way on; see freeze. While the store
// opens, the callers pass the error on, and Open returns it.
func (p pebbleLog) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = errors.Join(err, cause)
			break
		}
	}
	p.l.trip(err)
	if p.l.armed.Load() {
		p.l.freeze()
	}
}
