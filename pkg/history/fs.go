package history

import (
	"io"
	"os"
	"sync/atomic"
)

// FS is what a Store asks of a file system. The seam is here for tests that
// lose power or cut writes; the operating system's is the default.
type FS interface {
	MkdirAll(dir string) error
	// List returns the names in dir, without the folder.
	List(dir string) ([]string, error)
	// Create makes an empty file, or empties it, for reading and writing.
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
	// WriteBack asks for the range to be written soon, without waiting. It is
	// a hint: dirty pages left to the kernel stall everything in bursts.
	WriteBack(off, n int64)
	// Forget says that the content, which is durable, is not likely to be read
	// soon: the system may use the memory it is cached in for something else.
	Forget()
}

// blob is a file shared by the tail that wrote it, the views that list it and
// the readers of either; the last one closes it.
type blob struct {
	File
	name string // within the folder; names the damage
	refs atomic.Int32
}

func newBlob(f File, name string) *blob {
	b := &blob{File: f, name: name}
	b.refs.Store(1)
	return b
}

// hold adds a reference; the caller must know that one exists.
func (b *blob) hold() { b.refs.Add(1) }

func (b *blob) release() {
	if b.refs.Add(-1) == 0 {
		b.Close() // nothing was written since the last sync that counts
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
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600) // it holds what people were told
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
