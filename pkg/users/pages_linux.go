package users

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const largePage = 2 << 20

// preferLargePages asks for large pages under b before it is written to. Where
// the system has none to give it says so to nobody: all is as right, and slower.
func preferLargePages(b []byte) { advise(b, unix.MADV_HUGEPAGE) }

// makeLargePages makes the pages under b large that are not. Memory that the heap
// has used before keeps the small ones it has, whatever is asked for: of what 5M
// users take they were two thirds.
func makeLargePages(b []byte) { advise(b, unix.MADV_COLLAPSE) }

func advise(b []byte, advice int) {
	if len(b) < 2*largePage {
		return
	}
	from := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (largePage - 1)
	b = b[from:]
	_ = unix.Madvise(b[:len(b)&^(largePage-1)], advice)
}
