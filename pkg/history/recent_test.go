package history

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// forgotten counts what it is told to forget.
type forgotten struct {
	File
	closed, times *int
}

func (f forgotten) Forget()      { *f.times++ }
func (f forgotten) Close() error { *f.closed++; return f.File.Close() }

// The newest segments stay in the page cache, the rest does not, whatever was
// written before; and none stays open for that.
func TestForgetsAllButTheNewestSegments(t *testing.T) {
	fs := memFS{vfs.NewMem()}
	var c recent
	var closed, times [5]int
	for i := range closed {
		f, err := fs.Create(segmentName(uint64(i), fileSuffix))
		if err != nil {
			t.Fatal(err)
		}
		b := newBlob(forgotten{f, &closed[i], &times[i]}, "")
		c.add(b, 40, 100)
		b.release() // whoever wrote it
	}
	if times != [5]int{1, 1, 1, 0, 0} {
		t.Errorf("forgotten: %v, want the three oldest once", times)
	}
	if closed != [5]int{1, 1, 1, 0, 0} {
		t.Errorf("closed: %v: what is forgotten is released, what is cached is held", closed)
	}
	c.close()
	if closed != [5]int{1, 1, 1, 1, 1} {
		t.Errorf("closed: %v after the end", closed)
	}
}
