package embedded

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/notifyd/notifyd/pkg/notify"
)

func TestReopenKeepsRecordsOffsetsAndPort(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"close", "kill", "stop, no topics"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Dir: t.TempDir(), Topics: map[string]int{"topic": 3}}
			b := open(t, cfg)
			b.fill(t, "topic", 2, 0, 20, 200)
			adm := kadm.NewClient(b.client(t))
			at := make(kadm.Offsets)
			at.AddOffset("topic", 2, 11, -1)
			if err := adm.CommitAllOffsets(t.Context(), "group", at); err != nil {
				t.Fatal(err)
			}
			addr := b.Addr()
			cfg.StoreID = b.StoreID()
			if how == "kill" {
				cfg.Dir = crash(t, cfg.Dir)
			}
			b.Close()
			if how == "stop, no topics" {
				if err := os.Remove(filepath.Join(cfg.Dir, topicsFile)); err != nil {
					t.Fatal(err)
				}
			}

			cfg.Topics = map[string]int{"topic": 5, "new": 1} // the old count stays
			b = open(t, cfg)
			if b.Addr() != addr {
				t.Errorf("address %s, was %s", b.Addr(), addr)
			}
			if got := b.read(t, "topic", 2); len(got) != 20 {
				t.Errorf("read %v", got)
			}
			if b.Partitions("topic") != 3 || b.Partitions("new") != 1 {
				t.Errorf("partitions %d, %d", b.Partitions("topic"), b.Partitions("new"))
			}
			committed, err := kadm.NewClient(b.client(t)).FetchOffsets(t.Context(), "group")
			if err != nil {
				t.Fatal(err)
			}
			if o, _ := committed.Lookup("topic", 2); o.At != 11 {
				t.Errorf("committed %d, want 11", o.At)
			}
			if cuts := b.Truncated(); len(cuts) != 0 {
				t.Errorf("truncated %v", cuts)
			}
		})
	}
}

func TestStoreID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, Config{Dir: dir, Topics: map[string]int{"topic": 1}})
	id := first.StoreID()
	if len(id) < 20 {
		t.Fatalf("id %q", id)
	}
	first.Close()

	opens := func(dir, expected string) {
		t.Helper()
		b, err := Open(Config{Dir: dir, StoreID: expected, Topics: map[string]int{"topic": 1}})
		if err != nil {
			t.Errorf("expecting %q: %v", expected, err)
			return
		}
		if expected != "" && b.StoreID() != expected {
			t.Errorf("id %q, want %q", b.StoreID(), expected)
		}
		b.Close()
	}
	refuses := func(dir, expected, why string) {
		t.Helper()
		_, err := Open(Config{Dir: dir, StoreID: expected, Topics: map[string]int{"topic": 1}})
		if err == nil || notify.KindOf(err) != notify.KindConflict || !strings.Contains(err.Error(), why) {
			t.Errorf("expecting %q: %v, want %q", expected, err, why)
		}
	}
	opens(dir, "")                                         // the first start was cut short
	refuses(dir, "other", "belongs to log other")          // another log
	refuses(t.TempDir(), id, "holds no log")               // the log is gone
	open(t, Config{Dir: dir}).fillAndClose(t, "topic", 10) // now it has records
	opens(dir, id)
	refuses(dir, "", "new or was emptied")
	if err := os.Remove(filepath.Join(dir, "store.id")); err != nil {
		t.Fatal(err)
	}
	refuses(dir, "", "no store.id")
	refuses(dir, id, "no store.id")
}

func (b *Broker) fillAndClose(t *testing.T, topic string, n int) {
	b.fill(t, topic, 0, 0, n, 100)
	b.Close()
}

func TestKcatReadsTheLog(t *testing.T) {
	t.Parallel()
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		if os.Getenv("NOTIFY_REQUIRE_KCAT") != "" {
			t.Fatal(err)
		}
		t.Skip("kcat is not installed: the log was not read with it")
	}
	b := open(t, Config{Dir: t.TempDir(), Topics: map[string]int{"notifications-push": 3}})
	b.fill(t, "notifications-push", 1, 0, 5, 30)
	run := func(args ...string) string {
		t.Helper()
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), kcat, append([]string{"-b", b.Addr()}, args...)...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kcat %v: %v: %s", args, err, stderr.String())
		}
		return string(out)
	}
	if out := run("-L"); !strings.Contains(out, `topic "notifications-push" with 3 partitions`) {
		t.Errorf("kcat -L: %s", out)
	}
	if out := run("-C", "-t", "notifications-push", "-e", "-q"); strings.Count(out, "\n") != 5 || !strings.HasPrefix(out, "0 ") {
		t.Errorf("kcat -C: %q", out)
	}
}

func TestEphemeralAndVirtual(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(map[string]int) (*Broker, error){"ephemeral": Ephemeral, "virtual": Virtual} {
		b, err := f(map[string]int{"topic": 2})
		if err != nil {
			t.Fatal(name, err)
		}
		b.fill(t, "topic", 1, 0, 3, 10)
		if got := b.read(t, "topic", 1); len(got) != 3 {
			t.Errorf("%s: read %v", name, got)
		}
		b.Close()
	}
}
