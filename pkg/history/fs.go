package history

import (
	"io"
	"os"
	"sync/atomic"
)

// FS is the part of a file system that a Store uses. Tests implement it to simulate power cuts and
// incomplete writes. The default is the operating system's file system.
type FS interface {
	MkdirAll(dir string) error
	// List returns the names in dir, without the folder's own path.
	List(dir string) ([]string, error)
	// Create makes an empty file, or truncates an existing one, for reading and writing.
	Create(name string) (File, error)
	// Open opens a file for reading.
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
}

// File is one open file of an FS.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	// SyncData makes the content durable.
	SyncData() error
	// WriteBack asks the operating system to write the range soon. It does not wait and guarantees
	// nothing. Without WriteBack the kernel collects dirty pages and writes them in bursts, which
	// stall every writer.
	WriteBack(off, n int64)
	// Forget tells the operating system that the content will probably not be read soon, so it may
	// leave the page cache. The content must be durable.
	Forget()
}

// blob is a file with a reference count. These have a reference each: the tail or merger that
// writes the file, the views that list the file, the queries that read the tail, and
// cachedSegments. When the last reference is released, the file is closed.
type blob struct {
	File
	name string // within the folder; used in reports of damage
	refs atomic.Int32
}

func newBlob(f File, name string) *blob {
	b := &blob{File: f, name: name}
	b.refs.Store(1)
	return b
}

// hold adds a reference. The caller must already have a reference.
func (b *blob) hold() { b.refs.Add(1) }

func (b *blob) release() {
	if b.refs.Add(-1) == 0 {
		b.Close() // an error loses no data: everything that matters was synced before
	}
}

type osFS struct{}

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

func (osFS) List(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (osFS) Create(name string) (File, error) {
	// Only the owner may read the file, because it contains the content of notifications.
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Open(name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }
func (osFS) Remove(name string) error     { return os.Remove(name) }

func (osFS) SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
