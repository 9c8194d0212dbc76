package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
)

// bucket is a folder.
type bucket struct {
	dir  string
	sums map[string]string
	at   int // of which Put the answer is an error; counted down
	kill int // at which Put the process dies
	// before is called when Put has looked and before it stores. May be nil.
	before func(name string)
}

func newBucket(t *testing.T) *bucket { return &bucket{dir: t.TempDir(), sums: map[string]string{}} }

func (b *bucket) Put(_ context.Context, name, file, sum string) error {
	if b.kill--; b.kill == 0 {
		runtime.Goexit()
	}
	if b.at--; b.at == 0 {
		return errors.New("503 SlowDown")
	}
	if b.before != nil {
		b.before(name)
	}
	if was, ok := b.sums[name]; ok {
		if was != sum {
			return fmt.Errorf("%s: %w", name, fs.ErrExist)
		}
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	to := filepath.Join(b.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	b.sums[name] = sum
	return os.WriteFile(to, data, 0o600)
}

func (b *bucket) Has(_ context.Context, name, sum string) (bool, error) {
	return b.sums[name] == sum, nil
}

func (w *world) openTo(t *testing.T, b *bucket) *Archiver {
	t.Helper()
	a := w.open(t, nil)
	a.cfg.Bucket = b
	return a
}

// wantShipped checks that everything is in the bucket once, and nothing in the
// folder.
func (w *world) wantShipped(t *testing.T, b *bucket, n int) {
	t.Helper()
	if ms, err := List(w.dir); err != nil || len(ms) > 0 {
		t.Errorf("left in the folder: %v, %v", ms, err)
	}
	there := *w
	there.dir = b.dir
	there.want(t, n)
}

func TestShips(t *testing.T) {
	t.Parallel()
	w, b := newWorld(t), newBucket(t)
	w.add(t, 3)
	once(t, w.open(t, nil)) // before there is a bucket
	w.add(t, 4)
	a := w.openTo(t, b)
	once(t, a)
	once(t, a)
	w.wantShipped(t, b, 7)
	for _, kind := range []string{DeadLetters, Outcomes} {
		if days, _ := os.ReadDir(filepath.Join(w.dir, kind)); len(days) > 0 {
			t.Errorf("empty folders are left: %v", days)
		}
	}
}

// An unreachable bucket is reported and tried again. Nothing is lost, and nothing is stored
// twice.
func TestBucketFails(t *testing.T) {
	t.Parallel()
	for nth := 1; nth <= 4; nth++ { // two files, two manifests
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		b.at = nth
		a := w.openTo(t, b)
		if err := a.Once(t.Context()); err == nil {
			t.Errorf("put %d: no error", nth)
		}
		w.add(t, 2)
		once(t, a)
		w.wantShipped(t, b, 6)
	}
}

func TestKilledShipping(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"archive-named", "archive-shipped"} {
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		die(t, w.openTo(t, b), name)
		w.add(t, 2)
		once(t, w.openTo(t, b))
		w.wantShipped(t, b, 6)
	}
	for nth := 1; nth <= 4; nth++ {
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		b.kill = nth
		die(t, w.openTo(t, b), "no point")
		w.add(t, 2)
		once(t, w.openTo(t, b))
		w.wantShipped(t, b, 6)
	}
}

// Killed between the row and the removal, and in the middle of that.
func TestKilledRemoving(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		w, b := newWorld(t), newBucket(t)
		w.add(t, 4)
		once(t, w.open(t, nil)) // stands for a row that has moved on
		ms, err := List(w.dir)
		if err != nil || len(ms) != 2 {
			t.Fatal(ms, err)
		}
		a := w.openTo(t, b)
		if err := a.upload(t.Context(), &ms[0]); err != nil {
			t.Fatal(err)
		}
		if gone {
			if err := os.Remove(filepath.Join(w.dir, ms[0].File)); err != nil {
				t.Fatal(err)
			}
		}
		once(t, w.openTo(t, b))
		w.wantShipped(t, b, 4)
	}
}

// A store that was restored counts from where it was: names are taken then.
func TestRestoredStoreShips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // within one hour
		w, b := newWorld(t), newBucket(t)
		w.add(t, 3)
		a := w.openTo(t, b)
		old, err := w.meta.GetMeta(t.Context(), metaKey)
		if err != nil {
			t.Fatal(err)
		}
		once(t, a)
		if err := w.meta.PutMeta(t.Context(), metaKey, old); err != nil {
			t.Fatal(err)
		}
		w.add(t, 1)
		again := w.openTo(t, b)
		for range 5 {
			once(t, again)
		}
		there := *w
		there.dir = b.dir
		if n := len(there.lines(t, DeadLetters)); n != 14 {
			t.Errorf("%d lines, not 6 and then 8", n)
		}
		if ms, err := List(w.dir); err != nil || len(ms) > 0 {
			t.Errorf("left in the folder: %v, %v", ms, err)
		}
	})
}
