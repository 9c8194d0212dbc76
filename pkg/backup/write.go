package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Format of the backups this build writes, and the latest it reads.
const Format = 1

// manifestName is that of the first entry.
const manifestName = "manifest.json"

// Manifest says what a backup holds.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created_at"`            // what was accepted before it is in the backup
	Version string    `json:"version"`               // of the program that made it
	StoreID string    `json:"store_id"`              // of the log and the store, which belong together
	Key     string    `json:"secrets_key,omitempty"` // names the key that sealed callers' secrets; the key is not in the backup
	Dev     bool      `json:"dev"`                   // of "notifyd dev", which has its data in the folder data below its own
	Bytes   int64     `json:"bytes"`                 // of the files, unpacked
	Folders []string  `json:"folders"`               // below the data folder, with slashes; each after the one it is in
	Files   []File    `json:"files"`
}

// File is one file of a backup.
type File struct {
	Name   string `json:"name"` // below the data folder, with slashes
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Write writes m with what the files below dir are, then the files. It reads each
// file twice, first for its checksum. The files must not change meanwhile. Write
// ends early with the error of ctx.
func Write(ctx context.Context, w io.Writer, dir string, m Manifest) (Manifest, error) {
	m, err := list(ctx, dir, m)
	if err == nil {
		err = write(ctx, w, dir, m)
	}
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	return m, nil
}

// list returns m with the folders and files below dir.
func list(ctx context.Context, dir string, m Manifest) (Manifest, error) {
	m.Format, m.Bytes, m.Folders, m.Files = Format, 0, nil, nil
	return m, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() { // an empty one counts: the folder of a partition without records
			m.Folders = append(m.Folders, name)
			return nil
		}
		f, err := sumFile(ctx, path, name)
		m.Files = append(m.Files, f)
		m.Bytes += f.Size
		return err
	})
}

func sumFile(ctx context.Context, path, name string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, &ending{ctx, f})
	return File{Name: name, Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// write writes the archive that m describes.
func write(ctx context.Context, w io.Writer, dir string, m Manifest) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) > maxManifest {
		return fmt.Errorf("its %d files and %d folders make a manifest of %d bytes, %d is the most", len(m.Files), len(m.Folders), len(raw), maxManifest)
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	t := tar.NewWriter(z)
	entry := func(name string, size int64, r io.Reader) error {
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: m.Created})
		if err == nil {
			_, err = io.CopyN(t, r, size)
		}
		return err
	}
	if err := entry(manifestName, int64(len(raw)), bytes.NewReader(raw)); err != nil {
		return err
	}
	for _, name := range m.Folders {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: m.Created}); err != nil {
			return err
		}
	}
	for _, file := range m.Files {
		f, err := os.Open(filepath.Join(dir, filepath.FromSlash(file.Name)))
		if err != nil {
			return err
		}
		err = entry(file.Name, file.Size, &ending{ctx, f})
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", file.Name, err)
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// ending is a reader that ends with its context.
type ending struct {
	ctx context.Context
	r   io.Reader
}

func (e *ending) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.r.Read(p)
}

// Copy copies a file into a folder that is to be written. It is not synced: the
// copy is read soon and removed, and a backup that a crash cut off is none.
func Copy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// LinkOrCopy is Copy for a file that never changes: a link where the file system
// can.
func LinkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	return Copy(from, to)
}
