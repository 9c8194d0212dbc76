package embedded

import (
	"os"

	"golang.org/x/sys/unix"
)

const canSmooth = true

// startWriteBack asks the kernel to write a range to the disk, and does not wait for it.
func startWriteBack(f *os.File, off, n int64) error {
	return unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
