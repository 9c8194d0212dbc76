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

// latch stops all writes of the store after the first failure. After a failed fsync the
// content of the page cache is unknown. If a later fsync succeeds, the data of the failed
// fsync may still be missing on the disk. So the process must start again and recover from
// what is really on the disk.
type latch struct {
	log    *slog.Logger
	armed  atomic.Bool   // true while Pebble opens, and from the end of Open until Close
	failed chan struct{} // closed at the first failure

	mu  sync.Mutex
	err error // the first failure; guarded by mu
}

func newLatch(log *slog.Logger) *latch {
	return &latch{log: log, failed: make(chan struct{})}
}

// trip stores the first failure and wakes every goroutine that waits for a write. Later
// failures change nothing.
func (l *latch) trip(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	// Log only err.Error(): if the logger formatted err itself, it could add a stack.
	l.log.Error("the store has failed; it accepts no writes until the process is started again", "err", err.Error())
	close(l.failed)
}

// cause returns the failure that stopped writes; nil while the store works.
func (l *latch) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// freeze blocks its goroutine for ever. Without freeze, Pebble would end the process after a
// failure of its log or manifest. After a failed rotation of the log the process would end with a
// fatal error of the Go runtime, which recover cannot stop. Pebble would also retry a failed flush at
// once and without end. A blocked goroutine can neither change data nor acknowledge a write.
// Reads continue, and the process can report the failure and stop normally.
func (l *latch) freeze() { select {} }

// failStopFS watches writes to the store's folder. The first failed write trips the latch.
// From then on every goroutine that writes to the folder blocks for ever (freeze),
// including the goroutine of the failed write. Files outside the folder, such as the files
// of a checkpoint, are not watched.
type failStopFS struct {
	vfs.FS
	dir string
	l   *latch
}

// isWatched reports whether a file belongs to the open store.
func (f *failStopFS) isWatched(name string) bool {
	return f.l.armed.Load() && (name == f.dir || f.PathDir(name) == f.dir)
}

// guard calls write, which writes to the file with this name. If the file is watched, guard
// returns only after success. After a failure of write, or an earlier failure of the store, it
// blocks for ever.
func (f *failStopFS) guard(name string, write func() error) error {
	if !f.isWatched(name) {
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

func (f *failStopFS) guardOpen(name string, open func() (vfs.File, error)) (file vfs.File, err error) {
	err = f.guard(name, func() (err error) {
		file, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &failStopFile{File: file, name: name, fs: f}, nil
}

func (f *failStopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.guardOpen(name, func() (vfs.File, error) {
		return f.createLog(name, func() (vfs.File, error) { return f.FS.Create(name, c) })
	})
}

func (f *failStopFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.guardOpen(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

func (f *failStopFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.guardOpen(newname, func() (vfs.File, error) {
		return f.createLog(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
	})
}

// createLog calls create, which creates the file with this name. If the file is a
// write-ahead log of the store, createLog stores the name as the newest log (writeNewest).
func (f *failStopFS) createLog(name string, create func() (vfs.File, error)) (vfs.File, error) {
	file, err := create()
	if err != nil || !f.isWatched(name) || !strings.HasSuffix(name, logSuffix) {
		return file, err
	}
	if err := writeNewest(f.FS, f.dir, f.PathBase(name)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (f *failStopFS) OpenDir(name string) (vfs.File, error) {
	return f.guardOpen(name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *failStopFS) Link(oldname, newname string) error {
	return f.guard(newname, func() error { return f.FS.Link(oldname, newname) })
}

func (f *failStopFS) Rename(oldname, newname string) error {
	return f.guard(newname, func() error { return f.FS.Rename(oldname, newname) })
}

func (f *failStopFS) MkdirAll(name string, perm os.FileMode) error {
	return f.guard(name, func() error { return f.FS.MkdirAll(name, perm) })
}

func (f *failStopFS) Unwrap() vfs.FS { return f.FS }

type failStopFile struct {
	vfs.File
	name string
	fs   *failStopFS
}

func (f *failStopFile) Write(p []byte) (n int, err error) {
	err = f.fs.guard(f.name, func() (err error) { n, err = f.File.Write(p); return err })
	return n, err
}

func (f *failStopFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.guard(f.name, func() (err error) { n, err = f.File.WriteAt(p, off); return err })
	return n, err
}

func (f *failStopFile) SyncTo(length int64) (full bool, err error) {
	err = f.fs.guard(f.name, func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

func (f *failStopFile) Sync() error     { return f.fs.guard(f.name, f.File.Sync) }
func (f *failStopFile) SyncData() error { return f.fs.guard(f.name, f.File.SyncData) }
func (f *failStopFile) Close() error    { return f.fs.guard(f.name, f.File.Close) }

// pebbleLog writes the log messages of Pebble to the logger of the store.
type pebbleLog struct{ l *latch }

func (p pebbleLog) Infof(format string, args ...any) {
	if p.l.log.Enabled(context.Background(), slog.LevelDebug) {
		p.l.log.Debug(fmt.Sprintf(format, args...))
	}
}

func (p pebbleLog) Errorf(format string, args ...any) {
	p.l.log.Error(fmt.Sprintf(format, args...))
}

// Pebble calls Fatalf when it cannot continue. Fatalf trips the latch. While the latch is armed, it
// then blocks the goroutine for ever. Otherwise it returns, and Pebble returns the error to its
// caller.
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
