package embedded

import (
	"os"

	"golang.org/x/sys/unix"
)

const canSmooth = true

// startWriteBack asks the kernel to write a range of the file to the disk. It does not wait for the
// write.
func startWriteBack(f *os.File, off, n int64) error {
	return unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}
