package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var files = map[string]string{
	"store/000001.log":                     strings.Repeat("abc", 100_000),
	"store/EMPTY":                          "",
	"log/partitions/notifications-0/0.dat": "records",
	"history/1.seg":                        "\x00\xff",
}

// folder makes one with the files, and with an empty folder.
func folder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "log", "partitions", "empty-0"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func made(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := Write(t.Context(), &b, folder(t), Manifest{Created: time.Unix(1e9, 0).UTC(), Version: "v1", StoreID: "id"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRestoresWhatWasThere(t *testing.T) {
	t.Parallel()
	raw := made(t)
	dir := filepath.Join(t.TempDir(), "deep", "restored")
	m, err := Restore(t.Context(), bytes.NewReader(raw), dir)
	if err != nil {
		t.Fatal(err)
	}
	if m.Version != "v1" || m.StoreID != "id" || m.Format != Format || len(m.Files) != len(files) || m.Bytes != 300_009 {
		t.Errorf("%+v", m)
	}
	got := map[string]string{}
	for name := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(b)
	}
	if !maps.Equal(got, files) {
		t.Error("other content")
	}
	if i, err := os.Stat(filepath.Join(dir, "log", "partitions", "empty-0")); err != nil || !i.IsDir() {
		t.Error("the empty folder is missing")
	}
	if names, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(names) != 1 {
		t.Errorf("left beside it: %v %v", names, err)
	}
}

// A bit that turned, or an end that is missing, is noticed before anything
// stands where it would be used.
func TestRefusesWhatIsNotWhole(t *testing.T) {
	raw := made(t)
	rapid.Check(t, func(rt *rapid.T) {
		b := slices.Clone(raw)
		if rapid.Bool().Draw(rt, "cut") {
			b = b[:rapid.IntRange(0, len(b)-1).Draw(rt, "length")]
		} else {
			b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		}
		dir := filepath.Join(t.TempDir(), "restored")
		m, err := Restore(context.Background(), bytes.NewReader(b), dir)
		if err == nil {
			// A bit of a header that says nothing: all files must be right.
			if len(m.Files) != len(files) {
				rt.Fatalf("%+v", m)
			}
			return
		}
		if e := notify.KindOf(err); e != notify.KindInvalid {
			rt.Fatalf("%v", err)
		}
		if names, _ := os.ReadDir(filepath.Dir(dir)); len(names) != 0 {
			rt.Fatalf("left behind: %v", names)
		}
	})
}

func TestRefusesAFolderInUse(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	if _, err := Restore(t.Context(), bytes.NewReader(made(t)), dir); notify.KindOf(err) != notify.KindConflict {
		t.Fatal(err)
	}
	empty := t.TempDir()
	if _, err := Restore(t.Context(), bytes.NewReader(made(t)), empty); err != nil {
		t.Fatal(err)
	}
}

func TestStopsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Write(ctx, &bytes.Buffer{}, folder(t), Manifest{}); err == nil {
		t.Error("written to the end")
	}
	if _, err := Verify(ctx, bytes.NewReader(made(t))); err == nil {
		t.Error("read to the end")
	}
}

// packed makes an archive of entries, each name with its content; a name that ends
// in / is a folder. The manifest is the first of them, or none.
func packed(t *testing.T, m *Manifest, entries ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	add := func(name string, size int64, r io.Reader) {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, r, size); err != nil {
			t.Fatal(err)
		}
	}
	if m != nil {
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		add(manifestName, int64(len(raw)), bytes.NewReader(raw))
	}
	for k := 0; k < len(entries); k += 2 {
		switch content := entries[k+1].(type) {
		case string:
			add(entries[k].(string), int64(len(content)), strings.NewReader(content))
		case int: // zeros
			add(entries[k].(string), int64(content), zeros{})
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// watching counts, at each read of a backup, what the restore has written so far
// below dir. most is the largest sum of sizes, in bytes.
type watching struct {
	r    io.Reader
	dir  string
	most int64
}

func (w *watching) Read(p []byte) (int, error) {
	var sum int64
	_ = filepath.WalkDir(w.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if i, err := d.Info(); err == nil {
				sum += i.Size()
			}
		}
		return nil
	})
	w.most = max(w.most, sum)
	return w.r.Read(p[:min(len(p), 64)]) // so that a count comes at least every 64 bytes of the archive
}

// A small file that unpacks to much more than its manifest says, or than the
// volume has room for, is refused before the surplus is written.
func TestRestoreOfABombWritesNothing(t *testing.T) {
	t.Parallel()
	const bomb = 256 << 20
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	short := File{Name: "a", Size: 3, SHA256: sum("abc")}
	f := func(name, says string, most int64, raw []byte) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(raw) > 1<<20 {
				t.Fatalf("the archive has %d bytes", len(raw))
			}
			parent := t.TempDir()
			w := &watching{r: bytes.NewReader(raw), dir: parent}
			_, err := Restore(t.Context(), w, filepath.Join(parent, "restored"))
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want %q", err, says)
			}
			if w.most > most {
				t.Errorf("%d bytes were on the disk, want %d at most", w.most, most)
			}
			if names, _ := os.ReadDir(parent); len(names) != 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}
	m := func(files ...File) *Manifest {
		out := &Manifest{Format: Format, Files: files}
		for _, f := range files {
			out.Bytes += f.Size
		}
		return out
	}
	f("no manifest", `first entry is "zeros"`, 0, packed(t, nil, "zeros", bomb, manifestName, "{}"))
	f("larger than listed", "its manifest says 3", 3, packed(t, m(short, File{Name: "b", Size: 3}), "a", "abc", "b", bomb))
	f("not listed", "is not in its manifest", 3, packed(t, m(short), "a", "abc", "b", bomb))
	f("twice", "contains the entry twice", 3, packed(t, m(short), "a", "abc", "a", "abc"))
	f("more than there is room", "bytes free; nothing was written", 0, packed(t, m(File{Name: "b", Size: 1 << 51}), "b", bomb))
	f("sizes that overflow", "an impossible size", 0, packed(t, m(short, File{Name: "b", Size: 1<<63 - 1}), "a", "abc"))
	f("a sum that lies", "the files in the manifest have 3", 0, packed(t, &Manifest{Format: Format, Files: []File{short}}, "a", "abc"))
	f("folders that are not listed", "is not in its manifest", 0, packed(t, m(short), "x/", "", "a", "abc"))
	f("a file outside", "outside of the data folder", 0, packed(t, m(File{Name: "../a", Size: 3}), "../a", "abc"))
	f("a manifest without end", "at most 67108864", 0, packed(t, nil, manifestName, bomb))
	f("another checksum", "is damaged", 3, packed(t, m(File{Name: "a", Size: 3, SHA256: sum("abd")}), "a", "abc"))
	f("a missing file", `"b" is missing`, 3, packed(t, m(short, File{Name: "b"}), "a", "abc"))
}
