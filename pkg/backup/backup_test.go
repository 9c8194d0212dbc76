package backup

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
