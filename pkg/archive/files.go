package archive

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/notifyd/notifyd/internal/atomicfile"
	"github.com/notifyd/notifyd/pkg/notify"
)

// Manifest describes a file of the archive.
type Manifest struct {
	File    string    `json:"file"` // path relative to the archive's folder, with slashes
	Kind    string    `json:"kind"` // dead-letters or outcomes
	Number  uint64    `json:"number"`
	Lines   int       `json:"lines"`
	Bytes   int64     `json:"bytes"`             // size of the compressed file
	SHA256  string    `json:"sha256"`            // SHA-256 of the compressed file
	Damaged int       `json:"damaged,omitempty"` // chunks of history that could not be read
	Written time.Time `json:"written_at"`
}

const (
	dataSuffix     = ".ndjson.zst"
	manifestSuffix = ".json"
	tmpSuffix      = ".tmp"
)

func (m *Manifest) manifestName() string {
	return strings.TrimSuffix(m.File, dataSuffix) + manifestSuffix
}

// lineWriter writes one file under its temporary name.
type lineWriter struct {
	path     string
	f        *os.File
	sum      hash.Hash
	z        *zstd.Encoder
	enc      *json.Encoder
	manifest Manifest
	kept     bool
}

// createFile begins the file that m describes. If isNew is true and a file with the name in m
// exists, createFile uses the next free number.
func createFile(dir string, m Manifest, isNew bool) (*lineWriter, error) {
	w := &lineWriter{sum: sha256.New(), manifest: m}
	for ; isNew; w.manifest = nameOf(m.Kind, m.Written, w.manifest.Number+1) { // after a restore of the store, the row may contain a lower number than existing files
		_, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(w.manifest.File)))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, archiveUnavailable(err)
		}
	}
	w.path = filepath.Join(dir, w.manifest.tmpName())
	if err := atomicfile.MkdirAll(dir); err != nil {
		return nil, archiveUnavailable(err)
	}
	var err error
	if w.f, err = os.OpenFile(w.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return nil, archiveUnavailable(err)
	}
	if w.z, err = zstd.NewWriter(io.MultiWriter(w.f, w.sum), zstd.WithEncoderConcurrency(1)); err != nil {
		w.discard()
		return nil, err
	}
	w.enc = json.NewEncoder(w.z)
	w.enc.SetEscapeHTML(false)
	return w, nil
}

func nameOf(kind string, now time.Time, number uint64) Manifest {
	now = now.UTC()
	file := fmt.Sprintf("%s/%s/%s-%08d%s", kind, now.Format("2006-01-02"), now.Format("15"), number, dataSuffix)
	return Manifest{File: file, Kind: kind, Number: number, Written: now}
}

// tmpName returns the name of the file before it is published.
func (m *Manifest) tmpName() string { return fmt.Sprintf("%s-%08d%s", m.Kind, m.Number, tmpSuffix) }

// add writes one line.
func (w *lineWriter) add(v any) error {
	w.manifest.Lines++
	return archiveUnavailable(w.enc.Encode(v))
}

// seal completes the file and makes it durable. The file keeps its temporary name.
func (w *lineWriter) seal() error {
	if err := w.z.Close(); err != nil {
		return archiveUnavailable(err)
	}
	info, err := w.f.Stat()
	if err == nil {
		err = w.f.Sync()
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(w.path))
	}
	if err != nil {
		return archiveUnavailable(err)
	}
	w.manifest.Bytes, w.manifest.SHA256 = info.Size(), hex.EncodeToString(w.sum.Sum(nil))
	return nil
}

// discard closes the file. It also removes the file, unless the field kept is true.
func (w *lineWriter) discard() {
	if w.z != nil {
		_ = w.z.Close() // an error does not matter: the file is sealed already, or is removed
	}
	_ = w.f.Close()
	if !w.kept {
		_ = os.Remove(w.path) // if this fails, the next run removes it
	}
}

// errFileGone means that neither the temporary nor the final name of a file exists.
var errFileGone = errors.New("the file is missing")

// publishFile gives a sealed file its final name and its manifest, durably. It may be called again
// for a published file. It returns errFileGone if the file is missing.
func publishFile(dir string, m *Manifest) error {
	final := filepath.Join(dir, filepath.FromSlash(m.File))
	folder := filepath.Dir(final)
	if err := atomicfile.MkdirAll(folder); err != nil {
		return archiveUnavailable(err)
	}
	if err := os.Rename(filepath.Join(dir, m.tmpName()), final); err != nil {
		_, there := os.Stat(final)
		switch {
		case !errors.Is(err, fs.ErrNotExist):
			return archiveUnavailable(err)
		case errors.Is(there, fs.ErrNotExist):
			return errFileGone
		case there != nil:
			return archiveUnavailable(there)
		}
	}
	return writeManifest(dir, m)
}

// writeManifest writes the manifest of a file durably.
func writeManifest(dir string, m *Manifest) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, filepath.FromSlash(m.manifestName()))
	folder := filepath.Dir(name)
	if err := atomicfile.MkdirAll(folder); err != nil {
		return archiveUnavailable(err)
	}
	if err := atomicfile.WriteFile(name, append(b, '\n')); err != nil {
		return archiveUnavailable(err)
	}
	// After an earlier crash, these folders may exist without being durable.
	for d := folder; ; d = filepath.Dir(d) {
		if err := atomicfile.SyncDir(d); err != nil {
			return archiveUnavailable(err)
		}
		if len(d) <= len(filepath.Clean(dir)) {
			return nil
		}
	}
}

// dropOtherVersions removes a file that has a name of m, temporary or final, but other content than
// m. This process may have begun such a file before another process completed the version that m
// describes.
func dropOtherVersions(dir string, m *Manifest) error {
	for _, name := range []string{m.tmpName(), filepath.FromSlash(m.File)} {
		name = filepath.Join(dir, name)
		sum, _, err := fileSum(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return archiveUnavailable(err)
		case sum == m.SHA256:
			continue
		}
		if err := os.Remove(name); err != nil {
			return archiveUnavailable(err)
		}
	}
	return nil
}

// fileSum returns the SHA-256 of a file, in hexadecimal, and its size.
func fileSum(name string) (sum string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close() // the file is only read: an error of Close loses no data
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// removeTemporary removes temporary files that remain after a crash. It must be called only when no
// file is pending.
func removeTemporary(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*"+tmpSuffix))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return archiveUnavailable(err)
}

// archiveUnavailable wraps an error of the folder or the bucket as notify.KindUnavailable.
func archiveUnavailable(err error) error {
	if err == nil {
		return nil
	}
	return notify.Unavailable("archive", 0, err)
}

// List returns the manifests in a folder, ordered by number.
func List(dir string) ([]Manifest, error) { return ListFS(os.DirFS(dir)) }

// ListFS returns the manifests in a file system, ordered by number.
func ListFS(files fs.FS) (out []Manifest, err error) {
	for _, kind := range []string{DeadLetters, Outcomes} {
		names, err := fs.Glob(files, kind+"/*/*"+manifestSuffix)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			b, err := fs.ReadFile(files, name)
			if err != nil {
				return nil, err
			}
			var m Manifest
			if err := json.Unmarshal(b, &m); err != nil {
				return nil, fmt.Errorf("decoding the manifest %s: %w", name, err)
			}
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Manifest) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// EachOutcome calls fn with every line of a file of outcomes. The function may use the Outcome only
// until it returns.
func EachOutcome(files fs.FS, m *Manifest, fn func(*Outcome) error) error {
	_, err := eachLine(files, m, fn)
	return err
}

// eachLine calls fn with every line of a file, and returns the number of lines.
func eachLine[T any](files fs.FS, m *Manifest, fn func(*T) error) (lines int, err error) {
	f, err := files.Open(m.File)
	if err != nil {
		return 0, err
	}
	defer f.Close() // the file is only read: an error of Close loses no data
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return 0, err
	}
	defer z.Close()
	for dec := json.NewDecoder(bufio.NewReader(z)); ; lines++ {
		var v T
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return lines, nil
		} else if err != nil {
			return lines, fmt.Errorf("%s, line %d: %w", m.File, lines+1, err)
		}
		if err := fn(&v); err != nil {
			return lines, err
		}
	}
}

// Verify compares a file with its manifest: size, checksum and number of lines. Each line must
// be valid JSON.
func Verify(dir string, m *Manifest) error {
	name := filepath.Join(dir, filepath.FromSlash(m.File))
	got, n, err := fileSum(name)
	if err != nil {
		return err
	}
	if n != m.Bytes || got != m.SHA256 {
		return fmt.Errorf("%s has %d bytes with SHA-256 %s; its manifest says %d bytes with SHA-256 %s", m.File, n, got, m.Bytes, m.SHA256)
	}
	lines, err := eachLine(os.DirFS(dir), m, func(*json.RawMessage) error { return nil })
	if err != nil {
		return err
	}
	if lines != m.Lines {
		return fmt.Errorf("%s has %d lines; its manifest says %d lines", m.File, lines, m.Lines)
	}
	return nil
}

// uploadAll puts the files that are still in the folder into the bucket. These files were written
// before a bucket was configured, or remain after a crash. uploadAll must be called only when no
// file is pending. If the bucket has another file with the same name, uploadAll moves the file in
// the folder to asideFolder. Usually another process has archived the same lines.
func (a *Archiver) uploadAll(ctx context.Context) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	ms, err := List(a.cfg.Dir)
	if err != nil {
		return archiveUnavailable(err)
	}
	for i := range ms {
		err := a.upload(ctx, &ms[i])
		switch {
		case errors.Is(err, fs.ErrExist):
			a.cfg.Logger.Warn("the bucket has another file of this name, usually with the same lines; this file is moved to the folder named here", "file", ms[i].File, "folder", asideFolder)
			err = putAside(a.cfg.Dir, &ms[i])
		case err == nil:
			err = a.removeUploaded(&ms[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// asideFolder is a folder in the archive's folder. It contains files that an operator must check.
const asideFolder = "aside"

// putAside moves a file to asideFolder, where List does not find it. It moves the manifest last, so
// that uploadAll finds the file again after a crash.
func putAside(dir string, m *Manifest) error {
	for _, name := range []string{m.File, m.manifestName()} {
		to := filepath.Join(dir, asideFolder, filepath.FromSlash(name))
		if err := atomicfile.MkdirAll(filepath.Dir(to)); err != nil {
			return archiveUnavailable(err)
		}
		if err := os.Rename(filepath.Join(dir, filepath.FromSlash(name)), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return archiveUnavailable(err)
		}
	}
	_ = os.Remove(filepath.Join(dir, filepath.FromSlash(filepath.Dir(m.File)))) // removes the folder of the day if it is empty now
	return nil
}

// upload puts a published file into the bucket, then its manifest. So if a manifest is in the
// bucket, its file is there too.
func (a *Archiver) upload(ctx context.Context, m *Manifest) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	if err := a.cfg.Bucket.Put(ctx, m.File, filepath.Join(a.cfg.Dir, filepath.FromSlash(m.File)), m.SHA256); err != nil {
		return archiveUnavailable(err)
	}
	name := filepath.Join(a.cfg.Dir, filepath.FromSlash(m.manifestName()))
	b, err := os.ReadFile(name)
	if err != nil {
		return archiveUnavailable(err)
	}
	sum := sha256.Sum256(b)
	return archiveUnavailable(a.cfg.Bucket.Put(ctx, m.manifestName(), name, hex.EncodeToString(sum[:])))
}

// removeUploaded removes a file from the folder. The caller has put the file into the bucket, or
// has decided that the bucket does not need it. removeUploaded removes the manifest last, so that
// uploadAll finds the file again after a crash. Without a bucket, it does nothing.
func (a *Archiver) removeUploaded(m *Manifest) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	for _, name := range []string{m.File, m.manifestName()} {
		if err := os.Remove(filepath.Join(a.cfg.Dir, filepath.FromSlash(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return archiveUnavailable(err)
		}
	}
	_ = os.Remove(filepath.Join(a.cfg.Dir, filepath.FromSlash(filepath.Dir(m.File)))) // removes the folder of the day if it is empty now
	return nil
}
