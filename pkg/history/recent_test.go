package history

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// forgotten counts calls of Forget.
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
	var c cachedSegments
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
	c.remove(c.list[0].blob) // merged, or too old
	if closed != [5]int{1, 1, 1, 1, 0} || times[3] != 0 || c.bytes != 40 {
		t.Errorf("closed: %v, forgotten: %v, %d bytes left after one was removed", closed, times, c.bytes)
	}
	for i := range 2 * maxCachedSegments { // small ones: each is an open file
		var closed, times int
		f, err := fs.Create(segmentName(uint64(10+i), fileSuffix))
		if err != nil {
			t.Fatal(err)
		}
		b := newBlob(forgotten{f, &closed, &times}, "")
		c.add(b, 0, 100)
		b.release()
	}
	if len(c.list) != maxCachedSegments {
		t.Errorf("%d are held open, want %d", len(c.list), maxCachedSegments)
	}
	c.close()
	if closed != [5]int{1, 1, 1, 1, 1} || len(c.list) > 0 {
		t.Errorf("closed: %v after the end", closed)
	}
}

// No file that a merge or retention removed stays open.
func TestRemovedSegmentsAreClosed(t *testing.T) {
	t.Parallel()
	s, _ := open(t, Config{Dir: t.TempDir(), MergeCount: 4})
	for i := range 12 {
		must(t, s.Append(t.Context(), record(0, int64(i), envelope(baseAt(now+int64(i), 0), 0, 0, "c", receiver{0, "ann"}))))
		sealNow(t, s)
	}
	for {
		merged, err := s.mergeOnce(t.Context())
		must(t, err)
		if !merged {
			break
		}
	}
	v := s.acquireView()
	defer v.release()
	s.cached.mu.Lock()
	defer s.cached.mu.Unlock()
	if held, listed := len(s.cached.list), len(v.segs); held > listed {
		t.Errorf("%d segments are held open of %d that there are", held, listed)
	}
}
