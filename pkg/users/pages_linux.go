package users

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const largePage = 2 << 20

// preferLargePages asks the system for large pages for the memory of b. It must be called before b
// is written. If the system has no large pages, there is no error; look-ups are only slower.
func preferLargePages(b []byte) { advise(b, unix.MADV_HUGEPAGE) }

// makeLargePages replaces the small pages of b by large pages. Memory that the heap used earlier
// keeps its small pages, even after preferLargePages. With 5M users that was two thirds of the
// memory.
func makeLargePages(b []byte) { advise(b, unix.MADV_COLLAPSE) }

func advise(b []byte, advice int) {
	if len(b) < 2*largePage {
		return
	}
	from := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (largePage - 1)
	b = b[from:]
	_ = unix.Madvise(b[:len(b)&^(largePage-1)], advice)
}
