package backup

import (
	"archive/tar"
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
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/notifyd/notifyd/pkg/durable"
	"github.com/notifyd/notifyd/pkg/notify"
)

// maxManifest bounds what is read of a manifest: 100,000 files take 12 MB.
const maxManifest = 64 << 20

// Verify reads a backup to its end and says what it holds. The error is a
// notify.KindInvalid of code "bad_backup" where it is not whole.
func Verify(ctx context.Context, r io.Reader) (Manifest, error) { return unpack(ctx, r, "") }

// Restore unpacks a backup as the folder dir, which must not exist or be empty
// (notify.KindConflict "data_dir_in_use"). The folder appears with its last
// step, durable: a restore that was cut short leaves dir as it was. Errors are
// those of Verify besides.
func Restore(ctx context.Context, r io.Reader, dir string) (Manifest, error) {
	dir = filepath.Clean(dir)
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
		return Manifest{}, &notify.Error{Kind: notify.KindConflict, Code: "data_dir_in_use", Msg: dir + " is not empty: a backup is restored into a folder of its own"}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, unwritable(dir, err)
	}
	parent := filepath.Dir(dir)
	if err := durable.MkdirAll(parent); err != nil {
		return Manifest{}, unwritable(dir, err)
	}
	tmp, err := os.MkdirTemp(parent, filepath.Base(dir)+".restoring-*")
	if err != nil {
		return Manifest{}, unwritable(dir, err)
	}
	defer os.RemoveAll(tmp)
	m, err := unpack(ctx, r, tmp)
	if err != nil {
		return m, err
	}
	if err := syncFolders(tmp); err != nil {
		return m, unwritable(dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, unwritable(dir, err)
	}
	if err := durable.Rename(tmp, dir); err != nil {
		return m, unwritable(dir, err)
	}
	return m, nil
}

func unwritable(dir string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "data_dir", Msg: "cannot restore into " + dir, Err: err}
}

func bad(format string, args ...any) error {
	return notify.Invalid("bad_backup", "backup", fmt.Sprintf(format, args...))
}

// unpack reads a backup, into a folder where one is named.
func unpack(ctx context.Context, r io.Reader, into string) (m Manifest, err error) {
	z, err := zstd.NewReader(&ending{ctx, r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return m, bad("it is no backup: %v", err)
	}
	defer z.Close()
	t := tar.NewReader(z)
	found := map[string]File{}
	for {
		h, err := t.Next()
		if ctx.Err() != nil {
			return m, ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			return m, bad("it has no end: what was written is %d files and no manifest", len(found))
		}
		if err != nil {
			return m, bad("it breaks off after %d files: %v", len(found), err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return m, bad("it names a file outside of the folder: %q", h.Name)
		}
		path := filepath.Join(into, filepath.FromSlash(name))
		switch {
		case h.Typeflag == tar.TypeReg && name == manifestName:
			return manifest(t, found)
		case h.Typeflag == tar.TypeDir:
			if into != "" {
				if err := os.MkdirAll(path, 0o700); err != nil {
					return m, unwritable(into, err)
				}
			}
		case h.Typeflag == tar.TypeReg:
			if _, twice := found[name]; twice {
				return m, bad("it has %s twice", name)
			}
			sum, err := readFile(t, path, into != "")
			if ctx.Err() != nil {
				return m, ctx.Err()
			}
			if err != nil {
				return m, err
			}
			found[name] = File{name, h.Size, sum}
		default:
			return m, bad("%s is neither a file nor a folder", name)
		}
	}
}

// readFile reads one file, durably to path where it is kept.
func readFile(r io.Reader, path string, keep bool) (sum string, err error) {
	hash := sha256.New()
	w := io.Writer(hash)
	if keep {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", unwritable(path, err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return "", unwritable(path, err)
		}
		defer func() {
			if serr := errors.Join(f.Sync(), f.Close()); err == nil && serr != nil {
				err = unwritable(path, serr)
			}
		}()
		w = io.MultiWriter(hash, &sink{f, path})
	}
	if _, err := io.Copy(w, r); err != nil {
		if e, ok := errors.AsType[*notify.Error](err); ok {
			return "", e
		}
		return "", bad("it breaks off in %s: %v", filepath.Base(path), err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// sink tells an error of the disk from one of the backup.
type sink struct {
	f    *os.File
	path string
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	if err != nil {
		err = unwritable(s.path, err)
	}
	return n, err
}

// manifest holds what was found against what should be there.
func manifest(r io.Reader, found map[string]File) (m Manifest, err error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err != nil {
		return m, bad("its manifest breaks off: %v", err)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, bad("its manifest cannot be read: %v", err)
	}
	if m.Format < 1 || m.Format > Format {
		return m, bad("it has format %d, this program reads up to %d", m.Format, Format)
	}
	for _, want := range m.Files {
		switch is, ok := found[want.Name]; {
		case !ok:
			return m, bad("%s is missing", want.Name)
		case is != want:
			return m, bad("%s is not what was backed up: %d bytes with checksum %s, not %d with %s", want.Name, is.Size, is.SHA256, want.Size, want.SHA256)
		}
		delete(found, want.Name)
	}
	for name := range found {
		return m, bad("%s was not backed up", name)
	}
	return m, nil
}

// syncFolders makes the names below dir durable.
func syncFolders(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return durable.SyncDir(path)
	})
}
