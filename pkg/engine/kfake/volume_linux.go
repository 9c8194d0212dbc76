package kfake

import (
	"os"

	"golang.org/x/sys/unix"
)

const canSmooth = true

// startWriteBack asks the kernel to write a range out without waiting for it.
func startWriteBack(f *os.File, off, n int64) error {
	return unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// freeBytes is the room an unprivileged process has on dir's volume.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
