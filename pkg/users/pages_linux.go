package users

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const largePage = 2 << 20

// preferLargePages asks for large pages under b before b is written to. If the system has none,
// nothing reports that: the result is right, only slower.
func preferLargePages(b []byte) { advise(b, unix.MADV_HUGEPAGE) }

// makeLargePages replaces small pages under b by large ones. Memory that the heap used before keeps
// its small pages whatever is asked for. With 5M users these were two thirds of the memory.
func makeLargePages(b []byte) { advise(b, unix.MADV_COLLAPSE) }

func advise(b []byte, advice int) {
	if len(b) < 2*largePage {
		return
	}
	from := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (largePage - 1)
	b = b[from:]
	_ = unix.Madvise(b[:len(b)&^(largePage-1)], advice)
}
