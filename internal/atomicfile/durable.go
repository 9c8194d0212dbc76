// Package atomicfile writes files and folders that survive a power cut: when a function
// returns nil, both the content and the name are on the disk.
//
// To write a file, the package writes a temporary file, syncs it, renames it, and then syncs the
// folder. So a reader sees the old content or the new content, never a part of the new content.
// After an error the file may have the old content or the new content.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MkdirAll makes a folder and its missing parents with mode 0700. If the folder exists, MkdirAll writes
// nothing.
func MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	var parents []string // parent of each missing folder, deepest first
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
		// Ignore a permission error: Sync needs read permission, and the folder may be only writable.
		if err := SyncDir(p); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// WriteFile creates or replaces a file of mode 0600. A reader finds the old content or the new content.
// This is also true after a power cut, and while another WriteFile runs.
func WriteFile(name string, data []byte) error { return writeTemp(name, data, Rename) }

// NewFile does what WriteFile does, but the file must not exist. If the file exists, NewFile leaves it
// unchanged and returns fs.ErrExist.
func NewFile(name string, data []byte) error {
	return writeTemp(name, data, func(from, to string) error {
		err := os.Link(from, to) // fails if to exists; Rename would replace it
		if err == nil {
			return errors.Join(os.Remove(from), SyncDir(filepath.Dir(to)))
		}
		if _, there := os.Lstat(to); there == nil || errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
		}
		return Rename(from, to) // the file system has no links
	})
}

// writeTemp writes and syncs a temporary file in the same folder as the file name, and then calls
// the function publish, which gives it that name. On an error it removes the temporary file.
func writeTemp(name string, data []byte, publish func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = publish(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error explains more
	}
	return err
}

// Rename renames a file or folder durably. If a file has the new name, Rename replaces that file. The
// caller must have synced the content, and both names must be in the same folder.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir makes the names in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
