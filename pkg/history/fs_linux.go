package history

import (
	"os"

	"golang.org/x/sys/unix"
)

// SyncData is fdatasync: the size is part of it, the times are not.
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

// WriteBack starts the write of the range. Its error is ignored on purpose:
// some file systems have it not, and SyncData is what durability rests on.
func (f osFile) WriteBack(off, n int64) {
	c, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) {
		_ = unix.SyncFileRange(int(fd), off, n, unix.SYNC_FILE_RANGE_WRITE)
	})
}

// Forget gives the file's page cache back. Its error is ignored on purpose: the
// file is read as well from the disk.
func (f osFile) Forget() {
	c, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) {
		_ = unix.Fadvise(int(fd), 0, 0, unix.FADV_DONTNEED)
	})
}
