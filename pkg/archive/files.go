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

// Manifest says what a file of the archive holds.
type Manifest struct {
	File    string    `json:"file"` // below the folder, with slashes
	Kind    string    `json:"kind"` // dead-letters or outcomes
	Number  uint64    `json:"number"`
	Lines   int       `json:"lines"`
	Bytes   int64     `json:"bytes"`             // of the file
	SHA256  string    `json:"sha256"`            // of the file
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

// writer writes one file under a name of its own.
type writer struct {
	path     string
	f        *os.File
	sum      hash.Hash
	z        *zstd.Encoder
	enc      *json.Encoder
	manifest Manifest
	kept     bool
}

// create begins the file of a manifest. If it is new and its name is taken, it gets the next
// number that is not.
func create(dir string, m Manifest, isNew bool) (*writer, error) {
	w := &writer{sum: sha256.New(), manifest: m}
	for ; isNew; w.manifest = nameOf(m.Kind, m.Written, w.manifest.Number+1) { // a store that was restored counts from where it was
		_, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(w.manifest.File)))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, broken(err)
		}
	}
	w.path = filepath.Join(dir, w.manifest.tmpName())
	if err := atomicfile.MkdirAll(dir); err != nil {
		return nil, broken(err)
	}
	var err error
	if w.f, err = os.OpenFile(w.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return nil, broken(err)
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

// tmpName is what the file is called until it is named.
func (m *Manifest) tmpName() string { return fmt.Sprintf("%s-%08d%s", m.Kind, m.Number, tmpSuffix) }

// add writes one line.
func (w *writer) add(v any) error {
	w.manifest.Lines++
	return broken(w.enc.Encode(v))
}

// seal makes the file complete and durable, still under its temporary name.
func (w *writer) seal() error {
	if err := w.z.Close(); err != nil {
		return broken(err)
	}
	info, err := w.f.Stat()
	if err == nil {
		err = w.f.Sync()
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(w.path))
	}
	if err != nil {
		return broken(err)
	}
	w.manifest.Bytes, w.manifest.SHA256 = info.Size(), hex.EncodeToString(w.sum.Sum(nil))
	return nil
}

// discard closes the file, and removes it unless it is kept.
func (w *writer) discard() {
	if w.z != nil {
		_ = w.z.Close() // sealed, or not wanted
	}
	_ = w.f.Close()
	if !w.kept {
		_ = os.Remove(w.path) // else the next run does
	}
}

// errTaken says of a file that it is under neither of its names any more.
var errTaken = errors.New("the file is gone")

// publish gives a sealed file its name and its manifest, durably. Done before,
// it changes nothing. The error is errTaken where there is nothing to name.
func publish(dir string, m *Manifest) error {
	final := filepath.Join(dir, filepath.FromSlash(m.File))
	folder := filepath.Dir(final)
	if err := atomicfile.MkdirAll(folder); err != nil {
		return broken(err)
	}
	if err := os.Rename(filepath.Join(dir, m.tmpName()), final); err != nil {
		_, there := os.Stat(final)
		switch {
		case !errors.Is(err, fs.ErrNotExist):
			return broken(err)
		case errors.Is(there, fs.ErrNotExist):
			return errTaken
		case there != nil:
			return broken(there)
		}
	}
	return writeManifest(dir, m)
}

// writeManifest writes the manifest of a file, durably.
func writeManifest(dir string, m *Manifest) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, filepath.FromSlash(m.manifestName()))
	folder := filepath.Dir(name)
	if err := atomicfile.MkdirAll(folder); err != nil {
		return broken(err)
	}
	if err := atomicfile.WriteFile(name, append(b, '\n')); err != nil {
		return broken(err)
	}
	for d := folder; ; d = filepath.Dir(d) { // a crash may have left each new, and not durable
		if err := atomicfile.SyncDir(d); err != nil {
			return broken(err)
		}
		if len(d) <= len(filepath.Clean(dir)) {
			return nil
		}
	}
}

// dropUnlike makes sure that what has one of the names of a file is that file. Another
// process may have completed one of the same name in its own folder, which the row names
// now, while this folder has what this process had begun.
func dropUnlike(dir string, m *Manifest) error {
	for _, name := range []string{m.tmpName(), filepath.FromSlash(m.File)} {
		name = filepath.Join(dir, name)
		sum, _, err := sumOf(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return broken(err)
		case sum == m.SHA256:
			continue
		}
		if err := os.Remove(name); err != nil {
			return broken(err)
		}
	}
	return nil
}

// sumOf returns the SHA-256 of a file, in hex, and its size.
func sumOf(name string) (sum string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close() // it was only read
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// clean removes what a crash left unfinished: nothing is pending.
func clean(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*"+tmpSuffix))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	return broken(err)
}

// broken is the error of a folder that cannot be written to.
func broken(err error) error {
	if err == nil {
		return nil
	}
	return notify.Unavailable("archive", 0, err)
}

// List returns the manifests of a folder, by number.
func List(dir string) ([]Manifest, error) { return ListFS(os.DirFS(dir)) }

// ListFS is List of a folder that is not on a disk.
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
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Manifest) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// EachOutcome calls fn with every line of a file of outcomes. The Outcome is fn's until it
// returns.
func EachOutcome(files fs.FS, m *Manifest, fn func(*Outcome) error) error {
	_, err := eachLine(files, m, fn)
	return err
}

// eachLine calls fn with every line of a file, and returns how many there are.
func eachLine[T any](files fs.FS, m *Manifest, fn func(*T) error) (lines int, err error) {
	f, err := files.Open(m.File)
	if err != nil {
		return 0, err
	}
	defer f.Close() // it was only read
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

// Verify reads a file of a folder and compares it with its manifest: the size,
// the checksum, and the lines, each of which must be JSON.
func Verify(dir string, m *Manifest) error {
	name := filepath.Join(dir, filepath.FromSlash(m.File))
	got, n, err := sumOf(name)
	if err != nil {
		return err
	}
	if n != m.Bytes || got != m.SHA256 {
		return fmt.Errorf("%s has %d bytes with SHA-256 %s; its manifest says %d with %s", m.File, n, got, m.Bytes, m.SHA256)
	}
	lines, err := eachLine(os.DirFS(dir), m, func(*json.RawMessage) error { return nil })
	if err != nil {
		return err
	}
	if lines != m.Lines {
		return fmt.Errorf("%s has %d lines; its manifest says %d", m.File, lines, m.Lines)
	}
	return nil
}

// shipAll brings the files that are left in the folder into the bucket: of the
// time before there was one, or of a crash. Nothing is pending. A file whose name the bucket
// has given to another one is put aside: mostly another process has written its lines again.
func (a *Archiver) shipAll(ctx context.Context) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	ms, err := List(a.cfg.Dir)
	if err != nil {
		return broken(err)
	}
	for i := range ms {
		err := a.ship(ctx, &ms[i])
		switch {
		case errors.Is(err, fs.ErrExist):
			a.cfg.Logger.Warn("the bucket has another file of this name, mostly with the same lines: this one is put aside", "file", ms[i].File, "folder", asideFolder)
			err = putAside(a.cfg.Dir, &ms[i])
		case err == nil:
			err = a.shipped(&ms[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// asideFolder is where files wait for an operator, in the folder of the archive.
const asideFolder = "aside"

// putAside moves a file to where List does not find it, its manifest last: while that is
// there, shipAll finds the file.
func putAside(dir string, m *Manifest) error {
	for _, name := range []string{m.File, m.manifestName()} {
		to := filepath.Join(dir, asideFolder, filepath.FromSlash(name))
		if err := atomicfile.MkdirAll(filepath.Dir(to)); err != nil {
			return broken(err)
		}
		if err := os.Rename(filepath.Join(dir, filepath.FromSlash(name)), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return broken(err)
		}
	}
	_ = os.Remove(filepath.Join(dir, filepath.FromSlash(filepath.Dir(m.File)))) // the day's folder, once it is empty
	return nil
}

// ship brings a file that has its name into the bucket, and then its manifest:
// a manifest in the bucket says that its file is there.
func (a *Archiver) ship(ctx context.Context, m *Manifest) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	if err := a.cfg.Bucket.Put(ctx, m.File, filepath.Join(a.cfg.Dir, filepath.FromSlash(m.File)), m.SHA256); err != nil {
		return broken(err)
	}
	name := filepath.Join(a.cfg.Dir, filepath.FromSlash(m.manifestName()))
	b, err := os.ReadFile(name)
	if err != nil {
		return broken(err)
	}
	sum := sha256.Sum256(b)
	return broken(a.cfg.Bucket.Put(ctx, m.manifestName(), name, hex.EncodeToString(sum[:])))
}

// shipped removes a file from the folder that is in the bucket, or shall never
// be, its manifest last: while that is there, shipAll finds the file.
func (a *Archiver) shipped(m *Manifest) error {
	if a.cfg.Bucket == nil {
		return nil
	}
	for _, name := range []string{m.File, m.manifestName()} {
		if err := os.Remove(filepath.Join(a.cfg.Dir, filepath.FromSlash(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return broken(err)
		}
	}
	_ = os.Remove(filepath.Join(a.cfg.Dir, filepath.FromSlash(filepath.Dir(m.File)))) // the day's folder, once it is empty
	return nil
}
