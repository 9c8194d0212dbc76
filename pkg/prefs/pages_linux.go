package prefs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const largePage = 2 << 20

// preferLargePages asks for large pages under b before it is written to. Where
// the system has none to give it says so to nobody: all is as right, and slower.
func preferLargePages(b []byte) {
	if len(b) < 2*largePage {
		return
	}
	from := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (largePage - 1)
	b = b[from:]
	_ = unix.Madvise(b[:len(b)&^(largePage-1)], unix.MADV_HUGEPAGE)
}
