// Package atomicfile makes files and folders that a power cut does not take back:
// when a function returns nil, both the content and the name are on the disk.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MkdirAll makes a folder, and those above it, for their owner alone (0700). Where
// it is there already nothing is written.
func MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	var parents []string // of the folders that are missing, the lowest first
	for d := dir; ; d = filepath.Dir(d) {
		_, err := os.Stat(d)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || d == filepath.Dir(d) {
			return err
		}
		parents = append(parents, filepath.Dir(d))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, p := range parents {
		// One that may be written to and not read cannot be synced by us.
		if err := SyncDir(p); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// WriteFile makes or replaces a file of mode 0600. Whoever reads it, also after a
// power cut or beside another WriteFile, finds the old content or the new one.
func WriteFile(name string, data []byte) error { return write(name, data, Rename) }

// NewFile is WriteFile for a file that must not exist: it returns fs.ErrExist where
// it does, and leaves that file as it is.
func NewFile(name string, data []byte) error {
	return write(name, data, func(from, to string) error {
		err := os.Link(from, to) // fails where to exists, which Rename would replace
		if err == nil {
			return errors.Join(os.Remove(from), SyncDir(filepath.Dir(to)))
		}
		if _, there := os.Lstat(to); there == nil || errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
		}
		return Rename(from, to) // a file system without links
	})
}

// write writes a file beside name and calls give to give it that name.
func write(name string, data []byte, give func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = give(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the error before says more
	}
	return err
}

// Rename gives a file or folder that is on the disk another name beside it,
// instead of the file that has it, if any.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir makes the names in a folder durable, as they are now.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
