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
	armed  atomic.Bool // while Pebble opens, and between the end of Open and Close
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
	l.log.Error("store failed; it takes no more writes until the next start", "err", err.Error()) // some carry stacks
	close(l.failed)
}

// cause is the failure that closed the store, nil while it is well.
func (l *latch) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// freeze never returns. Pebble answers a failure of its log or manifest by
// ending the process, in one place (a failing log rotation) by a throw no
// recover can stop, and a failed flush by trying again at once, for ever. The
// goroutine is held where it is instead: nothing it would have changed or
// acknowledged happens, readers go on, and the process can say what is wrong
// and stop in order.
func (l *latch) freeze() { select {} }

// failStopFS watches what is written to the store's folder. The first failure
// trips the latch; it and every later write to the folder hold their goroutine.
// Files outside (a checkpoint's) are their caller's business.
type failStopFS struct {
	vfs.FS
	dir string
	l   *latch
}

// ours reports whether a file belongs to the open store.
func (f *failStopFS) ours(name string) bool {
	return f.l.armed.Load() && (name == f.dir || f.PathDir(name) == f.dir)
}

// do runs a write to the file called name.
func (f *failStopFS) do(name string, write func() error) error {
	if !f.ours(name) {
		return write()
	}
	select {
	case <-f.l.failed:
		f.l.freeze()
	default:
	}
	err := write()
	if err != nil {
		f.l.trip(fmt.Errorf("%s: %w", f.PathBase(name), err))
		f.l.freeze()
	}
	return err
}

func (f *failStopFS) open(name string, open func() (vfs.File, error)) (file vfs.File, err error) {
	err = f.do(name, func() (err error) {
		file, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &failStopFile{File: file, name: name, fs: f}, nil
}

func (f *failStopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) {
		return f.newest(name, func() (vfs.File, error) { return f.FS.Create(name, c) })
	})
}

func (f *failStopFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

func (f *failStopFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(newname, func() (vfs.File, error) {
		return f.newest(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
	})
}

// newest makes a file, and writes it down when it is a write-ahead log.
func (f *failStopFS) newest(name string, open func() (vfs.File, error)) (vfs.File, error) {
	file, err := open()
	if err != nil || !f.ours(name) || !strings.HasSuffix(name, logSuffix) {
		return file, err
	}
	if err := writeNewest(f.FS, f.dir, f.PathBase(name)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (f *failStopFS) OpenDir(name string) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *failStopFS) Link(oldname, newname string) error {
	return f.do(newname, func() error { return f.FS.Link(oldname, newname) })
}

func (f *failStopFS) Rename(oldname, newname string) error {
	return f.do(newname, func() error { return f.FS.Rename(oldname, newname) })
}

func (f *failStopFS) MkdirAll(name string, perm os.FileMode) error {
	return f.do(name, func() error { return f.FS.MkdirAll(name, perm) })
}

func (f *failStopFS) Unwrap() vfs.FS { return f.FS }

type failStopFile struct {
	vfs.File
	name string
	fs   *failStopFS
}

func (f *failStopFile) Write(p []byte) (n int, err error) {
	err = f.fs.do(f.name, func() (err error) { n, err = f.File.Write(p); return err })
	return n, err
}

func (f *failStopFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.do(f.name, func() (err error) { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}

func (f *failStopFile) SyncTo(length int64) (full bool, err error) {
	err = f.fs.do(f.name, func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

func (f *failStopFile) Sync() error     { return f.fs.do(f.name, f.File.Sync) }
func (f *failStopFile) SyncData() error { return f.fs.do(f.name, f.File.SyncData) }
func (f *failStopFile) Close() error    { return f.fs.do(f.name, f.File.Close) }

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
