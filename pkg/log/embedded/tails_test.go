package embedded

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// An offset committed after a start on a torn list of groups must outlive the
// next crash.
func TestOffsetsBehindATornTailAreKept(t *testing.T) {
	t.Parallel()
	const topic, group = "t", "g"
	for name, tear := range map[string]func(raw []byte) []byte{
		"zeros":          func(raw []byte) []byte { return append(raw, make([]byte, 5000)...) },
		"half an entry":  func(raw []byte) []byte { return raw[:len(raw)-3] },
		"half a header":  func(raw []byte) []byte { return append(raw, 40, 0, 0) },
		"a bad checksum": func(raw []byte) []byte { raw[len(raw)-1] ^= 1; return raw },
		"a huge length":  func(raw []byte) []byte { return append(raw, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8) },
		"nothing":        func(raw []byte) []byte { return raw },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Dir: t.TempDir(), Topics: map[string]int{topic: 1}}
			commit := func(b *Broker, at int64) {
				t.Helper()
				var os kadm.Offsets
				os.Add(kadm.Offset{Topic: topic, At: at, LeaderEpoch: -1})
				if err := kadm.NewClient(b.client(t)).CommitAllOffsets(t.Context(), group, os); err != nil {
					t.Fatal(err)
				}
			}
			b := open(t, cfg)
			commit(b, 1)
			commit(b, 2)
			cfg.StoreID = b.StoreID()
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(cfg.Dir, "groups.log")
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, tear(raw), 0o600); err != nil {
				t.Fatal(err)
			}

			b = open(t, cfg)
			commit(b, 3)
			crashed := t.TempDir() // as a kill would leave it: not closed
			if err := os.CopyFS(crashed, os.DirFS(cfg.Dir)); err != nil {
				t.Fatal(err)
			}
			cfg.Dir = crashed
			b = open(t, cfg)
			offsets, err := kadm.NewClient(b.client(t)).FetchOffsets(t.Context(), group)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := offsets.Lookup(topic, 0); got.At != 3 {
				t.Errorf("the group is at %d, had committed 3", got.At)
			}
		})
	}
}

func TestWholeEntriesNeverFails(t *testing.T) {
	t.Parallel()
	for n := range 64 {
		for _, b := range []byte{0, 1, 2, 0x7f, 0xff} {
			raw := make([]byte, n)
			for i := range raw {
				raw[i] = b
			}
			if got := wholeEntries(raw); got != 0 {
				t.Errorf("%d bytes of %d: %d", n, b, got)
			}
		}
	}
}
