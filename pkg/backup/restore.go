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

// maxManifest is the largest size of a manifest, in bytes. 100,000 files take 12 MB.
const maxManifest = 64 << 20

// Verify reads a backup to its end and returns its manifest. If the backup is damaged or
// incomplete, it returns a notify.KindInvalid error with code "bad_backup".
func Verify(ctx context.Context, r io.Reader) (Manifest, error) {
	a, err := openArchive(ctx, r)
	if err != nil {
		return Manifest{}, err
	}
	defer a.zstd.Close()
	return a.manifest, a.unpack("")
}

// Restore unpacks a backup into the folder dir. The folder must be missing or empty; otherwise
// Restore returns a notify.KindConflict error with code "data_dir_in_use". It unpacks into a
// temporary folder, makes that folder durable and renames it to dir as the last step. If Restore
// fails before the last step, it does not change dir and removes what it wrote. Before the first
// write it compares the manifest with the free space of the volume; if there is too little space,
// it returns a notify.KindUnavailable error with code "data_dir". It never writes more bytes than
// the manifest says. It also returns the errors of Verify.
func Restore(ctx context.Context, r io.Reader, dir string) (Manifest, error) {
	dir = filepath.Clean(dir)
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 {
		return Manifest{}, &notify.Error{Kind: notify.KindConflict, Code: "data_dir_in_use", Msg: dir + " is not empty: restore into an empty or a new folder"}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Manifest{}, cannotRestore(dir, err)
	}
	a, err := openArchive(ctx, r)
	if err != nil {
		return Manifest{}, err
	}
	defer a.zstd.Close()
	parent := filepath.Dir(dir)
	if err := checkFreeSpace(parent, a.manifest); err != nil {
		return Manifest{}, cannotRestore(dir, err)
	}
	if err := atomicfile.MkdirAll(parent); err != nil {
		return Manifest{}, cannotRestore(dir, err)
	}
	tmp, err := os.MkdirTemp(parent, filepath.Base(dir)+".restoring-*")
	if err != nil {
		return Manifest{}, cannotRestore(dir, err)
	}
	defer os.RemoveAll(tmp)
	m := a.manifest
	if err := a.unpack(tmp); err != nil {
		return m, err
	}
	if err := syncFolders(tmp); err != nil {
		return m, cannotRestore(dir, err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, cannotRestore(dir, err)
	}
	if err := atomicfile.Rename(tmp, dir); err != nil {
		return m, cannotRestore(dir, err)
	}
	return m, nil
}

// spaceUnit is a block of the disk in bytes. A file or folder uses whole blocks.
const spaceUnit = 4096

// checkFreeSpace returns an error if the content of m does not fit on the volume of the folder dir.
// The folder may be missing.
func checkFreeSpace(dir string, m Manifest) error {
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
	// The sum cannot overflow, because checkManifest limits Bytes, and maxManifest limits the
	// number of names.
	need := m.Bytes + int64(len(m.Files)+len(m.Folders))*spaceUnit
	if need > free {
		return fmt.Errorf("the backup unpacks to %d files that need %d bytes with their folders, but the volume has only %d bytes free; nothing was written", len(m.Files), need, free)
	}
	return nil
}

func cannotRestore(dir string, err error) error {
	return &notify.Error{Kind: notify.KindUnavailable, Code: "data_dir", Msg: "cannot restore into " + dir, Err: err}
}

func badBackup(format string, args ...any) error {
	return notify.Invalid("bad_backup", "backup", fmt.Sprintf(format, args...))
}

// backupReader is a backup whose manifest was read. missingFolders and missingFiles contain the
// entries of the manifest that were not read yet.
type backupReader struct {
	ctx            context.Context
	zstd           *zstd.Decoder
	tar            *tar.Reader
	manifest       Manifest
	missingFolders map[string]bool
	missingFiles   map[string]File
}

// openArchive reads the manifest and checks it. The caller closes the field zstd of the returned
// reader.
func openArchive(ctx context.Context, r io.Reader) (_ *backupReader, err error) {
	z, err := zstd.NewReader(&ctxReader{ctx, r}, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return nil, badBackup("it is not a backup: %v", err)
	}
	defer func() {
		if err != nil {
			z.Close()
		}
	}()
	a := &backupReader{ctx: ctx, zstd: z, tar: tar.NewReader(z), missingFolders: map[string]bool{}, missingFiles: map[string]File{}}
	h, err := a.tar.Next()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, badBackup("it ends before its manifest: %v", err)
	case h.Typeflag != tar.TypeReg || h.Name != manifestName:
		return nil, badBackup("its first entry is %q, but must be %s", h.Name, manifestName)
	case h.Size > maxManifest:
		return nil, badBackup("its manifest has %d bytes; at most %d bytes are allowed", h.Size, maxManifest)
	}
	raw, err := io.ReadAll(a.tar)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, badBackup("its manifest is cut off: %v", err)
	}
	if err := json.Unmarshal(raw, &a.manifest); err != nil {
		return nil, badBackup("its manifest cannot be read: %v", err)
	}
	if err := a.checkManifest(); err != nil {
		return nil, err
	}
	return a, nil
}

// maxBytes is the largest sum of the file sizes in a manifest: 4 PiB.
const maxBytes = 1 << 52

// checkManifest returns an error if the manifest is not valid. It adds every entry of the manifest
// to missingFolders or missingFiles, because no entry was read yet.
func (a *backupReader) checkManifest() error {
	if a.manifest.Format != Format {
		return badBackup("it has format %d; this program reads format %d", a.manifest.Format, Format)
	}
	checkName := func(name string) error {
		if !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name || name == "." {
			return badBackup("its manifest names a file outside of the data folder: %q", name)
		}
		if _, twice := a.missingFiles[name]; twice || a.missingFolders[name] {
			return badBackup("its manifest lists %q twice", name)
		}
		if up := path.Dir(name); up != "." && !a.missingFolders[up] {
			return badBackup("its manifest lists %q before its folder", name)
		}
		return nil
	}
	for _, name := range a.manifest.Folders {
		if err := checkName(name); err != nil {
			return err
		}
		a.missingFolders[name] = true
	}
	var sum int64
	for _, f := range a.manifest.Files {
		if err := checkName(f.Name); err != nil {
			return err
		}
		if f.Size < 0 || f.Size > maxBytes-sum {
			return badBackup("its manifest gives %q an impossible size: %d bytes", f.Name, f.Size)
		}
		sum += f.Size
		a.missingFiles[f.Name] = f
	}
	if sum != a.manifest.Bytes {
		return badBackup("its manifest says %d bytes in total, but the files in the manifest have %d bytes", a.manifest.Bytes, sum)
	}
	return nil
}

// unpack reads every entry that the manifest lists. It writes the entries into the folder target,
// unless target is "". If the name or size of an entry differs from the manifest, unpack stops before
// it writes a byte of that entry.
func (a *backupReader) unpack(target string) error {
	for {
		h, err := a.tar.Next()
		if a.ctx.Err() != nil {
			return a.ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			return a.checkEnd()
		}
		if err != nil {
			return badBackup("it is cut off; %d of %d files are missing: %v", len(a.missingFiles), len(a.manifest.Files), err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		to := filepath.Join(target, filepath.FromSlash(name))
		switch want, ok := a.missingFiles[name]; {
		case a.missingFolders[path.Dir(name)]:
			return badBackup("the entry %q comes before its folder", name)
		case h.Typeflag == tar.TypeDir && a.missingFolders[name]:
			delete(a.missingFolders, name)
			if target == "" {
				continue
			}
			if err := os.Mkdir(to, 0o700); err != nil {
				return cannotRestore(target, err)
			}
		case h.Typeflag != tar.TypeReg || !ok:
			return badBackup("the entry %q is not in its manifest, or the backup contains the entry twice", h.Name)
		case h.Size != want.Size:
			return badBackup("the file %q has %d bytes; its manifest says %d bytes", name, h.Size, want.Size)
		default:
			sum, err := readFile(a.tar, to, target != "")
			if a.ctx.Err() != nil {
				return a.ctx.Err()
			}
			if err != nil {
				return err
			}
			if sum != want.SHA256 {
				return badBackup("the file %q is damaged: its checksum is %s, but the manifest says %s", name, sum, want.SHA256)
			}
			delete(a.missingFiles, name)
		}
	}
}

// checkEnd returns an error if there is data after the last file, or if an entry of the manifest is
// missing.
func (a *backupReader) checkEnd() error {
	switch n, err := a.zstd.Read(make([]byte, 1)); {
	case n > 0:
		return badBackup("it has data after its last file")
	case !errors.Is(err, io.EOF):
		return badBackup("it is damaged after its last file: %v", err)
	}
	for name := range a.missingFiles {
		return badBackup("the file %q is missing", name)
	}
	for name := range a.missingFolders {
		return badBackup("the folder %q is missing", name)
	}
	return nil
}

// readFile reads one file and returns its SHA-256. If the parameter store is true, it also stores
// the file durably under the given name.
func readFile(r io.Reader, name string, store bool) (sum string, err error) {
	hash := sha256.New()
	w := io.Writer(hash)
	if store {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return "", cannotRestore(name, err)
		}
		defer func() {
			if serr := errors.Join(f.Sync(), f.Close()); err == nil && serr != nil {
				err = cannotRestore(name, serr)
			}
		}()
		w = io.MultiWriter(hash, &diskWriter{f, name})
	}
	if _, err := io.Copy(w, r); err != nil {
		if e, ok := errors.AsType[*notify.Error](err); ok {
			return "", e
		}
		return "", badBackup("it is cut off in %s: %v", filepath.Base(name), err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// diskWriter wraps errors of the disk in cannotRestore, so that readFile can distinguish them from
// errors of the backup.
type diskWriter struct {
	f    *os.File
	path string
}

func (s *diskWriter) Write(p []byte) (int, error) {
	n, err := s.f.Write(p)
	if err != nil {
		err = cannotRestore(s.path, err)
	}
	return n, err
}

// syncFolders makes the directory entries of the folder dir and of all its subfolders durable.
func syncFolders(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return atomicfile.SyncDir(path)
	})
}
