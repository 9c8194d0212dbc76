//go:build linux

package lossfs

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mount mounts a new disk. If this is not possible, it skips the test, or fails the test with
// NOTIFY_REQUIRE_FUSE=1.
func mount(t *testing.T, names Names) (*Disk, string) {
	t.Helper()
	if err := Available(); err != nil {
		if os.Getenv("NOTIFY_REQUIRE_FUSE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	d, dir := New(names), t.TempDir()
	unmount, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return d, dir
}

// script has methods that change files below dir. With them a test case is a list of short calls.
type script struct {
	t   *testing.T
	dir string
}

func (s script) path(name string) string { return filepath.Join(s.dir, name) }

func (s script) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s script) with(name string, flag int, f func(f *os.File) error) {
	s.t.Helper()
	file, err := os.OpenFile(s.path(name), flag, 0o600)
	s.ok(err)
	s.ok(f(file))
	s.ok(file.Close())
}

func (s script) write(name, text string) {
	s.t.Helper()
	s.with(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, func(f *os.File) error { _, err := f.WriteString(text); return err })
}

func (s script) add(name, text string) {
	s.t.Helper()
	s.with(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, func(f *os.File) error { _, err := f.WriteString(text); return err })
}

func (s script) sync(name string) {
	s.t.Helper()
	s.with(name, os.O_RDONLY, (*os.File).Sync)
}

func (s script) rename(from, to string) { s.t.Helper(); s.ok(os.Rename(s.path(from), s.path(to))) }
func (s script) remove(name string)     { s.t.Helper(); s.ok(os.Remove(s.path(name))) }
func (s script) mkdir(name string)      { s.t.Helper(); s.ok(os.MkdirAll(s.path(name), 0o700)) }
func (s script) truncate(name string, size int64) {
	s.t.Helper()
	s.ok(os.Truncate(s.path(name), size))
}

// files returns the contents of all files, by path. An empty folder has a path that ends in a
// slash.
func (s script) files() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	s.ok(filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == s.dir {
			return err
		}
		name, err := filepath.Rel(s.dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			list, err := os.ReadDir(path)
			if len(list) == 0 {
				found[name+"/"] = ""
			}
			return err
		}
		b, err := os.ReadFile(path)
		found[name] = string(b)
		return err
	}))
	return found
}

func TestCutLeavesWhatWasSynced(t *testing.T) {
	t.Parallel()
	type want = map[string]string
	for name, c := range map[string]struct {
		do     func(s script)
		before want // the files before the cut
		file   want // the files after the cut, in the model WithFile
		folder want // the files after the cut, in the model WithFolder
	}{
		"a file that was not synced is gone": {
			func(s script) { s.write("a", "1") }, want{"a": "1"}, want{}, want{},
		},
		"a synced file": {
			func(s script) { s.write("a", "1"); s.sync("a") }, want{"a": "1"}, want{"a": "1"}, want{},
		},
		"file and folder synced": {
			func(s script) { s.write("a", "1"); s.sync("a"); s.sync(".") }, want{"a": "1"}, want{"a": "1"}, want{"a": "1"},
		},
		"folder synced, file not: the name of an empty file": {
			func(s script) { s.write("a", "1"); s.sync(".") }, want{"a": "1"}, want{"a": ""}, want{"a": ""},
		},
		"an append behind a sync is gone": {
			func(s script) { s.write("a", "1"); s.sync("a"); s.sync("."); s.add("a", "2") },
			want{"a": "12"}, want{"a": "1"}, want{"a": "1"},
		},
		"a synced append": {
			func(s script) { s.write("a", "1"); s.sync("."); s.add("a", "2"); s.sync("a") },
			want{"a": "12"}, want{"a": "12"}, want{"a": "12"},
		},
		"an overwrite that was not synced": {
			func(s script) {
				s.write("a", "123")
				s.sync("a")
				s.sync(".")
				s.with("a", os.O_WRONLY, func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 1); return err })
			},
			want{"a": "1x3"}, want{"a": "123"}, want{"a": "123"},
		},
		"a truncation that was not synced": {
			func(s script) { s.write("a", "123"); s.sync("a"); s.sync("."); s.truncate("a", 1) },
			want{"a": "1"}, want{"a": "123"}, want{"a": "123"},
		},
		"a truncation, then longer, synced: zeros between": {
			func(s script) {
				s.write("a", "123")
				s.sync(".")
				s.truncate("a", 1)
				s.truncate("a", 3)
				s.sync("a")
			},
			want{"a": "1\x00\x00"}, want{"a": "1\x00\x00"}, want{"a": "1\x00\x00"},
		},
		"a rename whose folder was not synced": {
			func(s script) {
				s.write("a", "old")
				s.sync("a")
				s.sync(".")
				s.write("a.tmp", "new")
				s.sync("a.tmp")
				s.rename("a.tmp", "a")
			},
			want{"a": "new"}, want{"a": "old", "a.tmp": "new"}, want{"a": "old"},
		},
		"a rename whose folder was synced": {
			func(s script) {
				s.write("a", "old")
				s.sync(".")
				s.write("a.tmp", "new")
				s.sync("a.tmp")
				s.rename("a.tmp", "a")
				s.sync(".")
			},
			want{"a": "new"}, want{"a": "new"}, want{"a": "new"},
		},
		"a rename, then the file synced under its new name": {
			func(s script) {
				s.write("a", "old")
				s.sync("a")
				s.sync(".")
				s.write("a.tmp", "new")
				s.rename("a.tmp", "a")
				s.add("a", "er")
				s.sync("a")
			},
			want{"a": "newer"}, want{"a": "newer"}, want{"a": "old"},
		},
		"a rename before the contents were synced: the name of an empty file": {
			func(s script) { s.write("a.tmp", "new"); s.rename("a.tmp", "a"); s.sync(".") },
			want{"a": "new"}, want{"a": ""}, want{"a": ""},
		},
		"a removal whose folder was not synced": {
			func(s script) { s.write("a", "1"); s.sync("a"); s.sync("."); s.remove("a") },
			want{}, want{"a": "1"}, want{"a": "1"},
		},
		"a removal whose folder was synced": {
			func(s script) { s.write("a", "1"); s.sync("a"); s.sync("."); s.remove("a"); s.sync(".") },
			want{}, want{}, want{},
		},
		"a file in a new folder": {
			func(s script) { s.mkdir("d/e"); s.write("d/e/a", "1"); s.sync("d/e/a") },
			want{"d/e/a": "1"}, want{"d/e/a": "1"}, want{},
		},
		"a new folder's folder was not synced": {
			func(s script) { s.mkdir("d"); s.write("d/a", "1"); s.sync("d/a"); s.sync("d") },
			want{"d/a": "1"}, want{"d/a": "1"}, want{},
		},
		"the folder above alone was synced": {
			func(s script) { s.mkdir("d"); s.write("d/a", "1"); s.sync(".") },
			want{"d/a": "1"}, want{"d/": ""}, want{"d/": ""},
		},
		"fdatasync is a sync": {
			func(s script) {
				s.with("a", os.O_CREATE|os.O_RDWR, func(f *os.File) error {
					_, err := f.WriteString("1")
					return errors.Join(err, unix.Fdatasync(int(f.Fd())))
				})
			},
			want{"a": "1"}, want{"a": "1"}, want{},
		},
		"sync_file_range is none": {
			func(s script) {
				s.sync(".")
				s.with("a", os.O_CREATE|os.O_RDWR, func(f *os.File) error {
					_, err := f.WriteString("1")
					return errors.Join(err, unix.SyncFileRange(int(f.Fd()), 0, 1, unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER))
				})
			},
			want{"a": "1"}, want{}, want{},
		},
		"space was reserved for a file": {
			func(s script) {
				s.with("a", os.O_CREATE|os.O_RDWR, func(f *os.File) error {
					_, err := f.WriteString("1")
					return errors.Join(err, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20), f.Sync())
				})
				s.sync(".")
			},
			want{"a": "1"}, want{"a": "1"}, want{"a": "1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for names, want := range map[Names]want{WithFile: c.file, WithFolder: c.folder} {
				d, dir := mount(t, names)
				s := script{t, dir}
				c.do(s)
				if got := s.files(); !maps.Equal(got, c.before) {
					t.Errorf("names %d: before the cut %q, want %q", names, got, c.before)
				}
				d.Cut(nil)
				if got := s.files(); !maps.Equal(got, want) {
					t.Errorf("names %d: after the cut %q, want %q", names, got, want)
				}
				d.Cut(nil)
				if got := s.files(); !maps.Equal(got, want) {
					t.Errorf("names %d: after a second cut %q, want %q", names, got, want)
				}
			}
		})
	}
}

// TestCutTearsAtPages checks that after a cut all synced data exists, and that every subset of the
// unsynced pages can exist.
func TestCutTearsAtPages(t *testing.T) {
	t.Parallel()
	const pages = 8
	synced := bytes.Repeat([]byte("s"), 3*pageSize+100)
	outcomes := map[string]bool{}
	for seed := range uint64(200) {
		d := New(WithFile)
		n, _ := d.create(d.root, "a", false, 0o600)
		n.write(synced, 0)
		d.sync(n)
		n.write(bytes.Repeat([]byte("u"), pages*pageSize-len(synced)), int64(len(synced)))
		d.Cut(rand.New(rand.NewPCG(seed, 0)))

		n = d.root.live["a"]
		if n == nil {
			t.Fatal("the synced file is gone")
		}
		got := make([]byte, n.size)
		n.read(got, 0)
		if !bytes.HasPrefix(got, synced) {
			t.Fatalf("seed %d: synced bytes are damaged", seed)
		}
		if rest := strings.Trim(string(got[len(synced):]), "u\x00"); rest != "" {
			t.Fatalf("seed %d: foreign bytes %q", seed, rest)
		}
		kept := ""
		for i := int64(len(synced)); i < n.size; i += pageSize {
			kept += string(got[i])
		}
		outcomes[kept] = true
	}
	// The file has 5 pages with unsynced data. With the old size there is 1 outcome; with the new
	// size there are 32.
	if len(outcomes) != 33 {
		t.Errorf("%d outcomes, want all 33: %q", len(outcomes), slices.Sorted(maps.Keys(outcomes)))
	}
}

// TestCutKeepsAPrefixOfTheNames checks that a cut keeps a prefix of the unsynced changes of names,
// and never only one of the two changes of a rename.
func TestCutKeepsAPrefixOfTheNames(t *testing.T) {
	t.Parallel()
	outcomes := map[string]bool{}
	for seed := range uint64(200) {
		d := New(WithFile)
		for _, name := range []string{"a", "b"} {
			if _, errno := d.create(d.root, name, false, 0o600); errno != 0 {
				t.Fatal(errno)
			}
		}
		d.sync(d.root)
		for _, errno := range []syscall.Errno{
			d.rename(d.root, "a", d.root, "c", 0), d.rename(d.root, "c", d.root, "b", 0), d.remove(d.root, "b", false),
		} {
			if errno != 0 {
				t.Fatal(errno)
			}
		}
		d.Cut(rand.New(rand.NewPCG(seed, 0)))
		outcomes[strings.Join(slices.Sorted(maps.Keys(d.root.live)), "")] = true
	}
	if got := strings.Join(slices.Sorted(maps.Keys(outcomes)), " "); got != " ab b bc" {
		t.Errorf("outcomes %q", got)
	}
}

func TestFilesOpenOverACutReachNothing(t *testing.T) {
	t.Parallel()
	d, dir := mount(t, WithFile)
	s := script{t, dir}
	s.write("a", "1")
	s.sync("a")
	f, err := os.OpenFile(s.path("a"), os.O_RDWR, 0)
	s.ok(err)
	defer f.Close()
	d.Cut(nil)
	if _, err := f.WriteString("x"); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("write: %v, want ESTALE", err)
	}
	if got := s.files(); !maps.Equal(got, map[string]string{"a": "1"}) {
		t.Errorf("%q", got)
	}
}

func TestACopyIsWhatACutWouldLeave(t *testing.T) {
	t.Parallel()
	d, dir := mount(t, WithFile)
	s := script{t, dir}
	s.write("a", "1")
	s.sync("a")
	s.add("a", "2")
	c := d.Copy()
	n := c.root.live["a"]
	n.write([]byte("x"), 0)
	c.sync(n)
	if n.size != 1 {
		t.Errorf("the copy has %d bytes, want 1", n.size)
	}
	if got := s.files(); !maps.Equal(got, map[string]string{"a": "12"}) {
		t.Errorf("%q", got)
	}
	d.Cut(nil)
	if got := s.files(); !maps.Equal(got, map[string]string{"a": "1"}) {
		t.Errorf("%q", got)
	}
}
