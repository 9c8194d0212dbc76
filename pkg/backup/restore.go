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
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
)

// maxManifest bounds a manifest, in bytes: 100,000 files take 12 MB.
const maxManifest = 64 << 20

// Verify reads a backup to its end and says what it holds. The error is a
// notify.KindInvalid of code "bad_backup" where it is not whole.
func Verify(ctx context.Context, r io.Reader) (Manifest, error) {
	a, err := open(ctx, r)
	if err != nil {
		return Manifest{}, err
	}
	defer a.z.Close()
	return a.m, a.unpack("")
}

// Restore unpacks a backup as the folder dir, which must not exist or be empty
// (notify.KindConflict "data_dir_in_use"). The folder appears with its last
// step, durable: a restore that was cut short leaves dir as it was and removes
// what it wrote. Before the first write Restore reads the manifest and compares it
// with the room on the volume (notify.KindUnavailable "data_dir"); it never writes
// more than the manifest says. It also returns the errors of Verify.
func Restore(ctx context.Context, r io.Reader, dir string) (Manifest, error) {
	dir = filepath.Clean(dir)
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
		return Manifest{}, &notify.Error{Kind: notify.KindConflict, Code: "data_dir_in_use", Msg: dir + " is not empty: a backup is restored into a folder of its own"}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, unwritable(dir, err)
	}
	a, err := open(ctx, r)
	if err != nil {
		return Manifest{}, err
	}
	defer a.z.Close()
	parent := filepath.Dir(dir)
	if err := room(parent, a.m); err != nil {
		return Manifest{}, unwritable(dir, err)
	}
	if err := atomicfile.MkdirAll(parent); err != nil {
		return Manifest{}, unwritable(dir, err)
	}
	tmp, err := os.MkdirTemp(parent, filepath.Base(dir)+".restoring-*")
	if err != nil {
		return Manifest{}, unwritable(dir, err)
	}
	defer os.RemoveAll(tmp)
	m := a.m
	if err := a.unpack(tmp); err != nil {
		return m, err
	}
	if err := syncFolders(tmp); err != nil {
		return m, unwritable(dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, unwritable(dir, err)
	}
	if err := atomicfile.Rename(tmp, dir); err != nil {
		return m, unwritable(dir, err)
	}
	return m, nil
}

// block is what a file's or folder's space is rounded up to.
const block = 4096

// room returns an error if what m lists does not fit on the volume of dir, which
// need not exist yet.
func room(dir string, m Manifest) error {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := atomicfile.FreeBytes(dir)
	if err != nil || free < 0 {
		return err
	}
	// No overflow: open bounds Bytes, and the manifest's size the number of names.
	need := m.Bytes + int64(len(m.Files)+len(m.Folders))*block
	if need > free {
		return fmt.Errorf("the backup unpacks to %d files, %d bytes with their folders, and the volume has %d bytes free; nothing was written", len(m.Files), need, free)
	}
	return nil
}

func unwritable(dir string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "data_dir", Msg: "cannot restore into " + dir, Err: err}
}

func bad(format string, args ...any) error {
	return notify.Invalid("bad_backup", "backup", fmt.Sprintf(format, args...))
}

// archive is a backup of which the manifest has been read.
type archive struct {
	ctx     context.Context
	z       *zstd.Decoder
	t       *tar.Reader
	m       Manifest
	folders map[string]bool // that are to come
	files   map[string]File // that are to come
}

// open reads the manifest and checks it. The caller closes z of what it returns.
func open(ctx context.Context, r io.Reader) (_ *archive, err error) {
	z, err := zstd.NewReader(&ending{ctx, r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return nil, bad("it is no backup: %v", err)
	}
	defer func() {
		if err != nil {
			z.Close()
		}
	}()
	a := &archive{ctx: ctx, z: z, t: tar.NewReader(z), folders: map[string]bool{}, files: map[string]File{}}
	h, err := a.t.Next()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, bad("it breaks off before its manifest: %v", err)
	case h.Typeflag != tar.TypeReg || h.Name != manifestName:
		return nil, bad("it begins with %q, not with %s", h.Name, manifestName)
	case h.Size > maxManifest:
		return nil, bad("its manifest has %d bytes, %d is the most", h.Size, maxManifest)
	}
	raw, err := io.ReadAll(a.t)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, bad("its manifest breaks off: %v", err)
	}
	if err := json.Unmarshal(raw, &a.m); err != nil {
		return nil, bad("its manifest cannot be read: %v", err)
	}
	if err := a.expect(); err != nil {
		return nil, err
	}
	return a, nil
}

// maxBytes bounds the sum of the sizes of a manifest: 4 PiB.
const maxBytes = 1 << 52

// expect checks the manifest by itself and notes what it lists.
func (a *archive) expect() error {
	if a.m.Format != Format {
		return bad("it has format %d, this program reads %d", a.m.Format, Format)
	}
	add := func(name string) error {
		if !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name || name == "." {
			return bad("it names a file outside of the folder: %q", name)
		}
		if _, twice := a.files[name]; twice || a.folders[name] {
			return bad("its manifest has %q twice", name)
		}
		if up := path.Dir(name); up != "." && !a.folders[up] {
			return bad("its manifest has %q before its folder", name)
		}
		return nil
	}
	for _, name := range a.m.Folders {
		if err := add(name); err != nil {
			return err
		}
		a.folders[name] = true
	}
	var sum int64
	for _, f := range a.m.Files {
		if err := add(f.Name); err != nil {
			return err
		}
		if f.Size < 0 || f.Size > maxBytes-sum {
			return bad("its manifest says that %q has %d bytes", f.Name, f.Size)
		}
		sum += f.Size
		a.files[f.Name] = f
	}
	if sum != a.m.Bytes {
		return bad("its manifest says %d bytes, its files have %d", a.m.Bytes, sum)
	}
	return nil
}

// unpack reads what the manifest lists, and writes it where a folder is named. An
// entry that is not as listed ends it before a byte of that entry is written.
func (a *archive) unpack(into string) error {
	for {
		h, err := a.t.Next()
		if a.ctx.Err() != nil {
			return a.ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			return a.end()
		}
		if err != nil {
			return bad("it breaks off, %d of %d files are missing: %v", len(a.files), len(a.m.Files), err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		to := filepath.Join(into, filepath.FromSlash(name))
		switch want, ok := a.files[name]; {
		case a.folders[path.Dir(name)]:
			return bad("it has %q before its folder", name)
		case h.Typeflag == tar.TypeDir && a.folders[name]:
			delete(a.folders, name)
			if into == "" {
				continue
			}
			if err := os.Mkdir(to, 0o700); err != nil {
				return unwritable(into, err)
			}
		case h.Typeflag != tar.TypeReg || !ok:
			return bad("it has %q, which its manifest does not list, or a second time", h.Name)
		case h.Size != want.Size:
			return bad("%q has %d bytes, not %d as its manifest says", name, h.Size, want.Size)
		default:
			sum, err := readFile(a.t, to, into != "")
			if a.ctx.Err() != nil {
				return a.ctx.Err()
			}
			if err != nil {
				return err
			}
			if sum != want.SHA256 {
				return bad("%q is not what was backed up: its checksum is %s, not %s", name, sum, want.SHA256)
			}
			delete(a.files, name)
		}
	}
}

// end returns an error if the archive does not end after its last file.
func (a *archive) end() error {
	if n, err := a.z.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return bad("it is damaged behind its last file: %v", err)
	}
	for name := range a.files {
		return bad("%q is missing", name)
	}
	for name := range a.folders {
		return bad("the folder %q is missing", name)
	}
	return nil
}

// readFile reads one file, durably as name where it is kept.
func readFile(r io.Reader, name string, keep bool) (sum string, err error) {
	hash := sha256.New()
	w := io.Writer(hash)
	if keep {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return "", unwritable(name, err)
		}
		defer func() {
			if serr := errors.Join(f.Sync(), f.Close()); err == nil && serr != nil {
				err = unwritable(name, serr)
			}
		}()
		w = io.MultiWriter(hash, &sink{f, name})
	}
	if _, err := io.Copy(w, r); err != nil {
		if e, ok := errors.AsType[*notify.Error](err); ok {
			return "", e
		}
		return "", bad("it breaks off in %s: %v", filepath.Base(name), err)
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

// syncFolders makes the names below dir durable.
func syncFolders(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return atomicfile.SyncDir(path)
	})
}
