package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

// manifestName is that of the last entry.
const manifestName = "manifest.json"

// Manifest says what a backup holds.
type Manifest struct {
	Format  int       `json:"format"`
	Created time.Time `json:"created_at"` // what was accepted before it is in the backup
	Version string    `json:"version"`    // of the program that made it
	StoreID string    `json:"store_id"`   // of the log and the store, which belong together
	Bytes   int64     `json:"bytes"`      // of the files, unpacked
	Files   []File    `json:"files"`
}

// File is one file of a backup.
type File struct {
	Name   string `json:"name"` // below the data folder, with slashes
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Write writes the files below dir to w, and m with what they were. The files
// must not change meanwhile. It ends early with the error of ctx.
func Write(ctx context.Context, w io.Writer, dir string, m Manifest) (Manifest, error) {
	m.Format, m.Bytes, m.Files = Format, 0, nil
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	defer z.Close()
	t := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
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
			return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700, ModTime: m.Created})
		}
		f, err := writeFile(ctx, t, path, name, m.Created)
		m.Files = append(m.Files, f)
		m.Bytes += f.Size
		return err
	})
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	raw, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: manifestName, Size: int64(len(raw)), Mode: 0o600, ModTime: m.Created})
	}
	if err == nil {
		_, err = io.Copy(t, bytes.NewReader(raw))
	}
	if err == nil {
		err = t.Close()
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	return m, nil
}

func writeFile(ctx context.Context, t *tar.Writer, path, name string, at time.Time) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	out := File{Name: name, Size: info.Size()}
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: out.Size, Mode: 0o600, ModTime: at}); err != nil {
		return out, err
	}
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(t, sum), &ending{ctx, f}, out.Size); err != nil {
		return out, fmt.Errorf("%s: %w", name, err)
	}
	out.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return out, nil
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
