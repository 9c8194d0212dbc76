package archive

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
)

// openShared opens the archive of one of several processes, each with a folder of its own.
func (w *world) openShared(t *testing.T, b *bucket, dir string) *Archiver {
	t.Helper()
	a := w.openTo(t, b)
	a.cfg.Shared, a.cfg.Dir = true, dir
	return a
}

// dieAt kills the archiver when it comes to a point for the nth time.
func dieAt(t *testing.T, a *Archiver, at string, nth int) {
	t.Helper()
	a.cfg.hit = func(name string) {
		if name == at {
			if nth--; nth == 0 {
				runtime.Goexit()
			}
		}
	}
	killed, survived := make(chan struct{}), false
	go func() {
		defer close(killed)
		_ = a.Once(t.Context())
		survived = true
	}()
	<-killed
	if survived {
		t.Fatal("it was not killed")
	}
}

// TestKilledProcessIsReplaced kills processes that archive into one bucket, each with a
// folder of its own, at each step of each file. Another one goes on, is killed there too, and
// so does a third; then the killed ones come back. Every line is in the bucket once.
func TestKilledProcessIsReplaced(t *testing.T) {
	t.Parallel()
	type death struct {
		point string
		nth   int
		put   int // at which Put of the bucket, 0: at the point
	}
	var deaths []death
	for _, point := range []string{"archive-before-pending", "archive-before-name", "archive-named", "archive-shipped"} {
		deaths = append(deaths, death{point: point, nth: 1}, death{point: point, nth: 2})
	}
	for put := 1; put <= 4; put++ {
		deaths = append(deaths, death{put: put})
	}
	for _, d := range deaths {
		for killed := 1; killed <= 3; killed++ {
			t.Run(fmt.Sprint(d, " ", killed, " processes"), func(t *testing.T) {
				t.Parallel()
				w, b := newWorld(t), newBucket(t)
				var dirs []string
				lines := 0
				for range killed {
					w.add(t, 2)
					lines += 2
					dirs = append(dirs, t.TempDir())
					a := w.openShared(t, b, dirs[len(dirs)-1])
					if d.put > 0 {
						b.kill = d.put
						dieAt(t, a, "no point", 1)
					} else {
						dieAt(t, a, d.point, d.nth)
					}
				}
				last := t.TempDir()
				for range 2 {
					once(t, w.openShared(t, b, last))
				}
				for _, dir := range dirs { // the killed ones come back, the first one first
					w.add(t, 1)
					lines++
					once(t, w.openShared(t, b, dir))
					w.dir = dir
					w.wantShipped(t, b, lines)
				}
			})
		}
	}
}

// TestPausedProcessIsReplaced stops a process between its look into the bucket and its
// upload for as long as another one needs to archive the same.
func TestPausedProcessIsReplaced(t *testing.T) {
	t.Parallel()
	for nth := 1; nth <= 4; nth++ { // Put
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		first, second := w.openShared(t, b, w.dir), w.openShared(t, b, t.TempDir())
		puts := 0
		b.before = func(string) {
			if puts++; puts == nth {
				b.before = nil
				w.add(t, 2)
				second.rowUnsure = true
				once(t, second)
			}
		}
		if err := first.Once(t.Context()); !errors.Is(err, errRowChanged) {
			t.Errorf("put %d: it went on with %v", nth, err)
		}
		once(t, first)
		w.wantShipped(t, b, 6)
	}
}

// TestUploadArrivesLate has the upload of a process that was killed arrive when another one
// has looked for it in vain: that one's own file is not stored beside it.
func TestUploadArrivesLate(t *testing.T) {
	t.Parallel()
	for nth := 1; nth <= 2; nth++ { // the file of letters, the file of outcomes
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		first := w.openShared(t, b, w.dir)
		dieAt(t, first, "archive-named", nth)
		m := first.st.Pending.Manifest
		w.add(t, 2)
		b.before = func(name string) {
			if name == m.File {
				b.before = nil
				if err := b.Put(t.Context(), name, filepath.Join(w.dir, filepath.FromSlash(name)), m.SHA256); err != nil {
					t.Error(err)
				}
			}
		}
		second := w.openShared(t, b, t.TempDir())
		once(t, second)
		once(t, second)
		once(t, w.openShared(t, b, w.dir))
		w.wantShipped(t, b, 6)
	}
}

// TestReplacedFileIsPutAside checks that a file which another process has written again does not
// get into the bucket and is not removed.
func TestReplacedFileIsPutAside(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newBucket(t)
	w.add(t, 4)
	dieAt(t, w.openShared(t, b, w.dir), "archive-named", 1)
	w.add(t, 1) // else both files were the same
	once(t, w.openShared(t, b, t.TempDir()))
	once(t, w.openShared(t, b, w.dir))
	w.wantShipped(t, b, 5)
	aside := filepath.Join(w.dir, asideFolder)
	ms, err := List(aside)
	if err != nil || len(ms) != 1 || ms[0].Lines != 8 {
		t.Fatalf("%+v, %v", ms, err)
	}
	if err := Verify(aside, &ms[0]); err != nil {
		t.Error(err)
	}
}

// TestComesBackToTheFileOfAnother: a process that was killed comes back when another one has
// written its file again and was killed too. Under that file's name it has its own, which is
// not taken for it.
func TestComesBackToTheFileOfAnother(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"archive-before-name", "archive-named"} {
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		dieAt(t, w.openShared(t, b, w.dir), point, 1)
		w.add(t, 2)
		second := t.TempDir()
		dieAt(t, w.openShared(t, b, second), "archive-before-name", 2) // the first time is that of the file it does not have
		once(t, w.openShared(t, b, w.dir))
		w.wantShipped(t, b, 6)
		w.dir = second
		once(t, w.openShared(t, b, second))
		w.wantShipped(t, b, 6)
	}
}

// TestWhatIsInTheBucketIsNotReadAgain: a process that was killed behind its upload is
// replaced without the history, which may be gone by then.
func TestWhatIsInTheBucketIsNotReadAgain(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newBucket(t)
	w.add(t, 4)
	dieAt(t, w.openShared(t, b, w.dir), "archive-shipped", 2)
	w.past.away.Store(true)
	second := w.openShared(t, b, t.TempDir())
	if err := second.Once(t.Context()); err == nil {
		t.Error("the history is not away")
	}
	if at := positionOf(t, second); at != 4 {
		t.Errorf("archived to %d", at)
	}
	w.dir = second.cfg.Dir
	w.wantShipped(t, b, 4)
}
