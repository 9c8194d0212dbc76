package history

import (
	"os"

	"golang.org/x/sys/unix"
)

// SyncData calls fdatasync, which makes the content and the size durable, but not the times.
func (f osFile) SyncData() error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = c.Control(func(fd uintptr) {
		for serr = unix.EINTR; serr == unix.EINTR; {
			serr = unix.Fdatasync(int(fd))
		}
	})
	if err != nil {
		return err
	}
	return os.NewSyscallError("fdatasync", serr)
}

// WriteBack starts the write of the range. It ignores errors: some file systems do not support the
// call, and only SyncData makes the content durable.
func (f osFile) WriteBack(off, n int64) {
	c, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) {
		_ = unix.SyncFileRange(int(fd), off, n, unix.SYNC_FILE_RANGE_WRITE)
	})
}

// Forget releases the file's page cache. It ignores errors: the content can be read from the disk
// again.
func (f osFile) Forget() {
	c, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED)
	})
}
