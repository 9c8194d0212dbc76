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

// Format is the format version of the backups that this build writes. This build reads no other
// version.
const Format = 1

// manifestName is the name of the first entry.
const manifestName = "manifest.json"

// Manifest describes the content of a backup.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created_at"` // every notification accepted before this time is in the backup
	Version string    `json:"version"`    // version of the program that made the backup
	StoreID string    `json:"store_id"`   // id that the log and the store share
	// Key is the id of the key that encrypted (sealed) the callers' secrets. The key itself is not
	// in the backup.
	Key string `json:"secrets_key,omitempty"`
	// Dev means that "notifyd dev" made the backup. "notifyd dev" keeps its data in the subfolder
	// "data" of its own folder.
	Dev     bool     `json:"dev"`
	Bytes   int64    `json:"bytes"`   // sum of the unpacked files' sizes
	Folders []string `json:"folders"` // paths in the data folder, with slashes; a parent comes before its children
	Files   []File   `json:"files"`
}

// File is one file of a backup.
type File struct {
	Name   string `json:"name"` // path in the data folder, with slashes
	Size   int64  `json:"size"` // in bytes
	SHA256 string `json:"sha256"`
}

// Write completes m with the files in the folder dir, then writes m and the files to w. It reads
// each file twice; the first read computes the checksum. The files must not change during Write.
// Write returns the completed manifest. If ctx ends, Write stops and returns ctx's error.
func Write(ctx context.Context, w io.Writer, dir string, m Manifest) (Manifest, error) {
	m, err := listFiles(ctx, dir, m)
	if err == nil {
		err = writeArchive(ctx, w, dir, m)
	}
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	return m, nil
}

// listFiles returns a copy of m that lists all folders and files in the folder dir.
func listFiles(ctx context.Context, dir string, m Manifest) (Manifest, error) {
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
		if d.IsDir() { // an empty folder counts too: a partition without records has an empty folder
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
	n, err := io.Copy(sum, &ctxReader{ctx, f})
	return File{Name: name, Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, err
}

// writeArchive writes the archive that m describes.
func writeArchive(ctx context.Context, w io.Writer, dir string, m Manifest) error {
	raw, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if len(raw) > maxManifest {
		return fmt.Errorf("the manifest of its %d files and %d folders has %d bytes; at most %d bytes are allowed", len(m.Files), len(m.Folders), len(raw), maxManifest)
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
		err = entry(file.Name, file.Size, &ctxReader{ctx, f})
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", file.Name, err)
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// ctxReader is a reader that returns the error of its context once the context has ended.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (e *ctxReader) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.r.Read(p)
}

// Copy copies a file into a folder from which a backup is made. It does not sync the copy, because
// the copy is read soon and then removed. If a crash interrupts the backup, the next start removes
// the copy.
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

// LinkOrCopy makes a hard link to a file that never changes. If the file system cannot link, it
// copies the file.
func LinkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	return Copy(from, to)
}
